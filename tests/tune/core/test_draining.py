"""After the last new trial has started, paused trials still run to their end, as the scheduler decides."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from fanwise.testing.played_search import PlayedSearch
from fanwise.tune.core import events
from fanwise.tune.schedulers import ASHA, PBT, Status, SuccessiveHalving
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.space import Space, uniform
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"x": uniform(0, 1), "max_epochs": 9})
OPTIONS: dict[str, Any] = {  # Any: of different types
    "metric": "loss",
    "resource_attr": "epoch",
    "max_resource_attr": "max_epochs",
    "random_seed": 0,
    "reduction_factor": 3,
}


def loss(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    x = config["x"]
    assert isinstance(x, float)
    return {"loss": x + 1 / epoch, "epoch": epoch}, 1.0


TABLE = FunctionTable(loss, {"x": uniform(0, 1), "max_epochs": 9})


@pytest.mark.parametrize("num_trials", [9, 18, 12, 7])
@pytest.mark.parametrize("n_workers", [1, 3, 20])
def test_every_round_of_successive_halving_is_finished(num_trials: int, n_workers: int) -> None:
    """A round has 9 trials, of 1, 3 and 9 epochs. The limit may cut the last round short."""
    stop = StoppingCriterion(max_num_trials_started=num_trials)
    search = simulate(SuccessiveHalving(**OPTIONS), TABLE, stop, n_workers=n_workers)
    num_rounds = -(-num_trials // 9)
    assert search.num_trials_completed == num_rounds, "the best of each round is trained to the end"
    assert search.num_trials_stopped == num_trials - num_rounds, "no trial stays paused"
    assert search.reason == f"max_num_trials_started={num_trials} reached"


def test_asha_resumes_paused_trials_as_long_as_one_can_be_promoted() -> None:
    levels: Counter[object] = Counter()

    def note(event: events.Event, actions: object) -> None:
        if isinstance(event, events.Reported):
            levels[event.values["epoch"]] += 1

    stop = StoppingCriterion(max_num_trials_started=27)
    simulate(ASHA(**OPTIONS, type="promotion"), TABLE, stop, n_workers=27, on_event=note)
    assert levels[1] == 27 and levels[3] >= 9 and levels[9] >= 3, "a third is promoted from each level"


def train(state: float | None, config: Mapping[str, object]) -> tuple[float, Mapping[str, object]]:
    steps = (state or 0.0) + 1
    return steps, {"loss": float(config["x"]) - steps, "epoch": steps}  # type: ignore[arg-type]  # a number


def test_population_whose_clones_may_not_start_trains_its_members_to_the_end() -> None:
    """Two workers share four members, and replaced members leave no gap."""
    scheduler = PBT(
        metric="loss", resource_attr="epoch", max_t=8, perturbation_interval=2, population_size=4, random_seed=0
    )
    search = PlayedSearch(scheduler, SPACE, train, n_workers=2, num_trials=4)
    search.play()
    assert len({start.trial_id for start in search.starts}) == 4
    lengths = {trial_id: len(values) for trial_id, values in search.values.items()}
    stopped = {end.trial_id for end in search.ends if end.status is Status.STOPPED}
    assert all(lengths[trial_id] == 8 for trial_id in lengths.keys() - stopped)
    assert stopped and stopped != lengths.keys(), "some are replaced, by no other, and the rest reach the maximum"
    assert search.replayed() == search.actions

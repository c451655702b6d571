"""The schedules that Dive into Deep Learning works out by hand, in simulated searches."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Start
from fanwise.tune.schedulers import ASHA, Scheduler, SuccessiveHalving
from fanwise.tune.simulate import FunctionTable, SimulatedSearch, simulate
from fanwise.tune.space import choice
from fanwise.tune.stopping import StoppingCriterion

# Trial k has number = k; `EPOCH_S` and `LOSS` are looked up by it.
MAX_EPOCHS = 10


class PlayedSchedule:
    """A simulated search with the starts as (time, slot, trial), and the number of epochs that each trial trained."""

    def __init__(
        self,
        scheduler: type[Scheduler],
        num_trials: int,
        n_workers: int,
        *,
        epoch_s: Mapping[int, float] | None = None,
        losses: Mapping[int, float] | None = None,
        checkpoints: bool = True,
        until_s: float = math.inf,
        **options: Any,  # Any: of the scheduler
    ) -> None:
        self.starts: list[tuple[float, int, int]] = []
        self.epochs: Counter[int] = Counter()

        def train(config: Mapping[str, Any], epoch: int) -> tuple[dict[str, object], float]:
            number = config["number"]
            return {"loss": (losses or {}).get(number, number), "epoch": epoch}, (epoch_s or {}).get(number, 1.0)

        numbers = list(range(num_trials))
        table = FunctionTable(train, {"number": choice(numbers), "max_epochs": MAX_EPOCHS})
        points = [{"number": number} for number in numbers]
        self.search: SimulatedSearch = simulate(
            scheduler(metric="loss", resource_attr="epoch", points_to_evaluate=points, **options),
            table,
            StoppingCriterion(max_num_trials_started=num_trials, max_wallclock_time=until_s),
            n_workers=n_workers,
            checkpoints=checkpoints,
            on_event=self.add,
        )

    def add(self, event: events.Event, actions: list[Action]) -> None:
        if isinstance(event, events.Reported):
            self.epochs[event.trial_id] += 1
        self.starts += [(event.now_s, action.slot, action.trial_id) for action in actions if isinstance(action, Start)]


def test_asha_by_promotion_takes_the_steps_of_the_book() -> None:
    """Section 19.5, second figure: eta 2, two workers; trial 2 is slow, trial 0 is the best and trial 3 the next."""
    schedule = PlayedSchedule(
        ASHA,
        num_trials=7,
        n_workers=2,
        epoch_s={0: 1.0, 1: 1.5, 2: 5.0, 3: 1.0, 4: 4.0, 5: 1.0},
        losses={0: 0.1, 3: 0.2, 1: 0.5, 2: 0.6, 4: 0.7, 5: 0.8},
        until_s=8.0,
        max_t=8,
        reduction_factor=2,
        type="promotion",
    )
    assert schedule.starts == [
        (0.0, 0, 0),
        (0.0, 1, 1),
        (1.0, 0, 2),
        (1.5, 1, 0),  # trial 1 has arrived: the better of two is promoted to rung 1
        (2.5, 1, 3),  # only one trial is on rung 1: none is promoted
        (3.5, 1, 4),  # trial 3 is worse than trial 0, and trial 2 has not arrived
        (6.0, 0, 3),  # trial 2 has arrived and is worse: the better two of four are promoted
        (7.0, 0, 0),  # two trials are on rung 1: the better one is promoted to rung 2
        (7.5, 1, 5),
    ]


HALVING: dict[str, Any] = {"max_t": 10, "grace_period": 2, "reduction_factor": 2}


@pytest.mark.parametrize(("checkpoints", "num_epochs"), [(True, 34), (False, 58)])
def test_round_of_the_book_trains_34_epochs_with_checkpoints_and_58_without(checkpoints: bool, num_epochs: int) -> None:
    """Section 19.4: 8 trials to 2 epochs, 4 to 4, 2 to 8, 1 to 10, so 15 runs. The best trials come first."""
    schedule = PlayedSchedule(SuccessiveHalving, 8, 1, checkpoints=checkpoints, **HALVING)
    assert [trial_id for *_, trial_id in schedule.starts] == [*range(8), 0, 1, 2, 3, 0, 1, 0]
    assert schedule.epochs.total() == num_epochs
    assert (schedule.search.num_trials_completed, schedule.search.num_trials_stopped) == (1, 7)

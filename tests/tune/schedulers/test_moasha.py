"""MOASHA: decisions compared with the definition and with ASHA, void reports, a whole search, and replay."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_search import PlayedSearch

from fanwise.tune.pareto import HypervolumeFront, best_of
from fanwise.tune.schedulers import ASHA, FIFO, MOASHA, Decision, Scheduler
from fanwise.tune.searchers import Observation
from fanwise.tune.space import Space, uniform

SPACE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
Steps = list[tuple[int, tuple[float, float]]]
STEPS: st.SearchStrategy[Steps] = st.lists(
    st.tuples(st.integers(0, 7), st.tuples(*[st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.9, math.inf])] * 2)), max_size=60
)


def moasha_of(max_t: float = 9, eta: float = 3) -> MOASHA:
    scheduler = MOASHA(metric=["error", "cost"], max_t=max_t, reduction_factor=eta)
    scheduler.begin(SPACE, 0)
    return scheduler


def decide(scheduler: Scheduler, trial_id: int, iter: int, losses: tuple[float, ...]) -> Decision:
    return scheduler.on_report(Observation(trial_id, {}, iter, float(iter), losses, {}))


@given(STEPS, st.sampled_from([2.0, 3.0]))
def test_trial_continues_if_it_is_among_the_best_of_its_rung(steps: Steps, eta: float) -> None:
    scheduler = moasha_of(9, eta)
    levels = [level for level in (1, 2, 3, 4, 8) if level in (eta**k for k in range(4)) and level < 9]
    rungs: dict[int, list[tuple[float, float]]] = {level: [] for level in levels}
    gone_on = dict.fromkeys(levels, 0)
    iters: dict[int, int] = {}
    for trial_id, losses in steps:
        iter = iters[trial_id] = iters.get(trial_id, 0) + 1
        got = decide(scheduler, trial_id, iter, losses)
        if iter in rungs:
            rungs[iter].append(losses)
            number = max(1, int(len(rungs[iter]) // eta))
            best = best_of(rungs[iter], number)
            is_equal = losses in [rungs[iter][place] for place in best]
            goes_on = len(rungs[iter]) - 1 in best or (is_equal and gone_on[iter] < number)
            gone_on[iter] += goes_on
            assert got is (Decision.CONTINUE if goes_on else Decision.STOP)
        else:
            assert got is (Decision.STOP if iter >= 9 else Decision.CONTINUE)


@given(STEPS)
def test_moasha_decides_as_asha_if_one_objective_is_constant(steps: Steps) -> None:
    several, one = moasha_of(), ASHA(metric="error", max_t=9)
    one.begin(SPACE, 0)
    iters: dict[int, int] = {}
    for trial_id, (loss, _) in steps:
        iter = iters[trial_id] = iters.get(trial_id, 0) + 1
        assert decide(several, trial_id, iter, (loss, 7.0)) is decide(one, trial_id, iter, (loss,))


def train(state: Any, config: Mapping[str, object]) -> tuple[Any, Mapping[str, object]]:
    """Two objectives whose Pareto front is where y is 0; noise of both falls with the epochs."""
    epoch = (state or 0) + 1
    x, y = float(str(config["x"])), float(str(config["y"]))
    error, speed = x * x + y + 0.3 / epoch, -((1 - x) ** 2) - y - 0.3 / epoch
    return epoch, {"epoch": epoch, "error": error, "speed": speed}


def searched(scheduler: Scheduler, num_trials: int, seed: int = 0) -> PlayedSearch:
    search = PlayedSearch(scheduler, SPACE, train, seed=seed, num_trials=num_trials, max_reports=27, crashes=0.002)
    search.play()
    return search


def volume_of(search: PlayedSearch) -> float:
    last = [values[-1] for values in search.values.values()]
    points = [(float(str(values["error"])), -float(str(values["speed"]))) for values in last]
    front = HypervolumeFront((2.5, 2.5))
    for point in points:
        front.add(point)
    return front.volume


def test_moasha_finds_more_of_the_front_than_random_search_with_the_same_epochs() -> None:
    wins = 0
    for seed in range(5):
        halved = searched(
            MOASHA(metric=["error", "speed"], mode=["min", "max"], resource_attr="epoch", max_t=27), 60, seed
        )
        epochs = sum(map(len, halved.values.values()))
        plain = searched(FIFO(metric=["error", "speed"], mode=["min", "max"]), epochs // 27, seed)
        wins += volume_of(halved) > volume_of(plain)
    assert wins >= 4


def test_one_metric_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MOASHA needs at least two metrics, got \['error'\]; use ASHA for one"):
        MOASHA(metric=["error"], max_t=9)

"""What a model learns from where trials are stopped early: the resource that the guide and the docstrings name."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fanwise.tune import (
    ASHA,
    BOHB,
    MOASHA,
    ForestSearcher,
    MedianStopping,
    Scheduler,
    StoppingCriterion,
    TPESearcher,
    choice,
    uniform,
)
from fanwise.tune.searchers.encoding import Rows
from fanwise.tune.searchers.model_based import ModelBasedSearcher
from fanwise.tune.searchers.observations import TrainingData
from fanwise.tune.simulate import FunctionTable, simulate

SPACE = {"x": uniform(0, 1), "kind": choice(["a", "b"]), "max_epochs": 9}
BUDGET: dict[str, Any] = {"resource_attr": "epoch", "max_resource_attr": "max_epochs"}


def train(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    """The loss tells trial and epoch: x decides, and 10 for each epoch that is missing."""
    assert isinstance(config["x"], float)
    return {"loss": config["x"] + 10.0 * (9 - epoch), "size": config["x"] * epoch}, 1.0


class Notes(ModelBasedSearcher):
    """Says at random, and keeps what it would have learnt from. A list of the class: the search runs a copy."""

    seen: list[TrainingData]

    def __init__(self, levels: tuple[float, ...] = ()) -> None:
        super().__init__(num_init=3)
        self.levels = levels

    def fit(self, data: TrainingData, rng: Any) -> None:
        type(self).seen.append(data)

    def propose(self, pending_PD: Rows, rng: Any) -> Rows:
        return self.encoder.sample(20, rng)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Notes.seen = []


def searched(scheduler: Scheduler, trials: int = 30) -> list[float]:
    """The x of all trials, in the order in which they began."""
    begun: dict[float, None] = {}

    def noted(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
        assert isinstance(config["x"], float)
        begun[config["x"]] = None
        return train(config, epoch)

    simulate(scheduler, FunctionTable(noted, SPACE), StoppingCriterion(max_num_trials_started=trials), seed=0)
    return list(begun)


def epochs(data: TrainingData) -> list[int]:
    """At which epoch each trial's loss was reported; those without a result are left out."""
    losses = [loss for loss in data.loss_N.tolist() if math.isfinite(loss)]
    return [9 - round((loss - loss % 10) / 10) for loss in losses]


@pytest.mark.parametrize(
    "scheduler",
    [
        MOASHA(metric=["loss", "size"], **BUDGET, searcher=Notes()),
        MedianStopping(metric="loss", resource_attr="epoch", grace_population=2, searcher=Notes()),
    ],
    ids=["moasha", "median"],
)
def test_without_levels_a_stopped_trial_is_learned_from_by_its_last_report(scheduler: Scheduler) -> None:
    searched(scheduler)
    last = Notes.seen[-1]
    assert last.level is None
    assert len(set(epochs(last))) > 1, "stopped trials have few epochs, and are compared with those that have more"
    assert len(last.trial_ids_N) > 15


def test_with_levels_trials_are_compared_at_one_resource_the_highest_that_enough_have_reached() -> None:
    searched(ASHA(metric="loss", **BUDGET, searcher=Notes((1, 3, 9))), 90)
    assert {data.level for data in Notes.seen} == {1, 3, 9}
    for data in Notes.seen:
        assert set(epochs(data)) == {data.level}


def test_bohb_compares_at_one_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = TPESearcher.fit
    seen: list[TrainingData] = []

    def noting(searcher: TPESearcher, data: TrainingData, rng: Any) -> None:
        seen.append(data)
        fit(searcher, data, rng)

    monkeypatch.setattr(TPESearcher, "fit", noting)
    searched(BOHB(metric="loss", **BUDGET, num_init=3))
    assert len({data.level for data in seen}) > 1
    for data in seen:
        assert set(epochs(data)) == {data.level}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ASHA(metric="loss", **BUDGET, searcher=TPESearcher(4)),
        lambda: ASHA(metric="loss", **BUDGET, searcher=ForestSearcher(4, num_trees=4)),
        lambda: MOASHA(metric=["loss", "size"], **BUDGET, searcher=TPESearcher(4)),
        lambda: BOHB(metric="loss", **BUDGET, num_init=4),
    ],
    ids=["asha-tpe", "asha-forest", "moasha-tpe", "bohb"],
)
def test_a_model_finds_good_configurations_although_trials_are_stopped(make: Callable[[], Scheduler]) -> None:
    """Of sixty trials the later half is better than a random choice, whose mean is 0.5."""
    later = searched(make(), 60)[30:]
    assert sum(later) / len(later) < 0.42


def test_what_an_earlier_search_saw_at_each_resource_is_known_from_the_first_question_on() -> None:
    """A warm start with levels: trials of before have ids below 0, and the model is asked at once."""
    from fanwise.testing.searcher_contract import begun
    from fanwise.tune import Observation, Space, SuggestContext

    space = Space(SPACE)
    searcher = begun(lambda: Notes((1, 3, 9)), space)
    for trial_id in range(-5, 0):
        config = space.sample(random.Random(trial_id))
        for epoch in range(1, 4 if trial_id < -1 else 2):
            loss = float(train(config, epoch)[0]["loss"])  # type: ignore[arg-type]  # it is one
            searcher.observe(Observation(trial_id, config, epoch, float(epoch), (loss,), {"loss": loss}))
        searcher.on_end(trial_id, "Stopped")
    assert searcher.suggest(SuggestContext(0, 0, space)) is not None
    assert (Notes.seen[0].level, epochs(Notes.seen[0])) == (3, [3, 3, 3, 3])

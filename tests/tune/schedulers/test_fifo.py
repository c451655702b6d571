"""FIFO with random search: order, random numbers, validation of suggestions, and error messages about options."""

import inspect
import json
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from fanwise.tune.rng import KeyedRandom
from fanwise.tune.schedulers import (
    ASHA,
    FIFO,
    Decision,
    New,
)
from fanwise.tune.searchers import Mode, Observation, RandomSearcher, Searcher, SuggestContext
from fanwise.tune.space import Space, loguniform, randint

SPACE = Space({"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10})
FIRST = {"learning_rate": 0.1, "batch_size": 128}


class Scripted(Searcher):
    """Returns the given suggestions in order, and records its observations."""

    def __init__(self, *suggestions: Mapping[str, object] | None) -> None:
        self.suggestions = list(suggestions)
        self.asks: list[SuggestContext] = []
        self.heard: list[Observation] = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        self.asks.append(ask)
        return self.suggestions.pop(0)

    def observe(self, observation: Observation) -> None:
        self.heard.append(observation)


def begun(scheduler: FIFO, seed: int = 7) -> FIFO:
    scheduler.check(SPACE)
    scheduler.begin(SPACE, seed)
    return scheduler


def suggestions(scheduler: FIFO, number: int, seed: int = 7) -> list[Mapping[str, object] | None]:
    return [scheduler.searcher.suggest(SuggestContext(k, k, SPACE, seed=seed)) for k in range(number)]


def test_fifo_starts_new_trials_and_continues_all() -> None:
    scheduler = begun(FIFO(metric="loss"))
    assert [scheduler.next(SuggestContext(k, k, SPACE)) for k in range(3)] == [New()] * 3
    assert scheduler.on_report(Observation(0, {}, 1, 1.0, (0.5,), {"loss": 0.5})) is Decision.CONTINUE


def test_suggestion_depends_on_the_seed_and_its_number() -> None:
    scheduler = begun(FIFO(metric="loss", points_to_evaluate=[FIRST]))
    chances = [KeyedRandom(f"7/suggest/{number}") for number in range(3)]
    expected = [{**FIRST, "max_epochs": 10}, SPACE.sample(chances[1]), SPACE.sample(chances[2])]
    assert suggestions(scheduler, 3) == expected


def test_points_come_first_and_are_completed() -> None:
    points: list[dict[str, object]] = [{"batch_size": np.int64(64)}, dict(FIRST), {}]
    points_before = [dict(point) for point in points]
    got = suggestions(begun(FIFO(metric="loss", points_to_evaluate=points)), 3)
    assert got[0] == {**SPACE.sample(KeyedRandom("7/suggest/0")), "batch_size": 64}
    assert got[1:] == [{**FIRST, "max_epochs": 10}, SPACE.sample(KeyedRandom("7/suggest/2"))]
    assert points == points_before, "the caller's dicts stay as they were"


def test_points_are_checked_against_the_space_before_anything_runs() -> None:
    scheduler = FIFO(metric="loss", points_to_evaluate=[FIRST, {"batch_size": 1000}])
    with pytest.raises(ValueError, match=r"points_to_evaluate\[1\]: batch_size = 1000 is not in randint\(32, 256\)"):
        scheduler.check(SPACE)


def test_searcher_is_called_after_the_points_and_observes_all_reports() -> None:
    searcher = Scripted(FIRST)
    scheduler = begun(FIFO(searcher, metric="loss", points_to_evaluate=[{}]))
    suggestions(scheduler, 2)
    report = Observation(0, {}, 1, 1.0, (0.5,), {"loss": 0.5})
    scheduler.searcher.observe(report)
    assert [ask.trial_id for ask in searcher.asks] == [1]
    assert searcher.heard == [report]


def test_points_keep_the_time_budget_of_the_searcher() -> None:
    class Thinks(Scripted):
        suggest_timeout_s = 3.0

    assert FIFO(Thinks(), metric="loss", points_to_evaluate=[FIRST]).searcher.suggest_timeout_s == 3.0
    assert FIFO(Scripted(), metric="loss", points_to_evaluate=[FIRST]).searcher.suggest_timeout_s is None


@pytest.mark.parametrize(("mode", "loss"), [("min", 0.25), ("max", -0.25)])
def test_loss_is_the_metric_with_the_sign_of_the_mode(mode: Mode, loss: float) -> None:
    assert FIFO(metric="accuracy", mode=mode).objectives[0].loss(0.25) == loss


def test_several_metrics_have_one_mode_each_or_share_one() -> None:
    pairs = [("loss", "min"), ("accuracy", "max")]
    several = FIFO(metric=["loss", "accuracy"], mode=["min", "max"])
    assert [(objective.metric, objective.mode) for objective in several.objectives] == pairs
    assert [objective.mode for objective in FIFO(metric=["a", "b"], mode="max").objectives] == ["max", "max"]
    with pytest.raises(ValueError, match="one of them for each metric"):
        FIFO(metric=["a", "b"], mode=["max"])
    with pytest.raises(ValueError, match="distinct names"):
        FIFO(metric=["a", "a"])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: FIFO(metrics="loss"),  # type: ignore[call-arg]
            TypeError,
            r"^FIFO has no option 'metrics'; did you mean 'metric'\?$",
        ),
        (
            lambda: FIFO(RandomSearcher(), metric="loss", seed=3),  # type: ignore[call-arg]
            TypeError,
            r"FIFO has no option 'seed'; did you mean 'random_seed'\?",
        ),
        (
            lambda: FIFO(metric="loss", xyz=1),  # type: ignore[call-arg]
            TypeError,
            "no option 'xyz'; known: 'searcher', 'metric', 'mode', 'constraints', 'resource_attr', .*, 'random_seed'$",
        ),
        (lambda: FIFO(), TypeError, "metric"),  # type: ignore[call-arg]
        (lambda: FIFO(metric=3), TypeError, "name of a reported value, got 3"),  # type: ignore[arg-type]
        (lambda: FIFO(metric=""), ValueError, "got ''"),
        (
            lambda: FIFO(metric="loss", mode="maximise"),  # type: ignore[arg-type]
            ValueError,
            "mode must be 'min' or 'max' .* got 'maximise'",
        ),
        (
            lambda: FIFO(metric="loss", points_to_evaluate=FIRST),  # type: ignore[arg-type]
            TypeError,
            "must be a list of configurations",
        ),
        (
            lambda: FIFO(metric="loss", points_to_evaluate=[3]),  # type: ignore[list-item]
            TypeError,
            r"points_to_evaluate\[0\] must be a dict of hyperparameters, got 3",
        ),
        (
            lambda: FIFO(metric="loss", random_seed=1.5),  # type: ignore[arg-type]
            TypeError,
            "random_seed must be an int or None, got 1.5",
        ),
        (
            lambda: FIFO(RandomSearcher, metric="loss"),  # type: ignore[arg-type]
            TypeError,
            "searcher must be a Searcher",
        ),
        (
            lambda: FIFO(SPACE, metric="loss"),  # type: ignore[arg-type]
            TypeError,
            r"^FIFO got a space, which belongs to the Tuner\.\n  right:  Tuner\(objective, space, FIFO\(metric=",
        ),
        (lambda: FIFO({"x": 1}, metric="loss"), TypeError, "^FIFO got a space"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused_at_once(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_description_of_a_scheduler_is_json_with_all_settings() -> None:
    random_search = FIFO(metric="loss", mode="max", points_to_evaluate=[FIRST], random_seed=3)
    described = random_search.describe()
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "name": "FIFO",
        "metric": ["loss"],
        "mode": ["max"],
        "resource_attr": None,
        "searcher": {"name": "RandomSearcher", "points_to_evaluate": [FIRST]},
        "random_seed": 3,
    }
    assert FIFO(Scripted(), metric="loss").describe()["searcher"] == {"name": "Scripted"}


def test_the_signature_shows_the_options_of_the_base_class() -> None:
    names = ["searcher", "metric", "mode", "constraints", "resource_attr", "points_to_evaluate", "random_seed"]
    assert list(inspect.signature(FIFO).parameters) == names
    resource_names = ["max_t", "max_resource_attr", "grace_period", "reduction_factor"]
    assert list(inspect.signature(ASHA).parameters) == [*names, *resource_names, "type", "brackets"]

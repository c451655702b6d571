"""FIFOScheduler and RandomSearch: order, chance, checks of what a searcher suggests, messages about options."""

import copy
import doctest
import gc
import inspect
import json
import types
from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base import nearest
from fanwise.tune import schedulers
from fanwise.tune.schedulers import Decision, FIFOScheduler, Mode, RandomSearch, Scheduler, Status
from fanwise.tune.searchers import Ask, RandomSearcher, Searcher
from fanwise.tune.spaces import Space, loguniform, randint

SPACE = Space({"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10})
FIRST = {"learning_rate": 0.1, "batch_size": 128}


class Scripted(Searcher):
    """Suggests what it was given, one after another, and notes what it hears."""

    def __init__(self, *suggestions: object) -> None:
        self.suggestions = list(suggestions)
        self.asks: list[Ask] = []
        self.heard: list[tuple[int, dict[str, object], float]] = []

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        self.asks.append(ask)
        return self.suggestions.pop(0)  # type: ignore[return-value]  # wrong ones too

    def observe(self, trial_id: int, config: Mapping[str, object], loss: float) -> None:
        self.heard.append((trial_id, dict(config), loss))


def started(scheduler: Scheduler, seed: int = 7) -> Scheduler:
    scheduler.start(SPACE, seed)
    return scheduler


@given(st.integers(), st.integers(1, 20))
def test_random_search_repeats_itself_for_the_same_seed(seed: int, number: int) -> None:
    first, second = started(RandomSearch(metric="loss"), seed), started(RandomSearch(metric="loss"), seed)
    assert [first.suggest(k) for k in range(number)] == [second.suggest(k) for k in range(number)]


def test_each_suggestion_has_chance_of_its_own_by_seed_and_number() -> None:
    scheduler = started(RandomSearch(metric="loss", points_to_evaluate=[FIRST]), 7)
    assert scheduler.suggest(0) == {**FIRST, "max_epochs": 10}
    assert scheduler.suggest(1) == SPACE.sample(Random("7/suggest/1"))
    assert scheduler.suggest(2) == SPACE.sample(Random("7/suggest/2"))


def test_the_schedulers_own_seed_goes_before_the_tuners() -> None:
    own = started(RandomSearch(metric="loss", random_seed=3), 7)
    assert own.suggest(0) == SPACE.sample(Random("3/suggest/0"))


def test_points_come_first_in_their_order_and_are_completed() -> None:
    points: list[dict[str, object]] = [{"batch_size": np.int64(64)}, dict(FIRST), {}]
    kept = [dict(point) for point in points]
    scheduler = started(RandomSearch(metric="loss", points_to_evaluate=points))
    got = [scheduler.suggest(k) for k in range(3)]
    assert got[0] == {**SPACE.sample(Random("7/suggest/0")), "batch_size": 64}
    assert got[1:] == [{**FIRST, "max_epochs": 10}, SPACE.sample(Random("7/suggest/2"))]
    assert points == kept, "the caller's dicts stay as they were"


def test_points_are_copied_when_the_scheduler_is_made() -> None:
    points = [dict(FIRST)]
    scheduler = started(RandomSearch(metric="loss", points_to_evaluate=points))
    points[0]["batch_size"] = 32
    got = scheduler.suggest(0)
    assert got == {**FIRST, "max_epochs": 10}


def test_points_are_checked_against_the_space_at_start() -> None:
    scheduler = RandomSearch(metric="loss", points_to_evaluate=[FIRST, {"batch_size": 1000}])
    with pytest.raises(ValueError, match=r"points_to_evaluate\[1\]: batch_size = 1000 is not in randint\(32, 256\)"):
        scheduler.start(SPACE, 0)


@pytest.mark.parametrize(("mode", "loss"), [("min", 0.25), ("max", -0.25)])
def test_a_searcher_hears_losses_of_which_the_smaller_is_better(mode: Mode, loss: float) -> None:
    searcher = Scripted(FIRST)
    scheduler = started(FIFOScheduler(searcher, metric="accuracy", mode=mode))
    config = scheduler.suggest(0)
    assert config is not None
    decision = scheduler.on_report(0, config, {"epoch": 1, "accuracy": 0.25})
    assert decision is Decision.CONTINUE
    assert searcher.heard == [(0, {**FIRST, "max_epochs": 10}, loss)]


def test_a_searcher_is_told_the_trial_the_space_and_its_chance() -> None:
    searcher = Scripted(FIRST, FIRST)
    scheduler = started(FIFOScheduler(searcher, metric="loss", points_to_evaluate=[{}]))
    for trial_id in (0, 1, 5):
        scheduler.suggest(trial_id)
    assert [(ask.trial_id, ask.space) for ask in searcher.asks] == [(1, SPACE), (5, SPACE)]
    assert searcher.asks[1].random.random() == Random("7/suggest/2").random()


def test_a_searcher_that_has_nothing_is_asked_again_with_the_same_chance() -> None:
    searcher = Scripted(None, FIRST)
    scheduler = started(FIFOScheduler(searcher, metric="loss"))
    assert scheduler.suggest(0) is None
    assert scheduler.suggest(0) == {**FIRST, "max_epochs": 10}
    assert searcher.asks[0].random.random() == searcher.asks[1].random.random()


@pytest.mark.parametrize(
    ("suggestion", "error", "text"),
    [
        ({"learning_rate": 0.1}, ValueError, r"Scripted.suggest\(\) for trial 4 returned .*'batch_size' is missing"),
        ({**FIRST, "lr": 1}, ValueError, r"Scripted.suggest\(\) .*'lr' is not in the space"),
        ({**FIRST, "batch_size": 31}, ValueError, "batch_size = 31 is not in"),
        ([0.1, 128], TypeError, r"Scripted.suggest\(\) for trial 4 must return a dict .*got \[0.1, 128\]"),
    ],
)
def test_a_wrong_suggestion_names_the_searcher(suggestion: object, error: type[Exception], text: str) -> None:
    scheduler = started(FIFOScheduler(Scripted(suggestion), metric="loss"))
    with pytest.raises(error, match=text):
        scheduler.suggest(4)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: RandomSearch(metrics="loss"),  # type: ignore[call-arg]
            TypeError,
            r"^RandomSearch has no option 'metrics'; did you mean 'metric'\?$",
        ),
        (
            lambda: FIFOScheduler(RandomSearcher(), metric="loss", seed=3),  # type: ignore[call-arg]
            TypeError,
            r"FIFOScheduler has no option 'seed'; did you mean 'random_seed'\?",
        ),
        (
            lambda: RandomSearch(metric="loss", xyz=1),  # type: ignore[call-arg]
            TypeError,
            "no option 'xyz'; known: 'metric', 'mode', 'points_to_evaluate', 'random_seed'$",
        ),
        (lambda: RandomSearch(), TypeError, "metric"),  # type: ignore[call-arg]
        (lambda: RandomSearch(metric=3), TypeError, "name of a reported value, got 3"),  # type: ignore[arg-type]
        (lambda: RandomSearch(metric=""), ValueError, "empty text"),
        (
            lambda: RandomSearch(metric="loss", mode="maximise"),  # type: ignore[arg-type]
            ValueError,
            "mode must be 'min' or 'max', got 'maximise'",
        ),
        (
            lambda: RandomSearch(metric="loss", points_to_evaluate=FIRST),  # type: ignore[arg-type]
            TypeError,
            "must be a list of configurations",
        ),
        (
            lambda: RandomSearch(metric="loss", points_to_evaluate=[3]),  # type: ignore[list-item]
            TypeError,
            r"points_to_evaluate\[0\] must be a dict of hyperparameters, got 3",
        ),
        (
            lambda: RandomSearch(metric="loss", points_to_evaluate=[{"x": object()}]),
            TypeError,
            r"points_to_evaluate\[0\]\['x'\] is .* of type object",
        ),
        (
            lambda: RandomSearch(metric="loss", random_seed=1.5),  # type: ignore[arg-type]
            TypeError,
            "random_seed must be an int or None, got 1.5",
        ),
        (
            lambda: FIFOScheduler(RandomSearcher, metric="loss"),  # type: ignore[arg-type]
            TypeError,
            "searcher must be a Searcher",
        ),
    ],
)
def test_wrong_options_are_refused_at_once(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_one_scheduler_serves_one_search() -> None:
    scheduler = started(FIFOScheduler(Scripted(FIRST), metric="loss"))
    scheduler.suggest(0)
    with pytest.raises(ValueError) as caught:
        scheduler.start(SPACE, 1)
    assert str(caught.value) == (
        "this FIFOScheduler has already served a search, and would go on where that one ended. "
        "Make a new scheduler for each Tuner, with a new searcher."
    )


@pytest.mark.parametrize("points", [None, [FIRST]])
def test_one_searcher_serves_one_search_and_so_does_a_copy_of_a_used_one(
    points: list[Mapping[str, object]] | None,
) -> None:
    searcher = Scripted(FIRST)
    unused = copy.deepcopy(searcher)
    started(FIFOScheduler(searcher, metric="loss", points_to_evaluate=points)).suggest(0)
    for used in (searcher, copy.deepcopy(searcher)):
        with pytest.raises(ValueError) as caught:
            started(FIFOScheduler(used, metric="loss"))
        assert str(caught.value) == (
            "this Scripted has already served a search, and would go on where that one ended. "
            "Make a new searcher for each Tuner: FIFOScheduler(Scripted(...), metric=...)."
        )
    assert started(FIFOScheduler(unused, metric="loss")).suggest(0) == {**FIRST, "max_epochs": 10}


def test_a_scheduler_that_was_asked_nothing_may_be_started_again_and_the_last_start_counts() -> None:
    scheduler = started(started(RandomSearch(metric="loss"), 3), 7)
    assert scheduler.suggest(0) == SPACE.sample(Random("7/suggest/0"))


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda: RandomSearch(SPACE, metric="loss"), "RandomSearch(metric=...)"),  # type: ignore[arg-type,misc]
        (lambda: RandomSearch({"x": 1}, metric="loss"), "RandomSearch(metric=...)"),  # type: ignore[arg-type,misc]
        (lambda: RandomSearch(config_space=SPACE, metric="loss"), "RandomSearch(metric=...)"),  # type: ignore[call-arg]
        (lambda: RandomSearch(metric="loss", space=SPACE), "RandomSearch(metric=...)"),  # type: ignore[call-arg]
        (
            lambda: FIFOScheduler({}, RandomSearcher(), metric="loss"),  # type: ignore[arg-type,misc]
            "FIFOScheduler(searcher, metric=...)",
        ),
    ],
)
def test_a_space_given_to_a_scheduler_as_in_syne_tune_is_told_where_it_goes(
    make: Callable[[], object], right: str
) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    name = right.partition("(")[0]
    assert str(caught.value) == (
        f"{name} got a space: the space goes to the Tuner, which tells it to the scheduler.\n"
        f"  right:  Tuner(objective, space, {right}, stop)"
    )


def test_a_refused_start_leaves_the_scheduler_unused() -> None:
    scheduler = RandomSearch(metric="loss", points_to_evaluate=[{"batch_size": 64}])
    with pytest.raises(ValueError, match="is not in the space"):
        scheduler.start(Space({"x": randint(1, 2)}), 0)
    assert started(scheduler).suggest(0) is not None


def test_a_scheduler_describes_itself_as_json() -> None:
    random_search = RandomSearch(metric="loss", mode="max", points_to_evaluate=[FIRST], random_seed=3)
    settings = {"metric": "loss", "mode": "max", "points_to_evaluate": [FIRST], "random_seed": 3}
    assert random_search.describe() == {"name": "RandomSearch", "searcher": "RandomSearcher", **settings}
    assert json.loads(json.dumps(random_search.describe())) == random_search.describe()
    fifo = FIFOScheduler(Scripted(), metric="loss")
    assert fifo.describe()["name"] == "FIFOScheduler"
    assert fifo.describe()["searcher"] == "Scripted"
    assert (fifo.metric, fifo.mode) == ("loss", "min")
    assert (random_search.metric, random_search.mode) == ("loss", "max")


def reachable(thing: object) -> int:
    """How many objects hang on `thing`; code and modules apart, and integers, which may be one object or two."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, int | type | types.FunctionType | types.ModuleType):
            continue
        seen.add(id(item))
        waiting += gc.get_referents(item)
    return len(seen)


def test_a_finished_trial_leaves_nothing_behind() -> None:
    scheduler = started(RandomSearch(metric="loss"))
    sizes = []
    for trial_id in range(1, 201):
        config = scheduler.suggest(trial_id)
        assert config is not None
        scheduler.on_report(trial_id, config, {"loss": 0.5})
        scheduler.on_end(trial_id, Status.COMPLETED)
        sizes.append(reachable(scheduler))
    assert sizes[-1] == sizes[0]


def test_decisions_and_statuses_are_written_as_their_words() -> None:
    assert json.dumps([Decision.STOP, Decision.CONTINUE]) == '["STOP", "CONTINUE"]'
    assert [str(status) for status in Status] == ["InProgress", "Completed", "Stopped", "Failed"]


def test_the_checked_init_keeps_its_signature() -> None:
    assert list(inspect.signature(RandomSearch).parameters) == ["metric", "mode", "points_to_evaluate", "random_seed"]


@pytest.mark.parametrize("module", [schedulers, nearest])
def test_the_examples_run(module: types.ModuleType) -> None:
    assert doctest.testmod(module).failed == 0

"""Ours as samplers of Optuna: what a searcher is told of a study, what comes of its suggestions, how it fails.

The contract: in a study a searcher suggests what it suggests where it is asked and told without Optuna. Every searcher
of ours keeps it, and samplers that are broken on purpose do not.
"""

import doctest
import math
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from fanwise.base.errors import NotInstalled
from fanwise.tune import (
    Ask,
    BORESearcher,
    CQRSearcher,
    GridSearcher,
    Observation,
    Searcher,
    Space,
    TPESearcher,
    choice,
    loguniform,
    optuna_sampler,
    ordinal,
    parameter,
    randint,
    reverseloguniform,
    uniform,
)
from fanwise.tune.searchers.by_name import SEARCHERS
from fanwise.tune.searchers.forest_searcher import ForestSearcher
from fanwise.tune.spaces.with_optuna import suggest

optuna: Any = pytest.importorskip("optuna")
distributions: Any = optuna.distributions
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

SPACE = Space({
    "x": uniform(-1, 1),
    "width": randint(1, 64),
    "kind": choice(["a", "b", None]),
    "momentum": parameter(uniform(0, 1), when={"kind": "a"}),
    "epochs": 3,
})  # fmt: skip
LINE = Space({"x": uniform(-1, 1)})
FEW = Space({"x": choice(["a", "b"]), "n": randint(1, 3)})

Sampler: TypeAlias = Any  # an optuna.samplers.BaseSampler, checked alike without Optuna
MakeSampler: TypeAlias = Callable[[Searcher, Space | None, int], Sampler]
Trial: TypeAlias = Any
Study: TypeAlias = Any


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


OURS: dict[str, Callable[[], Searcher]] = {
    **{name: make for name, make in SEARCHERS.items() if name not in ("bayesopt", "bore", "cqr", "forest", "tpe")},
    "grid": lambda: GridSearcher(3),
    "tpe": lambda: TPESearcher(4),
    "bore": lambda: BORESearcher(num_init=4, num_trees=8, num_candidates=100),
    "forest": lambda: ForestSearcher(4, num_trees=8, num_candidates=100),
    "cqr": lambda: CQRSearcher(num_init=4, num_trees=8, num_candidates=100),
}


def ours(searcher: Searcher, space: Space | None, seed: int) -> Sampler:
    return optuna_sampler(searcher, space, seed=seed)


# -- the contract ------------------------------------------------------------------------------------------------------


def come_to(number: int, config: Mapping[str, Any]) -> tuple[str, list[float]]:
    """How a trial ends, and what it reports on the way; all kinds are among the first few."""
    curve = [(config["x"] - 0.3) ** 2 + config["width"] / 64 + 1 / step for step in range(1, 4)]
    if number % 5 == 3:
        return "Failed", curve[:1]
    if number % 5 == 4:
        return "Stopped", curve[:2]
    return "Completed", curve


def in_a_study(make: MakeSampler, searcher: Searcher, num_trials: int) -> list[Mapping[str, Any]]:
    """The configurations of a study's trials, two of which run at a time."""
    study = optuna.create_study(direction="maximize", sampler=make(searcher, SPACE, 7))
    running: list[Trial] = []
    configs = list[Mapping[str, Any]]()
    for _ in range(num_trials):
        trial = study.ask()
        configs.append(suggest(SPACE, trial))
        running.append(trial)
        if len(running) == 2:
            over = running.pop(0)
            status, curve = come_to(over.number, configs[over.number])
            for step, value in enumerate(curve, start=1):
                over.report(-value, step)
            state = {"Completed": "COMPLETE", "Stopped": "PRUNED", "Failed": "FAIL"}[status]
            values = -curve[-1] if status == "Completed" else None
            study.tell(over, values, state=optuna.trial.TrialState[state])
    return configs


def without_optuna(searcher: Searcher, num_trials: int) -> list[Mapping[str, Any]]:
    searcher.begin(SPACE, 7)
    pending = dict[int, Mapping[str, Any]]()
    configs = list[Mapping[str, Any]]()
    for number in range(num_trials):
        suggested = searcher.suggest(Ask(number, number, SPACE, seed=7, pending=dict(pending)))
        assert suggested is not None
        configs.append(SPACE.check(suggested))
        pending[number] = configs[-1]
        if len(pending) == 2:
            over = min(pending)
            status, curve = come_to(over, pending[over])
            steps = [*range(1, len(curve) + 1), len(curve)]
            told = [*curve, curve[-1]] if status == "Completed" else curve
            for iter, (step, value) in enumerate(zip(steps, told, strict=False), start=1):
                searcher.observe(Observation(over, pending[over], iter, float(step), (value,), {}))
            searcher.on_end(over, status)
            del pending[over]
    return configs


def it_suggests_in_a_study_what_it_does_without(make: MakeSampler, searcher: Callable[[], Searcher]) -> None:
    assert in_a_study(make, searcher(), 25) == without_optuna(searcher(), 25)


def a_study_of_four_threads_ends_with_all_its_trials(make: MakeSampler, searcher: Callable[[], Searcher]) -> None:
    meet = threading.Barrier(4, timeout=60.0)

    def objective(trial: Trial) -> float:
        config: Any = suggest(SPACE, trial)
        if trial.number < 4:
            meet.wait()  # so that four run at once
        return float(config["x"] ** 2)

    study = optuna.create_study(sampler=make(searcher(), SPACE, 0))
    study.optimize(objective, n_trials=16, n_jobs=4)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 16
    first = [tuple(trial.params.items()) for trial in study.trials[:4]]
    assert len(set(first)) == 4, "four that run at once are four configurations"


def several_objectives_are_no_trouble(make: MakeSampler, searcher: Callable[[], Searcher]) -> None:
    def objective(trial: Trial) -> tuple[float, float]:
        config: Any = suggest(SPACE, trial)
        return config["x"], config["x"] ** 2 + config["width"]

    study = optuna.create_study(directions=["minimize", "maximize"], sampler=make(searcher(), SPACE, 0))
    study.optimize(objective, n_trials=15)
    assert len(study.trials) == 15 and study.best_trials


def without_a_space_it_learns_what_there_is(make: MakeSampler, searcher: Callable[[], Searcher]) -> None:
    def objective(trial: Trial) -> float:
        x = float(trial.suggest_float("x", -1, 1)) + trial.suggest_int("depth", 3, 3)
        width = trial.suggest_int("width", 1, 64, log=True)
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":  # exists in some trials only
            x += trial.suggest_float("momentum", 0, 1)
        return float(x * x + width)

    sampler = make(searcher(), None, 0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=20)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 20
    found = sampler.infer_relative_search_space(study, study.trials[-1])
    assert set(found) == {"x", "width", "kind"}


CONTRACT = [
    it_suggests_in_a_study_what_it_does_without,
    a_study_of_four_threads_ends_with_all_its_trials,
    several_objectives_are_no_trouble,
    without_a_space_it_learns_what_there_is,
]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OURS)
def test_our_searchers_work_in_a_study(name: str, check: Callable[..., None]) -> None:
    check(ours, OURS[name])


def test_bayesian_optimization_works_in_a_study() -> None:
    pytest.importorskip("botorch")
    study = optuna.create_study(sampler=optuna_sampler("bayesopt", LINE, seed=0))
    study.optimize(lambda trial: (trial.suggest_float("x", -1, 1) - 0.3) ** 2, n_trials=12)
    assert study.best_value < 0.01


class Through(optuna.samplers.BaseSampler):  # type: ignore[misc]  # checked alike without Optuna
    """Passes on what Optuna asks; to be broken."""

    def __init__(self, searcher: Searcher, space: Space | None, seed: int) -> None:
        self.inner = optuna_sampler(searcher, space, seed=seed)

    def infer_relative_search_space(self, study: Study, trial: Trial) -> Any:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Study, trial: Trial, search_space: Any) -> Any:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Study, trial: Trial, name: str, distribution: Any) -> Any:
        return self.inner.sample_independent(study, trial, name, distribution)


class Half(Through):
    """Lets the objective draw what the searcher chose."""

    def sample_relative(self, study: Study, trial: Trial, search_space: Any) -> Any:
        return {**super().sample_relative(study, trial, search_space), "x": 0.0}


class Independent(Through):
    def infer_relative_search_space(self, study: Study, trial: Trial) -> Any:
        return {}


class OtherSeed(Through):
    def __init__(self, searcher: Searcher, space: Space | None, seed: int) -> None:
        super().__init__(searcher, space, seed + 1)


class Alike(Through):
    """Every trial is the first one."""

    def sample_relative(self, study: Study, trial: Trial, search_space: Any) -> Any:
        self.first = getattr(self, "first", None) or super().sample_relative(study, trial, search_space)
        return self.first


class OneObjective(Through):
    def infer_relative_search_space(self, study: Study, trial: Trial) -> Any:
        assert len(study.directions) == 1
        return super().infer_relative_search_space(study, trial)


BROKEN: list[tuple[MakeSampler, Callable[..., None]]] = [
    (Half, it_suggests_in_a_study_what_it_does_without),
    (OtherSeed, it_suggests_in_a_study_what_it_does_without),
    (Alike, a_study_of_four_threads_ends_with_all_its_trials),
    (OneObjective, several_objectives_are_no_trouble),
    (Independent, without_a_space_it_learns_what_there_is),
]


@pytest.mark.parametrize(("make", "check"), BROKEN)
def test_a_broken_sampler_is_caught(make: MakeSampler, check: Callable[..., None]) -> None:
    with pytest.raises(AssertionError):
        check(make, OURS["local"])


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_what_was_broken_was_right_before(check: Callable[..., None]) -> None:
    check(Through, OURS["local"])


def test_every_check_catches_somebody() -> None:
    assert {check for _, check in BROKEN} == set(CONTRACT)


# -- what the searcher is told -----------------------------------------------------------------------------------------


class Noting(Searcher):
    """Draws at random, and keeps what it was told; the sampler runs a copy, which shares the list."""

    def __init__(self, told: list[tuple[Any, ...]]) -> None:
        self.told = told

    def __deepcopy__(self, memo: object) -> "Noting":
        return type(self)(self.told)

    def begin(self, space: Space, seed: int) -> None:
        self.told.append(("begin", list(space.names)))

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        self.told.append(("suggest", ask.number, {trial_id: dict(config) for trial_id, config in ask.pending.items()}))
        return ask.space.sample(ask.random)

    def observe(self, observation: Observation) -> None:
        o = observation
        self.told.append((o.trial_id, o.iter, o.resource, o.losses, o.violations, o.infeasibility))

    def on_end(self, trial_id: int, status: str) -> None:
        self.told.append((trial_id, status))


@pytest.fixture
def told() -> list[tuple[Any, ...]]:
    return []


def study_of(told: list[tuple[Any, ...]], space: Space | None = LINE, **options: Any) -> Study:
    return optuna.create_study(sampler=optuna_sampler(Noting(told), space, seed=0), **options)


def asked(study: Study) -> Trial:
    trial = study.ask()
    trial.suggest_float("x", -1, 1)
    return trial


def seen(study: Study, told: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What the searcher is told before it is asked once more."""
    del told[:]
    asked(study)
    return told


PRUNED, FAIL = optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL


def test_it_hears_of_reports_and_ends_once_and_in_their_order(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told)
    trials = [asked(study) for _ in range(4)]
    trials[0].report(3.0, 10)
    trials[0].report(2.0, 20)
    trials[1].report(5.0, 1)
    running = {number: {"x": trial.params["x"]} for number, trial in enumerate(trials)}
    assert seen(study, told) == [
        (0, 1, 10.0, (3.0,), (), 0.0),
        (0, 2, 20.0, (2.0,), (), 0.0),
        (1, 1, 1.0, (5.0,), (), 0.0),
        ("suggest", 4, running),
    ]
    study.tell(trials[0], 1.0)
    study.tell(trials[1], state=PRUNED)
    study.tell(trials[2], state=FAIL)
    study.tell(trials[3], 4.0)
    assert seen(study, told)[:-1] == [
        (0, 3, 20.0, (1.0,), (), 0.0),
        (0, "Completed"),
        (1, "Stopped"),
        (2, "Failed"),
        (3, 1, 1.0, (4.0,), (), 0.0),
        (3, "Completed"),
    ]
    assert [what[0] for what in seen(study, told)] == ["suggest"]


def test_a_value_that_is_maximised_is_a_loss_with_the_other_sign(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told, directions=["maximize", "minimize"])
    study.tell(asked(study), [2.0, 3.0])
    assert seen(study, told)[0] == (0, 1, 1.0, (-2.0, 3.0), (), 0.0)


@pytest.mark.filterwarnings("ignore:The value nan is not acceptable")
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_nan_is_an_infinite_loss_on_the_way_and_a_failure_at_the_end(
    direction: str, told: list[tuple[Any, ...]]
) -> None:
    study = study_of(told, direction=direction)
    trial = asked(study)
    trial.report(math.nan, 1)
    study.tell(trial, math.nan, skip_if_finished=False)
    assert seen(study, told)[:2] == [(0, 1, 1.0, (math.inf,), (), 0.0), (0, "Failed")]


def test_a_trial_of_somebody_else_is_told_of_like_ones_own(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told)
    study.add_trial(
        optuna.create_trial(params={"x": 0.5}, distributions={"x": distributions.FloatDistribution(-1, 1)}, value=9.0)
    )
    study.enqueue_trial({"x": 0.25})
    enqueued = asked(study)
    found = seen(study, told)
    assert (0, 1, 1.0, (9.0,), (), 0.0) in found and (0, "Completed") in found
    assert found[-1] == ("suggest", 2, {enqueued.number: {"x": 0.25}})


def test_what_is_no_configuration_of_the_space_is_left_out(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told)
    wide, kinds = distributions.FloatDistribution(-9, 9), distributions.CategoricalDistribution(["z", None])
    for name, value, distribution in (("x", 3.0, wide), ("y", 0.5, wide), ("x", "z", kinds), ("x", None, kinds)):
        study.add_trial(optuna.create_trial(params={name: value}, distributions={name: distribution}, value=9.0))
    assert [what[0] for what in seen(study, told)] == ["begin", "suggest"]


def test_a_category_that_the_space_does_not_have_is_left_out(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told, Space({"x": uniform(-1, 1), "kind": choice(["a", "b"])}))
    known = {"x": distributions.FloatDistribution(-1, 1), "kind": distributions.CategoricalDistribution(["a", "z"])}
    study.add_trial(optuna.create_trial(params={"x": 0.5, "kind": "z"}, distributions=known, value=9.0))
    assert [what[0] for what in seen(study, told)] == ["begin", "suggest"]


def test_what_was_fixed_for_a_trial_is_what_it_runs_with(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told, Space({"x": uniform(-1, 1), "y": uniform(-1, 1)}))
    study.enqueue_trial({"x": 0.25})
    trial = study.ask()
    for name in ("y", "x"):
        trial.suggest_float(name, -1, 1)
    assert seen(study, told)[-1][2] == {0: trial.params}
    assert trial.params["x"] == 0.25


def test_the_trial_that_asks_is_not_told_of_as_running(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told)
    study.enqueue_trial({"x": 0.25})
    trial = study.ask()
    for name in ("x", "z"):  # what is not in the space makes Optuna ask for all of a configuration
        trial.suggest_float(name, -1, 1)
    assert told[-1] == ("suggest", 0, {})


def test_a_suggestion_counts_as_running_before_the_objective_has_asked_for_all_of_it(
    told: list[tuple[Any, ...]],
) -> None:
    study = study_of(told, Space({"x": uniform(-1, 1), "y": uniform(-1, 1)}))
    asked(study)
    assert set(seen(study, told)[-1][2][0]) == {"x", "y"}


def test_a_searcher_follows_all_brackets_of_a_pruner(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told, pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9))
    for _ in range(12):
        trial = asked(study)
        trial.report(1.0, 1)
        trial.should_prune()  # the first one makes the brackets
        study.tell(trial, 1.0)
    facts = [what[0] for what in told if what[0] == "suggest" or what[-1] == "Completed"]
    assert facts == ["suggest", *(fact for number in range(11) for fact in (number, "suggest"))]


def test_another_study_has_a_searcher_that_begins_anew(told: list[tuple[Any, ...]]) -> None:
    sampler = optuna_sampler(Noting(told), LINE, seed=0)
    for _ in range(2):
        study = optuna.create_study(sampler=sampler)
        study.tell(asked(study), 1.0)
        asked(study)
    kinds = ["begin", "suggest", 0, 0, "suggest"]
    assert [what[0] for what in told] == kinds * 2


def test_without_a_space_it_begins_anew_when_another_one_is_in_common(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told, None)

    def objective(trial: Trial) -> float:
        for name in ["x", "y"] if trial.number < 2 else ["x"]:
            trial.suggest_float(name, -1, 1)
        return 1.0

    study.optimize(objective, n_trials=5)
    assert [what[1] for what in told if what[0] == "begin"] == [["x", "y"], ["x"]]
    last = [what[0] for what in told[told.index(("begin", ["x"])) :]]
    assert last == ["begin", 0, 0, 1, 1, 2, 2, "suggest", 3, 3, "suggest"][: len(last)]


class Alone(Noting):
    """Waits inside until a second trial is about to ask."""

    arrived = threading.Event()
    inside = 0

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        self.inside += 1
        assert self.arrived.wait(60.0)
        assert all(self.inside == 1 for _ in range(100_000)), "two threads are in the searcher at once"
        self.inside -= 1
        return super().suggest(ask)


class Arriving(Through):
    def sample_relative(self, study: Study, trial: Trial, search_space: Any) -> Any:
        if trial.number == 1:
            Alone.arrived.set()
        return super().sample_relative(study, trial, search_space)


def test_one_thread_at_a_time_asks_the_searcher(told: list[tuple[Any, ...]]) -> None:
    Alone.arrived.clear()
    study = optuna.create_study(sampler=Arriving(Alone(told), LINE, 0))
    study.optimize(lambda trial: trial.suggest_float("x", -1, 1), n_trials=2, n_jobs=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2


# -- constraints -------------------------------------------------------------------------------------------------------

constrained = pytest.mark.skipif(
    not hasattr(optuna.trial.Trial, "set_constraint"), reason="before Optuna 5 its own samplers keep the constraints"
)


@constrained
def test_constraints_are_told_with_the_last_report(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told)
    trial = asked(study)
    trial.report(4.0, 5)
    trial.set_constraint("size", 2.0)
    trial.set_constraint("time", -1.0)
    study.tell(trial, 3.0)
    assert seen(study, told)[1] == (0, 1, 5.0, (3.0,), (2.0, -1.0), 2.0)


@constrained
def test_a_trial_that_sets_no_constraint_violates_it_where_others_set_one(told: list[tuple[Any, ...]]) -> None:
    study = study_of(told)
    without, pruned, trial, running = (asked(study) for _ in range(4))
    study.tell(without, 1.0)
    pruned.report(1.0, 2)
    study.tell(pruned, state=PRUNED)
    assert seen(study, told)[0][4:] == ((), 0.0), "so far nobody has said that there are constraints"
    trial.set_constraint("size", -2.0)
    study.tell(trial, 2.0)
    running.report(0.0, 1)  # what it violates is not known before it ends
    found = [what for what in seen(study, told) if len(what) == 6]
    assert [(what[0], what[4], what[5]) for what in found] == [
        (0, (math.inf,), math.inf),
        (1, (math.inf,), math.inf),
        (2, (-2.0,), 0.0),
    ]


@constrained
@pytest.mark.parametrize("name", OURS)
def test_constraints_that_nothing_meets_or_many_miss_are_no_trouble(name: str) -> None:
    def objective(trial: Trial) -> float:
        config: Any = suggest(SPACE, trial)
        if trial.number % 3 == 2:
            return float(config["x"])
        trial.set_constraint("never", 1.0 + config["width"])
        return float(config["x"])

    study = optuna.create_study(sampler=ours(OURS[name](), SPACE, 0))
    study.optimize(objective, n_trials=15)
    assert len(study.trials) == 15


# -- what it suggests --------------------------------------------------------------------------------------------------


def test_every_distribution_has_a_place_and_its_values_come_back() -> None:
    from fanwise.tune.for_optuna.with_optuna import place_of

    seen_ones: Sequence[Any] = [
        distributions.FloatDistribution(-1, 1),
        distributions.FloatDistribution(1e-5, 1e-1, log=True),
        distributions.FloatDistribution(0.1, 0.9, step=0.1),
        distributions.FloatDistribution(0.05, 0.95, step=0.1),
        distributions.IntDistribution(-3, 7),
        distributions.IntDistribution(1, 1024, log=True),
        distributions.IntDistribution(3, 15, step=4),
        distributions.CategoricalDistribution(["a", None, 2.5, True]),
        distributions.CategoricalDistribution([1, 1.0]),
    ]
    for distribution in seen_ones:
        place = place_of(distribution)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(50):
            trial = study.ask({"it": distribution})
            value = place.value(trial.params["it"])
            assert place.domain.contains(value), f"{value!r} for {distribution!r}"
            back, drawn = map(distribution.to_internal_repr, (place.param(value), trial.params["it"]))
            assert back == pytest.approx(drawn, rel=1e-12)
        for k in range(51):
            param = place.param(place.domain.from_unit(min(k / 50, 0.999999)))
            assert distribution._contains(distribution.to_internal_repr(param)), f"{param!r} for {distribution!r}"


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_categories_that_no_record_can_keep_are_chosen_too() -> None:
    kinds = [int, float, str]

    def objective(trial: Trial) -> float:
        return float(kinds.index(trial.suggest_categorical("kind", kinds)) + trial.suggest_float("x", 0, 1))

    study = optuna.create_study(sampler=optuna_sampler("tpe", seed=0))
    study.optimize(objective, n_trials=40)
    assert {trial.params["kind"] for trial in study.trials} == set(kinds)
    assert [trial.params["kind"] for trial in study.trials[-10:]].count(int) > 5


def test_a_searcher_without_more_ends_the_study() -> None:
    def objective(trial: Trial) -> float:
        config: Any = suggest(FEW, trial)
        return float(config["n"])

    study = optuna.create_study(sampler=optuna_sampler("tpe", FEW, seed=0))
    study.optimize(objective, n_trials=100)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE"] * 6 + ["PRUNED"]
    assert study.trials[-1].params == {}, "nothing was tried a second time"
    assert len({tuple(trial.params.items()) for trial in study.trials[:6]}) == 6


def test_a_loop_of_ask_and_tell_hears_that_there_is_nothing_more() -> None:
    study = optuna.create_study(sampler=optuna_sampler(GridSearcher(2), LINE))
    for _ in range(2):
        study.tell(asked(study), 1.0)
    with pytest.raises(optuna.TrialPruned, match="GridSearcher has nothing more to suggest: the study is over"):
        asked(study)


def test_what_trials_have_in_common_may_be_tried_again_for_there_may_be_more_to_a_trial() -> None:
    def objective(trial: Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return float(trial.suggest_float(f"{kind}_size", 0, 1))

    study = optuna.create_study(sampler=optuna_sampler("tpe", seed=0))
    study.optimize(objective, n_trials=12)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 12


def test_chance_is_made_from_the_seed_and_the_number_of_the_trial() -> None:
    def params(seed: int, num_before: int) -> Mapping[str, Any]:
        study = optuna.create_study(sampler=optuna_sampler("random", seed=seed))
        for _ in range(num_before):
            study.ask()  # asks for nothing
        trial = study.ask()
        for name in ("x", "y"):
            trial.suggest_float(name, -1, 1)
        return dict(trial.params)

    assert params(1, 3) == params(1, 3)
    assert len({tuple(params(seed, before).values()) for seed in (1, 2) for before in (0, 1)}) == 4
    assert params(1, 0)["x"] != params(1, 0)["y"]


def test_without_a_seed_two_samplers_differ() -> None:
    def first() -> float:
        return float(asked(optuna.create_study(sampler=optuna_sampler("random", LINE))).params["x"])

    assert first() != first()


def test_a_pickled_sampler_goes_on_where_it_stood() -> None:
    def run(study: Study, num_trials: int) -> list[float]:
        study.optimize(lambda trial: suggest(SPACE, trial)["width"], n_trials=num_trials)
        return [trial.params["x"] for trial in study.trials]

    whole = run(optuna.create_study(sampler=optuna_sampler("sobol", SPACE, seed=3)), 30)
    study = optuna.create_study(sampler=optuna_sampler("sobol", SPACE, seed=3))
    run(study, 12)
    study.sampler = pickle.loads(pickle.dumps(study.sampler))
    assert run(study, 18) == whole


def test_a_parameter_that_was_fixed_stays_so() -> None:
    with_fixed = optuna.samplers.PartialFixedSampler({"x": 0.5}, optuna_sampler("local", SPACE, seed=0))
    study = optuna.create_study(sampler=with_fixed)
    study.optimize(lambda trial: suggest(SPACE, trial)["width"], n_trials=20)
    assert {trial.params["x"] for trial in study.trials} == {0.5}
    assert len({trial.params["width"] for trial in study.trials}) > 5


# -- how it fails ------------------------------------------------------------------------------------------------------


class Raising(Noting):
    def observe(self, observation: Observation) -> None:
        raise ArithmeticError("no numbers today")


def test_a_searcher_that_raises_is_named_with_the_trial() -> None:
    study = optuna.create_study(sampler=optuna_sampler(Raising([]), LINE))
    with pytest.raises(ArithmeticError, match="no numbers today") as raised:
        study.optimize(lambda trial: trial.suggest_float("x", -1, 1), n_trials=5)
    assert raised.value.__notes__ == ["Raising raised this, asked by Optuna for trial 1."]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]


class Outside(Noting):
    def suggest(self, ask: Ask) -> Mapping[str, object]:
        return {"x": 5.0}


def test_a_suggestion_outside_the_space_is_named() -> None:
    study = optuna.create_study(sampler=optuna_sampler(Outside([]), LINE))
    with pytest.raises(ValueError, match=r"x = 5.0 is not in uniform\(-1.0, 1.0\)"):
        asked(study)


def test_wrong_arguments_are_told_with_what_is_right() -> None:
    with pytest.raises(ValueError, match=r"searcher must be one of random, .*, got 'tpee'; did you mean 'tpe'\?"):
        optuna_sampler("tpee")
    not_one: Any = TPESearcher
    with pytest.raises(TypeError, match=r'takes a searcher, got .*\n  right:  optuna_sampler\("tpe"\)'):
        optuna_sampler(not_one)
    seed: Any = 1.5
    with pytest.raises(TypeError, match=r"seed must be an int or None, got 1\.5"):
        optuna_sampler("tpe", seed=seed)
    for domain in (ordinal([1, 2, 4]), reverseloguniform(0.9, 0.999)):
        with pytest.raises(ValueError, match=r"'size' cannot be asked for in Optuna: .* has no counterpart there"):
            optuna_sampler("tpe", {"size": domain, "rate": loguniform(0.01, 1)})
    with pytest.raises(ValueError, match="num_points: 'y' is no hyperparameter"):
        optuna_sampler(GridSearcher({"y": 3}), LINE)
    study = optuna.create_study(sampler=optuna_sampler(GridSearcher({"y": 3})))
    with pytest.raises(ValueError, match="num_points: 'y' is no hyperparameter"):
        study.optimize(lambda trial: trial.suggest_float("x", -1, 1), n_trials=2)


def test_the_searcher_that_was_handed_in_stays_as_it_is() -> None:
    searcher = OURS["tpe"]()
    before = dict(vars(searcher))
    asked(optuna.create_study(sampler=optuna_sampler(searcher, LINE)))
    assert vars(searcher) == before


def test_the_example_runs() -> None:
    from fanwise.tune.for_optuna import sampler

    assert doctest.testmod(sampler).failed == 0


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "fanwise.tune.for_optuna.with_optuna", raising=False)
    with pytest.raises(NotInstalled, match=r"optuna_sampler needs Optuna. Install it: pip install 'fanwise\[optuna\]'"):
        optuna_sampler("tpe")

"""Optuna's samplers as searchers: the study that they see, their suggestions and their errors."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from searcher_checks_of_ours import CHECKS_OF_A_MODEL, CHECKS_OF_OURS

from fanwise.testing import searcher_checks as contract
from fanwise.testing.searcher_checks import SPACES, Check, Make, SearcherSimulation, check_searcher, started
from fanwise.tune import (
    ASHA,
    FIFO,
    OptunaSearcher,
    Space,
    StoppingCriterion,
    choice,
    constant,
    finrange,
    logfinrange,
    lograndint,
    loguniform,
    open_search,
    ordinal,
    parameter,
    qlograndint,
    qrandint,
    quniform,
    randint,
    reverseloguniform,
    uniform,
)
from fanwise.tune.core.actions import Action, Start
from fanwise.tune.core.events import Event
from fanwise.tune.rng import KeyedRandom
from fanwise.tune.schedulers.scheduler import Scheduler
from fanwise.tune.searchers import Observation, Searcher, SuggestContext, resolve_searcher
from fanwise.tune.searchers.points import FirstPoints
from fanwise.tune.simulate import FunctionTable, simulate

optuna: Any = pytest.importorskip("optuna")
with_optuna: Any = pytest.importorskip("fanwise.tune.searchers.with_optuna")

LINE = Space({"x": uniform(-1, 1)})
FEW = Space({"x": choice(["a", "b"]), "n": parameter(randint(0, 2), when={"x": "b"}), "depth": 3})
OURS: dict[str, Make] = {
    "TPE": lambda: OptunaSearcher("TPESampler", n_startup_trials=8),
    "NSGA-II behind points": lambda: FirstPoints([{}, {}], OptunaSearcher("NSGAIISampler", population_size=4)),
}
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


# Two slow checks are left to the soak run: `test_last_valid_report_of_a_trial_counts` and schedulers/test_seeds.py
# show the same. Other samplers get their trials in the same way, so they run only the checks that depend on a sampler.
LONG_CHECKS = (contract.rolled_back_reports_have_no_effect, contract.same_seed_and_reports_give_the_same_suggestions)
SHORT_CHECKS = [check for check in CHECKS_OF_A_MODEL if check not in LONG_CHECKS]
CHECKS_OF_A_SAMPLER = (contract.replayed_suggestions_restore_the_state, contract.losses_can_all_be_equal_or_infinite)


@pytest.mark.parametrize(
    ("name", "check"),
    [(name, check) for name in OURS for check in (SHORT_CHECKS if name == "TPE" else CHECKS_OF_A_SAMPLER)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_samplers_of_optuna_keep_the_main_parts_of_the_contract(name: str, check: Check) -> None:
    check_searcher(OURS[name], [check])


@pytest.mark.soak
@pytest.mark.parametrize("check", CHECKS_OF_OURS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OURS)
def test_samplers_of_optuna_keep_the_contract(name: str, check: Check) -> None:
    check_searcher(OURS[name], [check])


class Seeing(optuna.samplers.RandomSampler):  # type: ignore[misc]  # checked alike without Optuna
    """Samples at random, and records the trials of the study at each call."""

    seen: list[list[tuple[str, dict[str, Any], list[float] | None, dict[int, float]]]] = []  # noqa: RUF012  # one search
    directions: list[str] = []  # noqa: RUF012

    def before_trial(self, study: Any, trial: Any) -> None:
        type(self).directions = [direction.name for direction in study.directions]
        self.seen.append(
            [
                (one.state.name, one.params, one.values, one.intermediate_values)
                for one in study.get_trials(deepcopy=False)
                if one.number != trial.number
            ]
        )


@pytest.fixture
def play() -> SearcherSimulation:
    Seeing.seen, Seeing.directions = [], []
    return SearcherSimulation(lambda: OptunaSearcher(Seeing), LINE)


def observed(
    play: SearcherSimulation, trial_id: int, *losses: float, iter: int = 1, violations: tuple[float, ...] = ()
) -> None:
    config = play.trials[trial_id].config
    play.searcher.observe(Observation(trial_id, config, iter, 10.0 * iter, losses, {}, violations))


def states(play: SearcherSimulation) -> list[str]:
    """Return the states of the trials that the sampler sees at its next call."""
    play.suggest()
    return [state for state, *_ in Seeing.seen[-1]]


def test_sampler_sees_running_trials_and_how_the_others_ended(play: SearcherSimulation) -> None:
    for _ in range(5):
        play.suggest()
    for trial_id, status in enumerate(("Completed", "Stopped", "Failed", "Completed")):
        observed(play, trial_id, 1.0 + trial_id if trial_id < 3 else math.inf)
        play.end(trial_id, status)
    assert states(play) == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "RUNNING"]
    complete, pruned, *_, running = Seeing.seen[-1]
    assert (complete[1], complete[2]) == (play.suggestions[0], [1.0])
    assert pruned[3] == {10: 2.0}, "a trial that was stopped has its last report, at its resource"
    assert running[1] == play.suggestions[4]


def test_last_valid_report_of_a_trial_counts(play: SearcherSimulation) -> None:
    play.suggest()
    for iter, loss in enumerate((5.0, 3.0, 4.0, 0.0), start=1):
        observed(play, 0, loss, iter=iter)
    play.searcher.on_rollback(0, 3)
    play.end(0, "Completed")
    assert states(play) == ["COMPLETE"]
    assert Seeing.seen[-1][0][2] == [4.0]


def test_paused_trial_is_a_result_until_it_resumes(play: SearcherSimulation) -> None:
    play.suggest()
    config = play.trials[0].config
    observed(play, 0, 2.0)
    del play.trials[0]  # paused: it neither runs nor is over
    assert states(play) == ["PRUNED"]
    assert Seeing.seen[-1][0][3] == {10: 2.0}
    play.trials[0] = type(play.trials[1])(config)
    assert states(play)[0] == "RUNNING"
    observed(play, 0, 1.0, iter=2)
    play.end(0, "Completed")
    assert states(play)[0] == "COMPLETE"
    assert Seeing.seen[-1][0][2] == [1.0]


def test_study_minimizes_each_objective(play: SearcherSimulation) -> None:
    for _ in range(3):
        play.suggest()
    play.end(2, "Failed")
    observed(play, 0, 1.0, -2.0)
    observed(play, 1, 1.0, -3.0)
    play.end(0, "Completed")
    play.end(1, "Stopped")
    assert states(play) == ["COMPLETE", "PRUNED", "FAIL"]
    assert Seeing.directions == ["MINIMIZE", "MINIMIZE"]
    assert Seeing.seen[-1][0][2] == [1.0, -2.0]


def test_study_has_configurations_that_the_sampler_did_not_suggest(play: SearcherSimulation) -> None:
    play.suggest()
    play.trials[7] = type(play.trials[0])({"x": 0.125})
    assert states(play) == ["RUNNING", "RUNNING"]
    assert Seeing.seen[-1][1][1] == {"x": 0.125}


@pytest.mark.parametrize("sampler", ["TPESampler", "NSGAIISampler"])
def test_sampler_avoids_violated_constraints(sampler: str) -> None:
    """Both prefer who meets them: from the middle of the search on they stay where most do."""

    def train(config: Mapping[str, Any], epoch: int) -> tuple[dict[str, float], float]:
        return {"loss": config["x"], "size": -config["x"]}, 1.0

    space = {"x": uniform(-1, 1), "y": uniform(-1, 1), "z": uniform(-1, 1), "max_epochs": 1}
    options = {"population_size": 10} if sampler == "NSGAIISampler" else {}

    def violating(constraints: list[str]) -> int:
        searcher = OptunaSearcher(sampler, **options)
        scheduler = FIFO(searcher, metric="loss", constraints=constraints)
        return sum(config["x"] < -0.5 for config in tried(scheduler, train, space, 100)[50:])

    assert violating(["size <= 0.5"]) < violating([]) - 10


def tried(scheduler: Scheduler, train: Any, space: Any, number: int) -> list[Mapping[str, Any]]:
    """Return the configurations of `number` trials, in the order of their starts."""
    found = list[Mapping[str, Any]]()

    def note(event: Event, actions: list[Action]) -> None:
        found.extend(action.config for action in actions if isinstance(action, Start))

    stop = StoppingCriterion(max_num_trials_started=number)
    simulate(scheduler, FunctionTable(train, space), stop, n_workers=4, seed=0, on_event=note)
    return found


def test_values_of_every_domain_survive_the_round_trip_through_optuna() -> None:
    chance = KeyedRandom("values")
    for space in (*SPACES.values(), Space({"x": choice([True, 1, 1.5, "1"])})):
        for domain in space.domains.values():
            seen_by_optuna = with_optuna.parameter_mapping(domain)
            for u in (0.0, 0.999999, *(chance.random() for _ in range(50))):
                value = domain.from_unit(u)
                param = seen_by_optuna.to_param(value)
                distribution = seen_by_optuna.distribution
                assert distribution._contains(distribution.to_internal_repr(param)), f"{param!r} for {value!r}"
                back = seen_by_optuna.to_value(param)
                assert type(back) is type(value) and back == value, f"{value!r} of {domain!r} came back as {back!r}"


def asked(searcher: Searcher, space: Space, number: int, pending: Mapping[int, Any]) -> Mapping[str, object] | None:
    return searcher.suggest(SuggestContext(number, number, space, pending=pending))


def everything(make: Make, space: Space, *, n_running: int) -> list[Mapping[str, object]]:
    """Return all suggestions of a searcher, with `n_running` trials at a time."""
    searcher, pending, found = started(make, space), dict[int, Mapping[str, object]](), list[Mapping[str, object]]()
    for number in range(100):
        config = asked(searcher, space, number, pending)
        if config is not None:
            found.append(config)
            pending[number] = config
        if config is None and not pending:
            return found
        if config is None or len(pending) == n_running:
            over = next(iter(pending))
            searcher.observe(Observation(over, pending.pop(over), 1, 1.0, (float(over % 3),), {}))
            searcher.on_end(over, "Failed" if over == 2 else "Completed")
    raise AssertionError("it never said that it has nothing more")


@pytest.mark.parametrize("n_running", [1, 3, 100])
@pytest.mark.parametrize("sampler", ["TPESampler", "BruteForceSampler", "NSGAIISampler"])
def test_each_configuration_of_a_finite_space_is_suggested_once(sampler: str, n_running: int) -> None:
    found = everything(lambda: OptunaSearcher(sampler), FEW, n_running=n_running)
    assert sorted(found, key=repr) == sorted(FEW.grid(3), key=repr)


@pytest.mark.parametrize("n_running", [1, 3, 100])
def test_grid_sampler_suggests_its_grid_once(n_running: int) -> None:
    grid: dict[str, list[float]] = {"x": [-1.0, 0.0, 0.5], "n": [1, 2]}
    space = Space({"x": uniform(-1, 1), "n": randint(0, 5)})
    points: list[dict[str, object]] = [{"x": 0.5, "n": 2}, {"x": 0.5, "n": 3}, {"x": -1.0, "n": 1}]
    found = everything(
        lambda: FirstPoints(points, OptunaSearcher("GridSampler", search_space=grid)), space, n_running=n_running
    )
    assert found[:3] == points
    assert len(found) == 7
    assert all({"x": x, "n": n} in found for x in grid["x"] for n in grid["n"])


def test_late_suggestion_is_suggested_again() -> None:
    searcher = started(lambda: OptunaSearcher("RandomSampler"), LINE)
    late = asked(searcher, LINE, 0, {})
    assert asked(searcher, LINE, 1, {0: {"x": 0.5}}) == late, "trial 0 runs with a random configuration"
    assert asked(searcher, LINE, 2, {0: {"x": 0.5}, 1: late}) != late


def test_replayed_suggestion_counts_although_the_sampler_would_suggest_another() -> None:
    searcher = started(lambda: OptunaSearcher("RandomSampler"), LINE)
    searcher.replay_suggestion(SuggestContext(0, 0, LINE), {"x": 0.25})
    searcher.observe(Observation(0, {"x": 0.25}, 1, 1.0, (1.0,), {}))
    searcher.on_end(0, "Completed")
    again = started(lambda: OptunaSearcher("RandomSampler"), LINE)
    first = asked(again, LINE, 0, {})
    assert asked(searcher, LINE, 1, {}) not in ({"x": 0.25}, first)


BOWL = {"x": uniform(-1, 1), "y": uniform(-1, 1), "max_epochs": 1}


@pytest.mark.parametrize("recalls", [0, 1, 2])
@pytest.mark.parametrize("sampler", ["TPESampler", "QMCSampler"])
def test_late_suggestion_is_replayed_as_late(sampler: str, recalls: int) -> None:
    def third(recalls: int) -> object:
        searcher = started(lambda: OptunaSearcher(sampler), LINE)
        run = dict[int, Any]()
        suggested: list[Any] = []
        for number in range(2):
            ask = SuggestContext(number, number, LINE, pending=dict(run))
            if number < recalls:
                searcher.replay_suggestion(ask, late)
                suggested.append(late)
            else:
                suggested.append(searcher.suggest(ask))
            run[number] = {"x": 0.5} if number == 0 else suggested[-1]
        assert suggested == [late, late]
        for trial_id, config in run.items():
            searcher.observe(Observation(trial_id, config, 1, 1.0, (config["x"],), {}))
            searcher.on_end(trial_id, "Completed")
        return asked(searcher, LINE, 2, {})

    late = asked(started(lambda: OptunaSearcher(sampler), LINE), LINE, 0, {})
    assert third(recalls) == third(0) != late


def test_stateless_sampler_is_not_called_for_replayed_suggestions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searcher = started(lambda: OptunaSearcher("TPESampler"), LINE)
    with monkeypatch.context() as patch:
        for method in ("sample_relative", "sample_independent"):
            patch.setattr(optuna.samplers.TPESampler, method, None)
        for number in range(20):
            config = {"x": number / 20}
            searcher.replay_suggestion(SuggestContext(number, number, LINE), config)
            searcher.observe(Observation(number, config, 1, 1.0, ((config["x"] - 0.3) ** 2,), {}))
            searcher.on_end(number, "Completed")
    assert asked(searcher, LINE, 20, {}) not in [{"x": number / 20} for number in range(20)]


def test_replayed_suggestion_that_failed_is_not_suggested_again() -> None:
    for space in (LINE, Space({"x": choice([0.5])})):
        searcher = started(lambda: OptunaSearcher("TPESampler"), space)
        for number in range(2):
            searcher.replay_suggestion(SuggestContext(number, number, space), {"x": 0.5})
        searcher.on_end(1, "Failed")
        config = asked(searcher, space, 2, {})
        assert config is None if space.num_configurations else config not in (None, {"x": 0.5})


def test_replayed_suggestion_is_in_the_study_once(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[list[str]] = []

    def note(sampler: Any, study: Any, trial: Any) -> None:
        states.append([one.state.name for one in study.get_trials(deepcopy=False) if one.number != trial.number])

    monkeypatch.setattr(optuna.samplers.RandomSampler, "before_trial", note)
    searcher = started(lambda: OptunaSearcher("RandomSampler"), LINE)
    for number in range(3):
        running = {before: {"x": before / 4} for before in range(number)}
        searcher.replay_suggestion(SuggestContext(number, number, LINE, pending=running), {"x": number / 4})
    assert asked(searcher, LINE, 3, {number: {"x": number / 4} for number in range(3)}) is not None
    assert states[-1] == ["RUNNING"] * 3


class Broken(optuna.samplers.RandomSampler):  # type: ignore[misc]  # checked alike without Optuna
    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        raise ArithmeticError("no numbers today")


class Untidy(optuna.samplers.RandomSampler):  # type: ignore[misc]  # checked alike without Optuna
    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        raise ArithmeticError("no numbers today")


@pytest.mark.parametrize("sampler", [Broken, Untidy])
def test_exception_of_a_sampler_names_it(sampler: Any) -> None:
    with open_search(BOWL, FIFO(OptunaSearcher(sampler), metric="loss"), name="broken") as search:
        with pytest.raises(Exception, match="no numbers today") as raised:  # noqa: PT012  # one of the two raises
            trial = search.ask()
            assert trial is not None
            search.tell(trial, 1.0)
            search.ask()
        told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
        assert f"Raised by Optuna's {sampler.__name__}" in told


def test_sampler_for_one_objective_refuses_two() -> None:
    pytest.importorskip("cmaes")
    scheduler = FIFO(OptunaSearcher("CmaEsSampler"), metric=["loss", "size"])

    def train(config: Mapping[str, Any], epoch: int) -> tuple[dict[str, float], float]:
        return {"loss": config["x"], "size": 1.0}, 1.0

    with pytest.raises(Exception, match=r"(?s)multi-objective.*Optuna's CmaEsSampler"):
        simulate(scheduler, FunctionTable(train, BOWL), StoppingCriterion(max_num_trials_started=9))


def test_invalid_arguments_of_optuna_searcher_are_refused() -> None:
    with pytest.raises(TypeError, match=r"pass the class and the options: OptunaSearcher\(RandomSampler, \.\.\.\)"):
        OptunaSearcher(optuna.samplers.RandomSampler())
    with pytest.raises(TypeError, match="takes no seed; it is derived from the seed of the search"):
        OptunaSearcher("TPESampler", seed=3)
    for searcher, problem in (
        (OptunaSearcher("TPESample"), r"optuna.samplers has no 'TPESample'; did you mean 'TPESampler'\?"),
        (OptunaSearcher("TPESampler", n_startup=3), "unexpected keyword argument 'n_startup'"),
        (OptunaSearcher("PartialFixedSampler"), "got an unexpected keyword argument 'seed'"),
        (OptunaSearcher(lambda seed: seed), "must return an Optuna sampler, but returned 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=problem):
            searcher.check(LINE)


def test_scheduler_takes_a_sampler_by_name() -> None:
    by_name = ASHA(metric="loss", max_t=9, searcher="optuna:TPESampler")
    assert by_name.describe()["searcher"] == OptunaSearcher("TPESampler").describe()
    with pytest.raises(ValueError, match=r"optuna.samplers has no 'TPESample'; did you mean 'TPESampler'\?"):
        ASHA(metric="loss", max_t=9, searcher="optuna:TPESample").check(LINE)
    with pytest.raises(ValueError, match=r"searcher must be one of random, .*bayesopt, optuna:NAME, got 'optuna'"):
        ASHA(metric="loss", max_t=9, searcher="optuna")


def test_bayesopt_is_the_gp_sampler() -> None:
    by_name, by_class = resolve_searcher("bayesopt"), OptunaSearcher("GPSampler")
    assert by_name is not None and by_name.describe() == by_class.describe()
    assert by_name.libraries == by_class.libraries == (*OptunaSearcher("TPESampler").libraries, "torch")
    assert by_name.suggest_timeout_s == 10.0


def test_resumed_search_with_the_gp_sampler_suggests_the_same() -> None:
    pytest.importorskip("torch")

    def make() -> Searcher:
        return OptunaSearcher("GPSampler", n_startup_trials=3)

    suggestions = SearcherSimulation(make, LINE).run(30)
    assert len(suggestions) >= 8
    assert SearcherSimulation(make, LINE, replayed=suggestions[:-2]).run(30) == suggestions


def test_sampler_may_be_created_by_a_function() -> None:
    samplers = optuna.samplers
    searcher = started(
        lambda: OptunaSearcher(lambda seed: samplers.PartialFixedSampler({"x": 0.5}, samplers.TPESampler(seed=seed))),
        Space(BOWL),
    )
    config = asked(searcher, Space(BOWL), 0, {})
    assert config is not None and config["x"] == 0.5


# Distributions of Optuna for the domains of a space.

Float, Int, Categorical = (
    getattr(optuna.distributions, f"{kind}Distribution") for kind in ("Float", "Int", "Categorical")
)


@pytest.mark.parametrize(
    ("entry", "distribution"),
    [
        (uniform(-1, 1), Float(-1.0, 1.0)),
        (loguniform(1e-5, 1), Float(1e-5, 1.0, log=True)),
        (randint(1, 8), Int(1, 8)),
        (lograndint(8, 1024), Int(8, 1024, log=True)),
        (choice(["x", 3, None, True, 0.5]), Categorical(["x", 3, None, True, 0.5])),
        (quniform(0, 1, 0.1), Float(0.0, 1.0, step=0.1)),
        (qrandint(8, 64, 8), Int(8, 64, step=8)),
        (finrange(0.05, 0.95, 10), Float(0.05, 0.95, step=0.1)),
        (finrange(1, 10, 4, cast_int=True), Int(1, 10, step=3)),
        (10, Categorical([10])),
        (parameter(uniform(0, 1), when={"y": [1, 2]}, prior=0.1), Float(0.0, 1.0)),
    ],
    ids=str,
)
def test_domain_becomes_the_distribution_with_the_same_values(entry: object, distribution: object) -> None:
    assert with_optuna.distributions(Space({"x": entry, "y": randint(1, 3)}))["x"] == distribution


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (reverseloguniform(0.9, 0.99), "'x' = reverseloguniform(0.9, 0.99) cannot be converted to an Optuna"),
        (qlograndint(8, 64, 8), "'x' = qlograndint(8, 64, 8) cannot be converted to an Optuna"),
        (ordinal([1, 2, 9]), "'x' = ordinal([1, 2, 9], kind='nn') cannot be converted to an Optuna"),
        (logfinrange(1, 100, 3), "'x' = logfinrange(1.0, 100.0, 3) cannot be converted to an Optuna"),
        (quniform(0, 1, 1 / 3), "'x' = quniform(0.0, 1.0, 0.3333333333333333) cannot be converted to an Optuna"),
        (finrange(0, 1, 4), "'x' = finrange(0.0, 1.0, 4) cannot be converted to an Optuna"),
        (finrange(0, 10, 4, cast_int=True), "'x' = finrange(0, 10, 4, cast_int=True) cannot be converted to an Optuna"),
        (constant([1]), "'x' cannot be converted to an Optuna distribution: [1] is neither"),
    ],
)
def test_domain_without_an_equal_distribution_is_refused(entry: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        with_optuna.distributions(Space({"x": entry, "y": randint(1, 3)}))
    assert text in str(caught.value)

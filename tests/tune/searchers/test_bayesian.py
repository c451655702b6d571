"""Bayesian optimization: what it is asked for, on functions whose best value is known."""

import importlib
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch

from fanwise.base.errors import NotInstalled
from fanwise.testing import searcher_contract as contract
from fanwise.testing.searcher_contract import CHECKS, MODEL_CHECKS, Check, begun, observed
from fanwise.tune import BayesianOptimization, BayesianSearcher, StoppingCriterion
from fanwise.tune.hypervolume import volume
from fanwise.tune.searchers import Ask, Observation, Searcher
from fanwise.tune.searchers.history import Data
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.spaces import Space, choice, loguniform, parameter, randint, uniform

PLANE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
MIXED = Space({
    "rate": loguniform(1e-4, 1),
    "layers": randint(1, 6),
    "kind": choice(["a", "b", "c"]),
    "beta": parameter(uniform(0, 1), when={"kind": ["b", "c"]}),
})  # fmt: skip
Losses = Callable[[Mapping[str, object]], tuple[float, ...]]


@pytest.fixture(scope="module", autouse=True)
def _libraries_loaded() -> None:
    """BoTorch, loaded before a test begins: threadpoolctl, which it loads, leaves a variable in the environment."""
    importlib.import_module("fanwise.tune.searchers.surrogate")


def few() -> BayesianSearcher:
    """With little to do for each suggestion."""
    return BayesianSearcher(5, num_candidates=16)


# A suggestion takes some tenths of a second, and a check asks hundreds of times: these are what a model can break.
DECISIVE = (
    contract.suggestions_are_configurations_of_the_space,
    contract.void_reports_are_forgotten,
    contract.recall_leads_to_where_suggest_did,
    contract.it_draws_no_global_chance,
)


@pytest.mark.parametrize("check", DECISIVE, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_of_searchers(check: Check) -> None:
    check(few)


def test_it_repeats_nothing_while_others_are_left() -> None:
    contract.none_comes_twice_while_others_are_left(few)


@pytest.mark.soak
@pytest.mark.parametrize("check", [*CHECKS, *MODEL_CHECKS], ids=lambda check: check.__name__)
def test_it_keeps_the_whole_contract_of_searchers(check: Check) -> None:
    check(lambda: BayesianSearcher(3, num_candidates=64))


def played(
    searcher: Searcher, space: Space, losses: Losses, *, count: int, seed: int = 0, constraint: str | None = None
) -> list[tuple[Mapping[str, object], tuple[float, ...]]]:
    """One trial after the other; the last of the losses is the violation if there is a constraint."""
    searcher.begin(space, seed)
    found: list[tuple[Mapping[str, object], tuple[float, ...]]] = []
    for number in range(count):
        config = searcher.suggest(Ask(number, number, space, seed=seed))
        assert config is not None
        got = losses(config)
        found.append((config, got))
        violations = () if constraint is None else got[-1:]
        observation = Observation(
            number,
            config,
            1,
            1.0,
            got[: len(got) - len(violations)],
            {},
            violations,
            sum(max(each, 0.0) for each in violations),
        )
        searcher.observe(observation)
        searcher.on_end(number, "Completed")
    return found


def bowl(config: Mapping[str, object]) -> tuple[float, ...]:
    return ((float(str(config["x"])) - 0.7) ** 2 + (float(str(config["y"])) - 0.2) ** 2,)


def mixed(config: Mapping[str, object]) -> tuple[float, ...]:
    """0 at rate 0.01, 4 layers, kind b with beta 0.5; a loss of 1 and more for the other kinds."""
    rate = (math.log10(float(str(config["rate"]))) + 2) ** 2
    layers = 0.1 * abs(int(str(config["layers"])) - 4)
    beta = abs(float(str(config["beta"])) - 0.5) if config["kind"] == "b" else 1.0
    return (rate + layers + beta,)


def test_it_finds_the_bottom_of_a_bowl() -> None:
    found = played(BayesianSearcher(5, num_candidates=256), PLANE, bowl, count=18)
    assert min(losses[0] for _, losses in found) < 1e-3, "random search is at 0.02 here"


def test_logarithms_integers_categories_and_conditions_are_learnt() -> None:
    found = played(BayesianSearcher(8, num_candidates=256), MIXED, mixed, count=26)
    best, (loss,) = min(found, key=lambda pair: pair[1])
    assert best["kind"] == "b" and loss < 0.4, "of a thousand random ones, the best percent are below 0.5"
    assert sum(config["kind"] == "b" for config, _ in found[-10:]) >= 6


def test_the_scale_of_the_losses_and_outliers_change_little() -> None:
    def scaled(config: Mapping[str, object]) -> tuple[float, ...]:
        x = float(str(config["x"]))
        return (1e300 if x < 0.1 else 1e-6 * bowl(config)[0] - 1e3,)

    found = played(BayesianSearcher(5, num_candidates=256), PLANE, scaled, count=18)
    assert min(bowl(config)[0] for config, _ in found) < 3e-3


def test_it_keeps_away_from_where_trials_fail() -> None:
    searcher = BayesianSearcher(6, num_candidates=128)
    searcher.begin(PLANE, 0)
    failed = []
    for number in range(22):
        config = searcher.suggest(Ask(number, number, PLANE))
        assert config is not None
        fails = float(str(config["x"])) > 0.5  # the bowl's bottom is in there
        failed.append(fails)
        if not fails:
            searcher.observe(observed(number, config, 1, bowl(config)[0]))
        searcher.on_end(number, "Failed" if fails else "Completed")
    assert sum(failed[:10]) >= 3, "nobody knows yet"
    assert sum(failed[-10:]) <= 4


def test_constraints_are_met_as_far_as_they_are_known() -> None:
    def losses(config: Mapping[str, object]) -> tuple[float, ...]:
        return bowl(config)[0], float(str(config["x"])) - 0.5  # x <= 0.5: the best is (0.5, 0.2)

    found = played(BayesianSearcher(5, num_candidates=256), PLANE, losses, count=20, constraint="x <= 0.5")
    feasible = [loss for _, (loss, violation) in found if violation <= 0.0]
    assert min(feasible) < 0.04 + 0.005
    assert sum(violation <= 0.02 for _, (_, violation) in found[-10:]) >= 8


def test_what_never_was_feasible_is_looked_for() -> None:
    def losses(config: Mapping[str, object]) -> tuple[float, ...]:
        x, y = float(str(config["x"])), float(str(config["y"]))
        return x, math.hypot(x - 0.93, y - 0.07) - 0.06  # about a percent of the plane

    found = played(BayesianSearcher(5, num_candidates=256), PLANE, losses, count=20, constraint="in a small circle")
    assert any(violation <= 0.0 for _, (_, violation) in found)


def test_two_objectives_get_a_front() -> None:
    def losses(config: Mapping[str, object]) -> tuple[float, ...]:
        x, y = float(str(config["x"])), float(str(config["y"]))
        return x * x + y, (x - 1) ** 2 + y  # the front is y = 0

    found = played(BayesianSearcher(6, num_candidates=128), PLANE, losses, count=22)
    whole = 1.0 - 1.0 / 6.0  # the area beyond sqrt(a) + sqrt(b) = 1, up to (1, 1)
    assert volume([losses for _, losses in found], (1.0, 1.0)) > 0.8 * whole, "random search is at 0.6"


def spread(configs: list[Mapping[str, object]]) -> float:
    """The distance between neighbours, on average."""
    points = np.array([[float(str(config["x"])), float(str(config["y"]))] for config in configs])
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 9.0 * np.eye(len(points))
    return float(distances.min(axis=1).mean())


def test_many_workers_that_ask_at_once_get_spread_configurations() -> None:
    searcher = BayesianSearcher(8, num_candidates=256)
    played(searcher, PLANE, bowl, count=12)
    pending: dict[int, Mapping[str, object]] = {}
    alone: list[Mapping[str, object]] = []
    for number in range(12, 28):
        for running, into in ((pending, pending), ({}, None)):
            config = searcher.suggest(Ask(number, number, PLANE, pending=dict(running)))
            assert config is not None
            if into is None:
                alone.append(config)
            else:
                into[number] = config
    assert len({tuple(config.items()) for config in pending.values()}) == 16
    assert spread(list(pending.values())) > 3 * spread(alone)


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_as_before")
def test_how_many_threads_torch_has_changes_no_bit_and_stays_as_it_is() -> None:
    played_with = []
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        played_with.append(played(few(), MIXED, mixed, count=9))
        assert torch.get_num_threads() == num_threads
    assert played_with[0] == played_with[1]


@pytest.mark.usefixtures("_threads_as_before")
def test_one_thread_is_for_this_thread_alone() -> None:
    from fanwise.tune.searchers.with_botorch import one_thread

    torch.set_num_threads(3)
    seen: list[int] = []
    inside, seen_all = threading.Event(), threading.Event()

    def other() -> None:
        seen.append(torch.get_num_threads())
        inside.wait()
        seen.append(torch.get_num_threads())
        seen_all.set()

    thread = threading.Thread(target=other)
    thread.start()
    with one_thread():
        assert torch.get_num_threads() == 1
        inside.set()
        seen_all.wait()
    thread.join()
    assert seen == [3, 3] and torch.get_num_threads() == 3


def test_torchs_own_chance_is_neither_read_nor_changed() -> None:
    found = []
    before = torch.get_rng_state()
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append(played(few(), MIXED, lambda config: (*mixed(config), 1.0), count=8))
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("losses", [(1.0, 1.0), (0.0, 0.0), (1e308, 1e308)])
def test_a_metric_of_constant_value_is_no_trouble(losses: tuple[float, float]) -> None:
    found = played(BayesianSearcher(2, num_candidates=16), MIXED, lambda config: losses, count=6)
    assert len({str(config) for config, _ in found}) == 6


def test_one_result_is_enough_for_a_model_if_that_is_asked_for() -> None:
    found = played(BayesianSearcher(1, num_candidates=16), PLANE, bowl, count=4)
    assert len({str(config) for config, _ in found}) == 4


def test_what_a_running_trial_has_reported_is_not_its_last_word() -> None:
    searcher = begun(lambda: BayesianSearcher(2, num_candidates=16), PLANE)
    configs = {}
    for trial_id in range(2):
        configs[trial_id] = dict(searcher.suggest(Ask(trial_id, trial_id, PLANE)) or {})
        searcher.observe(observed(trial_id, configs[trial_id], 1, 1.0 + trial_id))
    searcher.suggest(Ask(2, 2, PLANE, pending=configs))
    assert searcher._surrogate is None  # type: ignore[attr-defined]  # two trials run, none is over
    searcher.on_end(0, "Completed")
    searcher.on_end(1, "Completed")
    searcher.suggest(Ask(3, 3, PLANE))
    assert searcher._surrogate is not None  # type: ignore[attr-defined]


def test_broken_numbers_lead_to_random_configurations_and_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    searcher = few()
    searcher.begin(PLANE, 0)
    broken = Data(
        trial_ids_N=np.arange(3),
        rows_ND=np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
        losses_NM=np.array([[1.0], [math.nan], [2.0]]),
        violations_NC=np.empty((3, 0)),
        infeasibility_N=np.zeros(3),
        is_over_N=np.ones(3, bool),
        level=None,
    )
    chance = np.random.default_rng(0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            searcher.fit(broken, chance)
            rows = searcher.propose(np.empty((0, 2)), chance)
            assert rows.shape == (1, 2) and ((rows >= 0) & (rows < 1)).all()
    (record,) = caplog.records
    assert "the outcomes of a Gaussian process are not finite" in record.message


def test_simulated_searches_are_the_same_each_time_and_better_than_random() -> None:
    table = FunctionTable(lambda config, epoch: ({"loss": bowl(config)[0]}, 1.0), {**PLANE.domains, "max_epochs": 1})
    stop = StoppingCriterion(max_num_trials_started=16)
    scheduler = BayesianOptimization(metric="loss", num_init=5, random_seed=3)
    first, again = (simulate(scheduler, table, stop, n_workers=3) for _ in range(2))
    assert first.best is not None and first.best == again.best and first.best.value < 0.01


def test_without_botorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botorch", None)
    with pytest.raises(NotInstalled, match=r"pip install 'fanwise\[bo\]'"):
        BayesianOptimization(metric="loss")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="num_init must be at least 1, got 0"):
        BayesianSearcher(0)
    with pytest.raises(ValueError, match="num_candidates must be at least 1, got 0"):
        BayesianSearcher(num_candidates=0)

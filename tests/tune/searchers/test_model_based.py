"""ModelBasedSearcher, with trivial models."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
from searcher_checks_of_ours import CHECKS_OF_A_MODEL, CHECKS_OF_OURS

from fanwise.testing import searcher_checks as contract
from fanwise.testing.searcher_checks import SPACES, Check, SearcherSimulation, check_searcher, observation, started
from fanwise.tune.searchers import Searcher, SuggestContext
from fanwise.tune.searchers.encoding import Rows
from fanwise.tune.searchers.model_based import ModelBasedSearcher
from fanwise.tune.searchers.observations import TrainingData
from fanwise.tune.space import Space, choice, parameter, randint, uniform

LINE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})


class Near(ModelBasedSearcher):
    """Proposes rows near the best row."""

    def __init__(self, num_init: int = 4, levels: tuple[float, ...] = ()) -> None:
        super().__init__(num_init=num_init)
        self.levels = levels

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self.fits: list[TrainingData] = []

    def fit(self, data: TrainingData, rng: np.random.Generator) -> None:
        self.fits.append(data)
        self.best_D = data.rows_ND[data.loss_N.argmin()]
        self.width = rng.random()

    def propose(self, pending_PD: Rows, rng: np.random.Generator) -> Rows:
        self.pending = pending_PD
        steps = rng.normal(0.0, 0.05 * self.width, (20, self.encoder.num_dims))
        rows: Rows = self.best_D + steps
        return self.encoder.snap(rows)


class Stubborn(Near):
    """Proposes the best row."""

    def propose(self, pending_PD: Rows, rng: np.random.Generator) -> Rows:
        rows: Rows = self.best_D[None]
        return rows


@pytest.mark.parametrize("check", CHECKS_OF_OURS, ids=lambda check: check.__name__)
def test_searcher_with_a_model_keeps_the_contract(check: Check) -> None:
    check_searcher(Near, [check])


# The checks that depend on the levels.
OF_LEVELS = (
    contract.suggestions_are_configurations_of_the_space,
    contract.rolled_back_reports_have_no_effect,
    contract.one_result_is_enough_to_continue,
)


@pytest.mark.parametrize(
    "check",
    [check if check in OF_LEVELS else pytest.param(check, marks=pytest.mark.soak) for check in CHECKS_OF_A_MODEL],
    ids=lambda check: check.__name__,
)
def test_searcher_with_levels_keeps_the_contract(check: Check) -> None:
    check_searcher(lambda: Near(levels=(1, 2)), [check])


def ask(number: int, space: Space, pending: Mapping[int, Mapping[str, object]] | None = None) -> SuggestContext:
    return SuggestContext(number, number, space, pending=pending or {})


def suggestion_of(searcher: Searcher, number: int, space: Space) -> Mapping[str, object]:
    config = searcher.suggest(ask(number, space))
    assert config is not None
    return config


def run_through(searcher: Searcher, space: Space, count: int, *, first: int = 0, loss: float | None = None) -> None:
    for number in range(first, first + count):
        config = suggestion_of(searcher, number, space)
        searcher.observe(observation(number, config, 1, float(number) if loss is None else loss))
        searcher.on_end(number, "Completed")


@pytest.mark.parametrize("name", ["few values", "few values and a condition", "one value", "constants only"])
@pytest.mark.parametrize("make", [Near, Stubborn])
@pytest.mark.parametrize("fails", [False, True])
def test_each_configuration_of_a_finite_space_is_proposed_once(name: str, make: type[Near], fails: bool) -> None:
    space = SPACES[name]
    searcher = started(lambda: make(1), space)
    suggested = []
    for number in range(10):
        config = searcher.suggest(ask(number, space))
        if config is None:
            break
        suggested.append(config)
        if not fails:
            searcher.observe(observation(number, config, 1, 1.0))
        searcher.on_end(number, "Failed" if fails else "Completed")
    assert len(suggested) == space.num_configurations
    assert len({repr(config) for config in suggested}) == len(suggested)
    assert searcher.suggest(ask(11, space)) is None


def test_configurations_of_other_trials_are_not_suggested() -> None:
    space = Space({"n": randint(0, 3)})
    searcher = started(lambda: Stubborn(1), space)
    searcher.observe(observation(0, {"n": 2}, 1, 0.5))
    pending = {7: {"n": 0}, 8: {"n": 3}}
    assert searcher.suggest(ask(9, space, pending)) == {"n": 1}
    searcher.on_end(7, "Failed")
    searcher.on_end(8, "Failed")
    assert searcher.suggest(ask(10, space)) is None


def test_late_suggestion_may_be_repeated() -> None:
    space = Space({"n": randint(0, 1)})
    searcher = started(lambda: Near(1), space)
    late = suggestion_of(searcher, 0, space)
    other = {"n": 1 - int(str(late["n"]))}
    assert searcher.suggest(SuggestContext(1, 1, space, pending={0: other})) == late


def test_first_suggestions_fill_the_space_evenly_until_there_are_results() -> None:
    searcher = started(lambda: Near(4), LINE)
    configs = [suggestion_of(searcher, number, LINE) for number in range(16)]
    assert sorted(int(4 * float(str(config["x"]))) for config in configs) == sorted([0, 1, 2, 3] * 4)
    assert searcher.fits == []  # type: ignore[attr-defined]
    assert len({repr(started(lambda: Near(4), LINE, seed).suggest(ask(0, LINE))) for seed in range(5)}) == 5


def test_every_second_of_the_first_suggestions_is_near_the_priors() -> None:
    space = Space({"x": parameter(uniform(0, 1), prior=0.25, confidence=0.99), "kind": choice(["a", "b"])})
    searcher = started(lambda: Near(50), space)
    near = [abs(float(str(suggestion_of(searcher, number, space)["x"])) - 0.25) < 0.04 for number in range(40)]
    assert all(near[::2])
    assert sum(near[1::2]) < 10


def test_first_suggestions_are_random_after_the_last_sobol_point() -> None:
    searcher = started(lambda: Near(4), LINE)
    assert len({repr(suggestion_of(searcher, number, LINE)) for number in range(300)}) == 300


def test_model_gets_pending_trials_without_a_result() -> None:
    searcher = started(lambda: Near(2), LINE)
    run_through(searcher, LINE, 2)
    pending = {5: {"x": 0.5, "y": 0.25}, 6: {"x": 0.75, "y": 0.5}}
    searcher.observe(observation(6, pending[6], 1, 0.1))
    searcher.suggest(SuggestContext(2, 7, LINE, pending=pending))
    np.testing.assert_array_equal(searcher.pending, [[0.5, 0.25]])  # type: ignore[attr-defined]


def test_model_is_not_fitted_again_without_new_results() -> None:
    searcher = started(lambda: Near(2), LINE)
    run_through(searcher, LINE, 2)
    for number in range(2, 18):
        searcher.suggest(ask(number, LINE))
    assert len(searcher.fits) == 1  # type: ignore[attr-defined]


def test_fit_serves_more_suggestions_if_there_are_more_trials() -> None:
    class Few(Near):
        _results_per_extra_suggestion: ClassVar[int] = 10

    searcher = started(lambda: Few(2), LINE)
    run_through(searcher, LINE, 30)
    # One each for 2 to 9 results, then one for two suggestions, and from 20 results on one for three.
    assert len(searcher.fits) == 8 + 5 + 3  # type: ignore[attr-defined]


def test_resumed_search_fits_once_and_suggests_the_same() -> None:
    for name, space in SPACES.items():
        whole = SearcherSimulation(Near, space)
        suggestions = whole.run(90)
        before = suggestions[: len(suggestions) - 3]
        resumed = SearcherSimulation(Near, space, replayed=before)
        assert resumed.run(90) == suggestions, name
        assert len(resumed.searcher.fits) <= 3, "earlier suggestions were computed again"  # type: ignore[attr-defined]


def test_model_learns_from_the_highest_level_with_enough_results() -> None:
    searcher = started(lambda: Near(2, (1, 3)), LINE)
    for trial_id in range(4):
        config = suggestion_of(searcher, trial_id, LINE)
        for iter in range(1, 4 if trial_id in (1, 3) else 3):
            searcher.observe(observation(trial_id, config, iter, 10 * trial_id + iter))
        searcher.on_end(trial_id, "Stopped")
    fits = searcher.fits  # type: ignore[attr-defined]
    assert [data.loss_N.tolist() for data in fits] == [[1, 11], [1, 11, 21]]
    searcher.suggest(ask(5, LINE))
    assert fits[-1].loss_N.tolist() == [13, 33]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="num_init must be at least 1, got 0"):
        Near(0)
    with pytest.raises(TypeError, match="num_init must be an int, got 1"):
        Near(1.5)  # type: ignore[arg-type]

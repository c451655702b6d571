"""LocalSearcher: what is drawn from the space, what is a neighbour of the best, and which is the best."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.testing.searcher_contract import begun, observed
from fanwise.tune.chance import Chance
from fanwise.tune.schedulers import LocalSearch
from fanwise.tune.searchers import Ask, LocalSearcher
from fanwise.tune.spaces import Space, randint

SPACE = Space({"x": randint(0, 10**6), "y": randint(0, 10**6), "max_epochs": 5})
BEST = {"x": 7, "y": 8, "max_epochs": 5}
OTHER = {"x": 1, "y": 2, "max_epochs": 5}


def searcher_of(probab_local: float = 1.0, num_init_random: int = 0) -> LocalSearcher:
    searcher = begun(lambda: LocalSearcher(probab_local, num_init_random), SPACE)
    assert isinstance(searcher, LocalSearcher)
    return searcher


def best_of(searcher: LocalSearcher) -> dict[str, object] | None:
    """What it makes neighbours of: those values that two suggestions or more out of 40 have in common."""
    suggestions = [dict(searcher.suggest(Ask(number, number, SPACE))) for number in range(40)]
    kept = {name: [config[name] for config in suggestions] for name in ("x", "y")}
    most = {name: max(set(values), key=values.count) for name, values in kept.items()}
    if all(values.count(most[name]) < 2 for name, values in kept.items()):
        return None
    for config in suggestions:
        assert sum(config[name] != most[name] for name in most) == 1, "exactly one hyperparameter is drawn anew"
    return {**most, "max_epochs": 5}


def test_the_first_ones_are_drawn_from_the_space_whatever_was_observed() -> None:
    searcher = searcher_of(1.0, 3)
    searcher.observe(observed(0, BEST, 1, 0.1))
    got = [searcher.suggest(Ask(number, number, SPACE)) for number in range(4)]
    assert got[:3] == [SPACE.sample(Chance(f"0/suggest/{number}")) for number in range(3)]
    assert (got[3]["x"] == 7) != (got[3]["y"] == 8)


def test_nothing_observed_leaves_only_the_space() -> None:
    assert best_of(searcher_of()) is None


def test_the_best_changes_in_exactly_one_hyperparameter() -> None:
    searcher = searcher_of()
    searcher.observe(observed(0, OTHER, 1, 0.5))
    searcher.observe(observed(1, BEST, 1, 0.4))
    assert best_of(searcher) == BEST


def test_a_probability_of_zero_is_random_search() -> None:
    searcher = searcher_of(0.0)
    searcher.observe(observed(1, BEST, 1, 0.4))
    assert best_of(searcher) is None


@pytest.mark.parametrize("probab_local", [0.2, 0.7])
def test_a_neighbour_comes_as_often_as_its_probability_says(probab_local: float) -> None:
    searcher = searcher_of(probab_local)
    searcher.observe(observed(0, BEST, 1, 0.4))
    got = [searcher.suggest(Ask(number, number, SPACE)) for number in range(1000)]
    near = sum(config["x"] == 7 or config["y"] == 8 for config in got)
    assert abs(near / 1000 - probab_local) < 0.06


def test_a_retried_trials_void_report_is_no_best() -> None:
    searcher = searcher_of()
    searcher.observe(observed(0, OTHER, 1, 0.5))
    searcher.observe(observed(1, BEST, 1, 0.6))
    searcher.observe(observed(1, BEST, 2, 0.001))
    assert best_of(searcher) == BEST
    searcher.on_rewind(1, 1)
    assert best_of(searcher) == OTHER
    searcher.observe(observed(1, BEST, 2, 0.45))
    assert best_of(searcher) == BEST


def test_the_best_stays_the_best_when_its_trial_is_over_and_the_earlier_of_equals_wins() -> None:
    searcher = searcher_of()
    searcher.observe(observed(0, BEST, 1, 0.4))
    searcher.observe(observed(1, OTHER, 1, 0.4))
    for trial_id, status in ((1, "Completed"), (0, "Failed")):
        searcher.on_end(trial_id, status)
        assert best_of(searcher) == BEST


FACTS = st.lists(
    st.tuples(st.sampled_from(["report", "rewind", "end"]), st.integers(0, 5), st.integers(1, 9)), max_size=80
)


@given(FACTS)
def test_the_best_is_the_smallest_loss_of_all_reports_that_count(facts: list[tuple[str, int, int]]) -> None:
    searcher = searcher_of()
    reports: dict[int, list[float]] = {}
    over: set[int] = set()
    for what, trial_id, number in facts:
        losses = reports.setdefault(trial_id, [])
        if trial_id in over:
            continue
        if what == "report":
            losses.append(number / 8)
            config = {"x": trial_id, "y": trial_id, "max_epochs": 5}
            searcher.observe(observed(trial_id, config, len(losses), number / 8))
        elif what == "rewind":
            del losses[number:]
            searcher.on_rewind(trial_id, number)
        else:
            over.add(trial_id)
            searcher.on_end(trial_id, "Completed")
        best = min(((min(losses), i) for i, losses in reports.items() if losses), default=None)
        got = searcher._best()
        assert (None if got is None else got["x"]) == (None if best is None else best[1])


def test_a_trial_may_be_rewound_to_a_loss_of_long_ago() -> None:
    searcher = searcher_of()
    searcher.observe(observed(0, BEST, 1, 0.5))
    searcher.observe(observed(0, BEST, 2, 0.3))
    for trial_id in range(1, 200):
        searcher.observe(observed(trial_id, OTHER, 1, 0.9))
        searcher.on_end(trial_id, "Completed")
    searcher.on_rewind(0, 1)
    assert searcher._best() == BEST


def test_what_stands_no_longer_does_not_pile_up() -> None:
    searcher = searcher_of()
    for trial_id in range(2000):
        for iter in range(1, 4):
            searcher.observe(observed(trial_id, BEST, iter, 1.0 / iter))
        searcher.on_end(trial_id, "Completed")
    assert len(searcher._ranked) < 200 and not searcher._living


def test_an_infinite_loss_is_no_best() -> None:
    searcher = searcher_of()
    searcher.observe(observed(0, OTHER, 1, float("-inf")))
    assert best_of(searcher) is None


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"probab_local must be a number from 0 to 1, got 1\.5"):
        LocalSearch(metric="loss", probab_local=1.5)
    with pytest.raises(TypeError, match="probab_local must be a number from 0 to 1, got 'often' of type str"):
        LocalSearch(metric="loss", probab_local="often")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_init_random must be at least 0"):
        LocalSearch(metric="loss", num_init_random=-1)
    with pytest.raises(TypeError, match="LocalSearch has no option 'prob_local'; did you mean 'probab_local'"):
        LocalSearch(metric="loss", prob_local=0.5)  # type: ignore[call-arg]

"""How trials are ranked of which a model learns the action."""

import numpy as np

from fanwise.tune.searchers.observations import TrainingData, best_first, ranks

INF = np.inf


def data(losses: list[tuple[float, ...]], infeasibility: list[float] | None = None) -> TrainingData:
    num = len(losses)
    return TrainingData(
        np.arange(num),
        np.zeros((num, 1)),
        np.array(losses, float),
        np.zeros((num, 0)),
        np.array([0.0] * num if infeasibility is None else infeasibility),
        np.ones(num, bool),
        None,
    )


def test_of_one_objective_the_loss_counts_and_equals_rank_alike() -> None:
    found = data([(3.0,), (1.0,), (3.0,), (2.0,)])
    assert best_first(found).tolist() == [1, 3, 0, 2]
    assert ranks(found).tolist() == [2, 0, 2, 1]


def test_what_violates_less_goes_before_what_violates_more_and_no_result_comes_last() -> None:
    found = data([(1.0,), (9.0,), (5.0,), (INF,)], [2.0, 0.0, 1.0, INF])
    assert best_first(found).tolist() == [1, 2, 0, 3]
    assert ranks(found).tolist() == [2, 0, 1, 3]


def test_of_several_objectives_the_front_counts_and_in_a_front_what_is_far_from_others() -> None:
    found = data([(0, 4), (1, 2), (1.1, 1.9), (4, 0), (4, 4), (INF, INF)], [0.0] * 5 + [INF])
    assert best_first(found).tolist() == [0, 3, 2, 1, 4, 5]
    assert ranks(found).tolist() == [0, 3, 2, 0, 4, 5] or ranks(found).tolist() == [0, 2, 1, 0, 3, 4]


def test_what_is_infeasible_dominates_nothing_that_is_feasible() -> None:
    """The first dominates the second, but not the third, which neither of the others dominates."""
    found = data([(0, 3), (1, 4), (4, 1)], [1.0, 0.0, 0.0])
    assert ranks(found).tolist() == [1, 0, 0]

"""Fronts, ranks, crowding and hypervolume, against definitions applied word by word."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune.pareto import (
    HypervolumeFront,
    best_of,
    crowding_distances,
    default_reference,
    non_dominated_sort,
)

Point = tuple[float, ...]


def points_of(num_losses: int) -> st.SearchStrategy[list[Point]]:
    losses = st.integers(0, 5).map(float)
    return st.lists(st.tuples(*[losses] * num_losses), min_size=1, max_size=12)


MANY = st.integers(1, 4).flatmap(points_of)


def volume(points: list[Point], reference: Sequence[float]) -> float:
    front = HypervolumeFront(reference)
    for point in points:
        front.add(point)
    return front.volume


def dominates(a: Point, b: Point) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def fronts_by_definition(points: list[Point]) -> list[int]:
    ranks: dict[int, int] = {}
    left = set(range(len(points)))
    for rank in itertools.count():
        front = {i for i in left if not any(dominates(points[j], points[i]) for j in left)}
        ranks.update(dict.fromkeys(front, rank))
        left -= front
        if not left:
            return [ranks[i] for i in range(len(points))]
    raise AssertionError("counts for ever")


@given(MANY)
def test_fronts_equal_their_definition(points: list[Point]) -> None:
    assert non_dominated_sort(points) == fronts_by_definition(points)


@given(MANY)
def test_better_fronts_come_first(points: list[Point]) -> None:
    order = best_of(points, len(points))
    ranks = fronts_by_definition(points)
    assert sorted(order) == list(range(len(points)))
    assert [ranks[i] for i in order] == sorted(ranks)


@given(MANY, st.integers(1, 12))
def test_fewer_best_points_are_the_first_of_all(points: list[Point], number: int) -> None:
    assert best_of(points, number) == best_of(points, len(points))[:number]


def scaled(points: list[Point]) -> list[Point]:
    columns = list(zip(*points, strict=True))
    extents = [max(column) - min(column) or 1.0 for column in columns]
    return [tuple(x / extent for x, extent in zip(point, extents, strict=True)) for point in points]


@given(points_of(2))
def test_next_point_of_a_front_is_the_farthest_from_those_before(points: list[Point]) -> None:
    front = [point for point, rank in zip(points, fronts_by_definition(points), strict=True) if rank == 0]
    order, places = best_of(front, len(front)), scaled(front)
    assert front[order[0]][0] == min(point[0] for point in front)
    for at in range(1, len(order)):
        nearest = [min(math.dist(places[i], places[j]) for j in order[:at]) for i in order[at:]]
        assert nearest[0] >= max(nearest) - 1e-12


def test_units_of_losses_have_no_effect() -> None:
    front = [(0.0, 10.0), (6.0, 9.5), (7.0, 1.0), (10.0, 0.0)]
    assert best_of(front, 4) == best_of([(a, 1024.0 * b) for a, b in front], 4) == [0, 3, 1, 2]


def test_point_with_an_infinite_loss_comes_last() -> None:
    points = [(math.inf, 0.0), (5.0, 5.0), (-math.inf, 0.0), (1.0, 1.0)]
    assert best_of(points, 4) == [3, 1, 0, 2]
    assert best_of(points[:1], 1) == [0]


@given(st.integers(1, 4).flatmap(lambda m: points_of(m).map(lambda points: (m, points))))
def test_hypervolume_equals_the_number_of_dominated_cells(given_: tuple[int, list[Point]]) -> None:
    num_losses, points = given_
    cells = itertools.product(range(5), repeat=num_losses)  # cell c is [c, c + 1] in each loss, the reference is 5
    covered = sum(any(all(x <= c for x, c in zip(point, cell, strict=True)) for point in points) for cell in cells)
    assert volume(points, [5.0] * num_losses) == covered


@given(MANY)
def test_hypervolume_does_not_depend_on_the_order_of_points(points: list[Point]) -> None:
    front = HypervolumeFront([4.5] * len(points[0]))
    for number, point in enumerate(points, 1):
        before = front.volume
        grew = front.add(point)
        assert front.volume == pytest.approx(volume(points[:number][::-1], front.reference))
        assert grew == (front.volume > before)


def test_losses_that_are_not_finite_add_nothing_to_a_front() -> None:
    front = HypervolumeFront((1.0, 1.0))
    assert not any(front.add((0.0, loss)) for loss in (math.inf, -math.inf, math.nan))
    assert front.volume == 0.0


@given(MANY)
def test_points_of_a_front_are_better_than_the_reference_point_in_every_loss(points: list[Point]) -> None:
    reference = default_reference(points)
    assert all(loss < limit for point in points for loss, limit in zip(point, reference, strict=True))


def test_hypervolume_without_points_is_zero() -> None:
    assert volume([(4.0, 1.0), (9.0, 9.0)], (4.0, 4.0)) == 0.0


def test_crowding_distance_depends_on_the_neighbors() -> None:
    assert crowding_distances([(1.0, 1.0)]) == [math.inf]
    assert crowding_distances([(0, 10), (2, 6), (3, 5), (10, 0)]) == [math.inf, 0.3 + 0.5, 0.8 + 0.6, math.inf]


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="without NaN"):
        non_dominated_sort([(math.nan, 1.0)])

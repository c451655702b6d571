"""Pareto dominance and hypervolume of points with several losses.

A point dominates another if no loss is larger and at least one is smaller. The hypervolume of a set of points is the
volume between the points and a reference point. Points that are not better than the reference point in every loss add
nothing. For one or two losses, the hypervolume is a sum of boxes. For more losses, the algorithm is WFG (While,
Bradstreet and Barone, 2012), which is exponential in the number of losses. Sums have a fixed order, so all results are
bit-identical on every machine.

Functions take an array or a sequence of points, with one row per point and one column per loss.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, final

Points: TypeAlias = Any  # array or sequence of rows; NumPy is imported on first use

_REFERENCE_MARGIN = 0.1  # fraction of the extent of the front; the default of BoTorch's infer_reference_point


def non_dominated_sort(losses: Points) -> list[int]:
    """Return the rank of each point's front, 0 for the first front (NSGA-II, Deb et al. 2002, section III.A).

    >>> non_dominated_sort([(1, 4), (2, 2), (3, 3), (4, 1), (4, 4)])
    [0, 0, 1, 0, 2]
    """
    points = _matrix(losses)
    ranks = [0] * len(points)
    for rank, front in enumerate(_fronts(points)):
        for index in front:
            ranks[index] = rank
    return ranks


def _fronts(points: Any) -> Iterator[list[int]]:
    """Yield the indices of the points of each front, best front first."""
    if points.shape[1] == 2:
        ranks = _sort_2d(points.tolist())
        fronts: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
        for index, rank in enumerate(ranks):
            fronts[rank].append(index)
        yield from fronts
    else:
        yield from _peel(points)


def _sort_2d(points: list[list[float]]) -> list[int]:
    """Return the ranks of points with two losses in O(N log N), by a sweep over the first loss."""
    ranks = [0] * len(points)
    lows: list[float] = []  # smallest second loss in each front so far, in increasing order
    previous: list[float] | None = None
    rank = 0
    for index in sorted(range(len(points)), key=points.__getitem__):
        point = points[index]
        if point != previous:  # equal points share a front
            rank = bisect_right(lows, point[1])
            lows[rank : rank + 1] = [point[1]]
        ranks[index], previous = rank, point
    return ranks


def _peel(points: Any) -> Iterator[list[int]]:
    """Yield the indices of the points of each front, best front first, by removing one front after another."""
    import numpy as np

    remaining = np.arange(len(points))
    while len(remaining):
        mask = _front_mask(points[remaining])
        yield remaining[mask].tolist()
        remaining = remaining[~mask]


def _front_mask(points: Any) -> Any:
    import numpy as np

    remaining = np.lexsort(points.T[::-1])  # later points cannot dominate earlier ones
    front: list[Any] = []
    while len(remaining):
        best = points[remaining[0]]
        equal = (points[remaining] == best).all(axis=1)
        front.extend(remaining[equal])
        remaining = remaining[(points[remaining] < best).any(axis=1)]
    mask = np.zeros(len(points), bool)
    mask[front] = True
    return mask


def first_front(losses: Points) -> list[int]:
    """Return the indices of the non-dominated points, in increasing order and including duplicates.

    >>> first_front([(1, 4), (2, 2), (3, 3), (4, 1), (4, 4)])
    [0, 1, 3]
    """
    return sorted(next(_fronts(_matrix(losses)), []))


def best_of(losses: Points, number: int) -> list[int]:
    """Return the indices of the `number` best points, best first.

    Points are ordered by front. Within a front, the first point has the smallest first loss, and each next point has
    the largest distance to the points before it, with losses scaled to the extent of the front (epsilon-net, Schmucker
    et al., arXiv 2106.12639, section 3). Points with infinite losses are last. Ties are broken by index.

    >>> best_of([(1, 4), (2, 2), (3, 3), (4, 1), (1.1, 3.9)], 4)
    [0, 3, 1, 4]
    """
    import numpy as np

    points = _matrix(losses)
    finite = np.isfinite(points).all(axis=1)
    finite_indices = np.flatnonzero(finite)
    indices: list[int] = []
    for members in _fronts(points[finite_indices]):
        front = finite_indices[members]
        indices += [int(front[i]) for i in _epsilon_net(points[front], number - len(indices))]
        if len(indices) >= number:
            break
    return (indices + np.flatnonzero(~finite).tolist())[:number]


def _epsilon_net(points: Any, number: int) -> list[int]:
    import numpy as np

    extent = points.max(axis=0) - points.min(axis=0)
    scaled = points / np.where(extent > 0, extent, 1.0)
    indices = [int(np.argmin(points[:, 0]))]
    distances = _squared_distances(scaled, indices[0])  # of each point to the nearest chosen point
    while len(indices) < min(number, len(points)):
        distances[indices[-1]] = -1.0  # choose no point twice, even if all distances are 0
        indices.append(int(np.argmax(distances)))
        distances = np.minimum(distances, _squared_distances(scaled, indices[-1]))
    return indices


def _squared_distances(points: Any, index: int) -> Any:
    total = (points[:, 0] - points[index, 0]) ** 2
    for axis in range(1, points.shape[1]):
        total = total + (points[:, axis] - points[index, axis]) ** 2
    return total


def crowding_distances(losses: Points) -> list[float]:
    """Return the crowding distances of the points of one front (NSGA-II, Deb et al. 2002, section III.B).

    Losses must be finite. The points with the smallest or largest value of a loss have an infinite distance.

    >>> crowding_distances([(0, 4), (1, 2), (4, 0)])
    [inf, 2.0, inf]
    """
    import numpy as np

    points = _matrix(losses)
    if not len(points):
        return []
    total = np.zeros(len(points))
    for column in points.T:
        order = np.argsort(column, kind="stable")
        total[order[[0, -1]]] = np.inf
        extent = column.max() - column.min()
        if extent > 0:
            total[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / extent
    distances: list[float] = total.tolist()
    return distances


def _matrix(losses: Points) -> Any:
    import numpy as np

    points = np.asarray(losses, float)
    if points.size == 0 and points.ndim < 2:
        points = points.reshape(0, 1)
    if points.ndim != 2 or np.isnan(points).any():
        raise ValueError(f"points must be rows of losses without NaN, got {losses!r}")
    return points


@final
class ParetoFront:
    """The distinct non-dominated points of all added points.

    >>> front = ParetoFront()
    >>> [front.add(point) for point in [(2.0, 2.0), (3.0, 3.0), (1.0, 3.0), (2.0, 2.0)]], front.points
    ([True, False, True, False], [(2.0, 2.0), (1.0, 3.0)])
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, ...]] = []

    def add(self, losses: Sequence[float]) -> bool:
        """Add a point. Return True if it joins the front. Points with infinite or NaN losses never join it."""
        point = tuple(losses)
        if not all(map(math.isfinite, point)) or any(_weakly_dominates(p, point) for p in self.points):
            return False
        self.points = [*(p for p in self.points if not _weakly_dominates(point, p)), point]
        return True


@final
class HypervolumeFront:
    """The hypervolume of all added points, updated with each point.

    >>> front = HypervolumeFront((4.0, 4.0))
    >>> [front.add(point) for point in [(2.0, 2.0), (3.0, 3.0), (1.0, 3.0), (5.0, 0.0)]], front.volume
    ([True, False, True, False], 5.0)
    """

    def __init__(self, reference: Sequence[float]) -> None:
        self.reference = tuple(map(float, reference))
        self.volume = 0.0
        self._front = ParetoFront()

    def add(self, losses: Sequence[float]) -> bool:
        """Add a point. Return True if it increased the volume. Points with infinite or NaN losses add nothing."""
        point, previous = tuple(losses), self._front.points  # `ParetoFront.add` replaces the list
        is_inside = all(loss < limit for loss, limit in zip(point, self.reference, strict=True))
        if not is_inside or not self._front.add(point):
            return False
        self.volume += _exclusive_volume(point, previous, self.reference)
        return True


def default_reference(front: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return a default reference point, which is slightly worse than the worst losses of the front.

    The margin in each loss is a tenth of the extent of the front or, if that is 0, of the absolute loss or, if that is
    0, of 1. `front` must not be empty.

    >>> default_reference([(1.0, 30.0), (2.0, 10.0)])
    (2.1, 32.0)
    """
    columns = list(zip(*front, strict=True))
    return tuple(max(c) + _REFERENCE_MARGIN * ((max(c) - min(c)) or abs(max(c)) or 1.0) for c in columns)


def _weakly_dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def _exclusive_volume(point: Sequence[float], points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the volume that `point` dominates and `points` do not."""
    volume = 1.0
    for loss, limit in zip(point, reference, strict=True):
        volume *= limit - loss
    overlaps = ParetoFront()
    for p in points:
        overlaps.add(tuple(map(max, point, p)))  # best corner of the box that `point` and p both dominate
    return volume - _volume(overlaps.points, reference)


def _volume(points: list[tuple[float, ...]], reference: Sequence[float]) -> float:
    """Return the hypervolume of points that do not dominate each other."""
    if len(reference) == 1:
        return reference[0] - points[0][0] if points else 0.0
    if len(reference) == 2:
        total, top = 0.0, reference[1]
        for first, second in sorted(points):
            total += (reference[0] - first) * (top - second)
            top = second
        return total
    points = sorted(points, reverse=True)  # by decreasing first loss, which keeps the remaining sets small
    return sum((_exclusive_volume(point, points[i + 1 :], reference) for i, point in enumerate(points)), 0.0)

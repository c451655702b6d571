"""Pareto dominance: sorting and selection of points with several losses.

A point dominates another if no loss is larger and at least one is smaller. Results are bit-identical on every machine.
"""
# N: points, M: losses

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, TypeAlias

Points: TypeAlias = Any  # array or sequence of rows; NumPy is imported on first use


def non_dominated_sort(losses_NM: Points) -> list[int]:
    """Return the front of each point, from 0 for non-dominated points (Deb et al. 2002, NSGA-II, section III.A).

    >>> non_dominated_sort([(1, 4), (2, 2), (3, 3), (4, 1), (4, 4)])
    [0, 0, 1, 0, 2]
    """
    points = _matrix(losses_NM)
    ranks = [0] * len(points)
    for rank, front in enumerate(_fronts(points)):
        for index in front:
            ranks[index] = rank
    return ranks


def _fronts(points: Any) -> Iterator[list[int]]:
    """Iterate over the indices of each front."""
    if points.shape[1] == 2:
        ranks = _sort_2d(points.tolist())
        fronts: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
        for index, rank in enumerate(ranks):
            fronts[rank].append(index)
        yield from fronts
    else:
        yield from _peel(points)


def _sort_2d(points: list[list[float]]) -> list[int]:
    """Sort points with two losses in O(N log N), in a sweep over the first loss."""
    ranks = [0] * len(points)
    lows: list[float] = []  # smallest second loss of each front so far, increasing
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
    import numpy as np

    remaining = np.arange(len(points))
    while len(remaining):
        mask = _front_mask(points[remaining])
        yield remaining[mask].tolist()
        remaining = remaining[~mask]


def _front_mask(points: Any) -> Any:
    """Return a mask of the non-dominated points."""
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


def first_front(losses_NM: Points) -> list[int]:
    """Return the indices of the non-dominated points, in order, including equal points.

    >>> first_front([(1, 4), (2, 2), (3, 3), (4, 1), (4, 4)])
    [0, 1, 3]
    """
    return sorted(next(_fronts(_matrix(losses_NM)), []))


def best_of(losses_NM: Points, number: int) -> list[int]:
    """Return the indices of the best `number` points, best first.

    Points are ordered by front. Within a front, the first point has the smallest first loss, and each next point is the
    farthest from the previous ones, with losses scaled to the extent of the front (epsilon-net; Schmucker et al., arXiv
    2106.12639, section 3). Points with infinite losses are last; ties are broken by index.

    >>> best_of([(1, 4), (2, 2), (3, 3), (4, 1), (1.1, 3.9)], 4)
    [0, 3, 1, 4]
    """
    import numpy as np

    points = _matrix(losses_NM)
    finite = np.isfinite(points).all(axis=1)
    finite_indices = np.flatnonzero(finite)
    chosen: list[int] = []
    for members in _fronts(points[finite_indices]):
        front = finite_indices[members]
        chosen += [int(front[i]) for i in _epsilon_net(points[front], number - len(chosen))]
        if len(chosen) >= number:
            break
    return (chosen + np.flatnonzero(~finite).tolist())[:number]


def _epsilon_net(points: Any, number: int) -> list[int]:
    import numpy as np

    extent = points.max(axis=0) - points.min(axis=0)
    scaled = points / np.where(extent > 0, extent, 1.0)
    chosen = [int(np.argmin(points[:, 0]))]
    nearest = _squared_distances(scaled, chosen[0])
    while len(chosen) < min(number, len(points)):
        nearest[chosen[-1]] = -1.0  # already chosen
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, _squared_distances(scaled, chosen[-1]))
    return chosen


def _squared_distances(points: Any, index: int) -> Any:
    total = (points[:, 0] - points[index, 0]) ** 2
    for axis in range(1, points.shape[1]):
        total = total + (points[:, axis] - points[index, axis]) ** 2
    return total


def crowding_distances(losses_NM: Points) -> list[float]:
    """Return the crowding distances of the points of one front (Deb et al. 2002, NSGA-II, section III.B).

    Losses must be finite. The distance of the extreme points is infinite.

    >>> crowding_distances([(0, 4), (1, 2), (4, 0)])
    [inf, 2.0, inf]
    """
    import numpy as np

    points = _matrix(losses_NM)
    total = np.zeros(len(points))
    for column in points.T:
        order = np.argsort(column, kind="stable")
        if len(order):
            total[order[[0, -1]]] = np.inf
        extent = column.max() - column.min() if len(order) else 0.0
        if len(order) > 2 and extent > 0:
            total[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / extent
    distances: list[float] = total.tolist()
    return distances


def _matrix(losses_NM: Points) -> Any:
    import numpy as np

    points = np.asarray(losses_NM, float)
    if points.size == 0 and points.ndim < 2:
        points = points.reshape(0, 1)
    if points.ndim != 2 or np.isnan(points).any():
        raise ValueError(f"points must be rows of losses without NaN, got {losses_NM!r}")
    return points

"""Several losses at once: which points are dominated, and how they rank.

A point dominates another if no loss is larger and one is smaller. Points are rows of losses, of which smaller ones are
better. The same input gives the same bits everywhere. numpy is loaded
when a function is called.
"""
# N: points, M: losses

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, TypeAlias

Points: TypeAlias = Any  # an array or rows of numbers; numpy is loaded later


def non_dominated_sort(losses_NM: Points) -> list[int]:
    """The front of each point: 0 if nothing dominates it, 1 if only points of front 0 do, and so on (NSGA-II's ranks).

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
    """The indices of each front, the first front first; each made when it is asked for."""
    if points.shape[1] == 2:
        ranks = _sorted_2(points.tolist())
        fronts: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
        for index, rank in enumerate(ranks):
            fronts[rank].append(index)
        yield from fronts
    else:
        yield from _peeled(points)


def _sorted_2(points: list[list[float]]) -> list[int]:
    """For two losses in O(N log N): from left to right, a point is dominated by a front that has been as low."""
    ranks = [0] * len(points)
    lows: list[float] = []  # of each front, the smallest second loss so far; they go up
    before: list[float] | None = None
    rank = 0
    for index in sorted(range(len(points)), key=points.__getitem__):
        point = points[index]
        if point != before:  # equals do not dominate each other
            rank = bisect_right(lows, point[1])
            lows[rank : rank + 1] = [point[1]]
        ranks[index], before = rank, point
    return ranks


def _peeled(points: Any) -> Iterator[list[int]]:
    import numpy as np

    left = np.arange(len(points))
    while len(left):
        inside = _front(points[left])
        yield left[inside].tolist()
        left = left[~inside]


def _front(points: Any) -> Any:
    """Which points nothing dominates, as a mask."""
    import numpy as np

    order = np.lexsort(points.T[::-1])  # who comes later dominates nobody who came earlier
    left, front = order, []
    while len(left):
        best = points[left[0]]
        equal = (points[left] == best).all(axis=1)
        front.extend(left[equal])
        left = left[(points[left] < best).any(axis=1)]
    mask = np.zeros(len(points), bool)
    mask[front] = True
    return mask


def first_front(losses_NM: Points) -> list[int]:
    """The indices of the points that nothing dominates, in order; of equal points all.

    >>> first_front([(1, 4), (2, 2), (3, 3), (4, 1), (4, 4)])
    [0, 1, 3]
    """
    return sorted(next(_fronts(_matrix(losses_NM)), []))


def best_of(losses_NM: Points, number: int) -> list[int]:
    """The indices of the best `number` points, the best first: front by front, and within a front spread out.

    Within a front the first has the smallest first loss; each further one is the farthest from those before it, the
    losses scaled to the front's extent: the epsilon-net of Schmucker et al., arXiv 2106.12639, section 3. Points with
    an infinite loss come last; of equal points the first comes first.

    >>> best_of([(1, 4), (2, 2), (3, 3), (4, 1), (1.1, 3.9)], 4)
    [0, 3, 1, 4]
    """
    import numpy as np

    points = _matrix(losses_NM)
    finite = np.isfinite(points).all(axis=1)
    sound = np.flatnonzero(finite)
    chosen: list[int] = []
    for places in _fronts(points[sound]):
        front = sound[places]
        chosen += [int(front[place]) for place in _epsilon_net(points[front], number - len(chosen))]
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
        nearest[chosen[-1]] = -1.0  # it is taken
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, _squared_distances(scaled, chosen[-1]))
    return chosen


def _squared_distances(points: Any, index: int) -> Any:
    total = (points[:, 0] - points[index, 0]) ** 2
    for axis in range(1, points.shape[1]):
        total = total + (points[:, axis] - points[index, axis]) ** 2
    return total


def crowding_distances(losses_NM: Points) -> list[float]:
    """How far each point of one front is from its neighbours (Deb et al. 2002, NSGA-II, section III.B).

    The ends of the front are infinitely far. Losses must be finite.

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

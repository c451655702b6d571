"""Exact hypervolume of points with respect to a reference point, and incremental Pareto fronts.

Points are tuples of losses. Points that are not better than the reference in every loss contribute nothing. One or two
losses are a sum of boxes; for more, the algorithm is WFG (While, Bradstreet and Barone, 2012), which is exponential in
the number of losses. Sums have a fixed order, so results are bit-identical on every machine.
"""

import math
from collections.abc import Iterable, Sequence
from typing import final

_REFERENCE_MARGIN = 0.1  # of the extent of the front, as in BoTorch's infer_reference_point


def volume(points: Iterable[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the hypervolume of the points.

    >>> volume([(1, 3), (2, 2), (3, 1), (9, 9)], (4, 4))
    6.0
    """
    limits = tuple(map(float, reference))
    tuples = [tuple(map(float, point)) for point in points]
    return _volume(_undominated([point for point in tuples if _is_inside(point, limits)]), limits)


@final
class ParetoFront:
    """The distinct non-dominated points among those added.

    >>> front = ParetoFront()
    >>> [front.add(point) for point in [(2.0, 2.0), (3.0, 3.0), (1.0, 3.0), (2.0, 2.0)]], front.points
    ([True, False, True, False], [(2.0, 2.0), (1.0, 3.0)])
    """

    __slots__ = ("points",)

    def __init__(self) -> None:
        self.points: list[tuple[float, ...]] = []

    def add(self, losses: Sequence[float]) -> bool:
        """Add a point. Return True if it joins the front; points with infinite or NaN losses never do."""
        point = tuple(losses)
        if not all(map(math.isfinite, point)) or any(_weakly_dominates(p, point) for p in self.points):
            return False
        self.points = [*(p for p in self.points if not _weakly_dominates(point, p)), point]
        return True


@final
class HypervolumeFront:
    """The non-dominated points among those added, and their hypervolume.

    >>> front = HypervolumeFront((4.0, 4.0))
    >>> [front.add(point) for point in [(2.0, 2.0), (3.0, 3.0), (1.0, 3.0), (5.0, 0.0)]], front.volume
    ([True, False, True, False], 5.0)
    """

    __slots__ = ("_front", "reference", "volume")

    def __init__(self, reference: Sequence[float]) -> None:
        self.reference = tuple(map(float, reference))
        self.volume = 0.0
        self._front = ParetoFront()

    def add(self, losses: Sequence[float]) -> bool:
        """Add a point. Return True if the volume has grown; points with infinite or NaN losses add nothing."""
        point, previous = tuple(losses), self._front.points
        if not _is_inside(point, self.reference) or not self._front.add(point):
            return False
        self.volume += _exclusive_volume(point, previous, self.reference)
        return True


def default_reference(front: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return a default reference point: the worst loss of the front plus a tenth of its extent, for each objective.

    If the extent is 0, a tenth of the loss is added instead. The front must not be empty.

    >>> default_reference([(1.0, 30.0), (2.0, 10.0)])
    (2.1, 32.0)
    """
    columns = list(zip(*front, strict=True))
    return tuple(max(c) + _REFERENCE_MARGIN * ((max(c) - min(c)) or abs(max(c)) or 1.0) for c in columns)


def _is_inside(point: Sequence[float], reference: Sequence[float]) -> bool:
    return all(loss < limit for loss, limit in zip(point, reference, strict=True))


def _weakly_dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def _exclusive_volume(point: Sequence[float], points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Return the volume dominated by `point` but not by `points`."""
    volume = 1.0
    for loss, limit in zip(point, reference, strict=True):
        volume *= limit - loss
    shared = [tuple(map(max, point, p)) for p in points]
    return volume - _volume(_undominated(shared), reference)


def _volume(points: list[tuple[float, ...]], reference: Sequence[float]) -> float:
    """Return the volume of mutually non-dominated points."""
    if len(reference) == 1:
        return reference[0] - points[0][0] if points else 0.0
    if len(reference) == 2:
        total, top = 0.0, reference[1]
        for first, second in sorted(points):
            total += (reference[0] - first) * (top - second)
            top = second
        return total
    points = sorted(points, reverse=True)  # worst first loss first, which keeps the remaining sets small
    return sum((_exclusive_volume(point, points[i + 1 :], reference) for i, point in enumerate(points)), 0.0)


def _undominated(points: Iterable[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Return the distinct non-dominated points."""
    front: list[tuple[float, ...]] = []
    for point in sorted(points):  # later points cannot dominate earlier ones
        if not any(_weakly_dominates(p, point) for p in front):
            front.append(point)
    return front

"""The volume that points dominate together, up to a reference point: exact, at once or point by point.

    volume(points, reference)            of all of them
    Front(reference).add(point)          what it is so far; each point costs a look at the front
    Undominated().add(point)             the same without a volume, and so without a reference point

Points are losses, of which smaller ones are better; a point that is not better than the reference in every loss adds
nothing. For one or two losses a sum of boxes, for more the algorithm of While, Bradstreet and Barone (WFG, 2012): each
point adds its own box without what the others dominate of it. Exponential in the number of losses. Sums are made in a
fixed order, so that the same points in the same order give the same bits everywhere.
"""

import math
from collections.abc import Iterable, Sequence
from typing import final

# Of the front's extent, as BoTorch's infer_reference_point has it: so that the ends of the front add something.
_ROOM = 0.1


def volume(points: Iterable[Sequence[float]], reference: Sequence[float]) -> float:
    """The volume of all points together.

    >>> volume([(1, 3), (2, 2), (3, 1), (9, 9)], (4, 4))
    6.0
    """
    limits = tuple(map(float, reference))
    inside = [tuple(map(float, point)) for point in points]
    return _volume(_undominated([point for point in inside if _is_inside(point, limits)]), limits)


@final
class Undominated:
    """The points that none other dominates, of those that were added; each once.

    >>> kept = Undominated()
    >>> [kept.add(point) for point in [(2.0, 2.0), (3.0, 3.0), (1.0, 3.0), (2.0, 2.0)]], kept.points
    ([True, False, True, False], [(2.0, 2.0), (1.0, 3.0)])
    """

    __slots__ = ("points",)

    def __init__(self) -> None:
        self.points: list[tuple[float, ...]] = []

    def add(self, losses: Sequence[float]) -> bool:
        """One more point; whether it is one of them now. One with an infinite loss or NaN is none."""
        point = tuple(losses)
        if not all(map(math.isfinite, point)) or any(_is_as_good(other, point) for other in self.points):
            return False
        self.points = [*(other for other in self.points if not _is_as_good(point, other)), point]
        return True


@final
class Front:
    """The points that none other dominates, of those that were added, and their volume.

    >>> front = Front((4.0, 4.0))
    >>> [front.add(point) for point in [(2.0, 2.0), (3.0, 3.0), (1.0, 3.0), (5.0, 0.0)]], front.volume
    ([True, False, True, False], 5.0)
    """

    __slots__ = ("_kept", "reference", "volume")

    def __init__(self, reference: Sequence[float]) -> None:
        self.reference = tuple(map(float, reference))
        self.volume = 0.0
        self._kept = Undominated()

    def add(self, losses: Sequence[float]) -> bool:
        """One more point; whether the volume has grown. Losses that are infinite or NaN add nothing."""
        point, before = tuple(losses), self._kept.points
        if not _is_inside(point, self.reference) or not self._kept.add(point):
            return False
        self.volume += _own(point, before, self.reference)
        return True


def reference_of(front: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """A reference point for points that have none: the worst of the front in each loss, and a tenth of its extent more.

    Where the front has no extent, a tenth of the loss itself; the front must not be empty.

    >>> reference_of([(1.0, 30.0), (2.0, 10.0)])
    (2.1, 32.0)
    """
    columns = list(zip(*front, strict=True))
    return tuple(max(c) + _ROOM * ((max(c) - min(c)) or abs(max(c)) or 1.0) for c in columns)


def _is_inside(point: Sequence[float], reference: Sequence[float]) -> bool:
    return all(loss < limit for loss, limit in zip(point, reference, strict=True))


def _is_as_good(point: Sequence[float], other: Sequence[float]) -> bool:
    """Whether it is equal, or dominates the other."""
    return all(a <= b for a, b in zip(point, other, strict=True))


def _own(point: Sequence[float], others: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """What the point dominates, without what the others do."""
    own = 1.0
    for loss, limit in zip(point, reference, strict=True):
        own *= limit - loss
    shared = [tuple(map(max, point, other)) for other in others]
    return own - _volume(_undominated(shared), reference)


def _volume(points: list[tuple[float, ...]], reference: Sequence[float]) -> float:
    """Of points of which none dominates another: each adds what is its own, without what later ones dominate."""
    if len(reference) == 1:
        return reference[0] - points[0][0] if points else 0.0
    if len(reference) == 2:
        total, top = 0.0, reference[1]
        for first, second in sorted(points):
            total += (reference[0] - first) * (top - second)
            top = second
        return total
    points = sorted(points, reverse=True)  # by the first loss, the worst first: the sets that are left stay small
    return sum((_own(point, points[place + 1 :], reference) for place, point in enumerate(points)), 0.0)


def _undominated(points: Iterable[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Each point that nothing dominates, once."""
    kept: list[tuple[float, ...]] = []
    for point in sorted(points):  # who comes later dominates nobody who came earlier
        if not any(_is_as_good(other, point) for other in kept):
            kept.append(point)
    return kept

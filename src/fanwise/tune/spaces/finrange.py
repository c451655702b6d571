"""FinRange: a given number of equally spaced points between two bounds, on a linear or logarithmic scale. Quiet.

Bounds mean the decimal numbers that are written: the third point of finrange(0.1, 0.4, 4) is 0.3, and that of
logfinrange(0.0001, 0.1, 4) is 0.01.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal, final

from ..values import check_switch, is_number
from .bounds import MOST_VALUES, check_order, check_positive, finite, middle_of_share, not_inside, share_at, whole
from .scales import LogScale

_NEAR = 1e-6  # of the distance to the neighbours: how far from a point a float may be that means it


@final
@dataclass(frozen=True, slots=True, repr=False)
class FinRange:
    """`size` equally spaced numbers from lower to upper, both included, all equally likely.

    Made by `finrange` and `logfinrange`.
    """

    made_by: Literal["finrange", "logfinrange"]
    lower: float
    upper: float
    size: int
    cast_int: bool = False
    _scale: LogScale | None = field(init=False, repr=False, compare=False)
    _exact: tuple[int, int, int] = field(init=False, repr=False, compare=False)  # lower, upper, over one denominator
    ordered: ClassVar[bool] = True
    num_features: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_switch(f"{self.made_by}: cast_int", self.cast_int)
        read = whole if self.cast_int else finite
        lower, upper = read(f"{self.made_by}: lower", self.lower), read(f"{self.made_by}: upper", self.upper)
        check_order(self.made_by, lower, upper)
        size = whole(f"{self.made_by}: size", self.size)
        for name, value in (("lower", lower), ("upper", upper), ("size", size), ("_scale", None)):
            object.__setattr__(self, name, value)  # frozen for everybody else
        if self.size < 2:
            raise ValueError(f"{self.made_by}: size must be at least 2, got {self.size!r}")
        (a, b), (c, d) = (Fraction(repr(bound)).as_integer_ratio() for bound in (lower, upper))
        object.__setattr__(self, "_exact", (a * d, c * b, b * d))
        if self.made_by == "logfinrange":
            check_positive(self.made_by, lower)
            object.__setattr__(self, "_scale", LogScale(lower, upper))
        if self.cast_int and self.size > self.upper - self.lower + 1:
            raise ValueError(f"{self.made_by}: there are fewer than {self.size} integers in {self!r}; lower size")
        if self.size > MOST_VALUES or not math.isfinite(self.upper - self.lower) or not self._points_differ():
            raise ValueError(
                f"{self.made_by}: the points of {self!r} cannot be told apart; lower size or use {self._dense}"
            )

    @property
    def _dense(self) -> str:
        return "uniform" if self._scale is None else "lograndint" if self.cast_int else "loguniform"

    def _points_differ(self) -> bool:
        if self._scale is not None:
            return self._ratios_differ(self._scale)
        largest = max(abs(self.lower), abs(self.upper))
        return self.cast_int or (self.upper - self.lower) / (self.size - 1) > 8 * math.ulp(largest)

    def _ratios_differ(self, scale: LogScale) -> bool:
        second = scale.at(1 / (self.size - 1)) if self.size > 2 else self.upper
        if not self.cast_int:
            return second - self.lower > 8 * math.ulp(second)
        # The distances grow. From 1 on rounding cannot join two points; below it soon does, if at all.
        index = 0
        while index < self.size - 2 and scale.at((index + 1) / (self.size - 1)) - scale.at(index / (self.size - 1)) < 1:
            if self.value_at(index) == self.value_at(index + 1):
                return False
            index += 1
        return self.value_at(self.size - 2) < self.upper

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, (self.lower, self.upper, self.size)))
        return f"{self.made_by}({shown}{', cast_int=True' if self.cast_int else ''})"

    def settings(self) -> dict[str, object]:
        return {"lower": self.lower, "upper": self.upper, "size": self.size, "cast_int": self.cast_int}

    @property
    def num_values(self) -> int:
        return self.size

    def value_at(self, index: int) -> float:
        if index == 0 or index == self.size - 1:
            return self.upper if index else self.lower
        if self._scale is not None:
            value = self._scale.at_step(index, self.size - 1)
            return math.floor(value + 0.5) if self.cast_int else value
        lower, upper, denominator = self._exact
        steps = self.size - 1
        numerator, denominator = lower * (steps - index) + upper * index, denominator * steps
        # In whole numbers, so that each point is rounded once.
        return (2 * numerator + denominator) // (2 * denominator) if self.cast_int else numerator / denominator

    def _nearest(self, value: float) -> int:
        """The index of the point that value means, if it is one at all."""
        if self._scale is not None:
            inside = min(max(value, self.lower), self.upper)
            part = 1.0 if inside == self.upper else self._scale.part(inside)
        else:
            part = (value - self.lower) / (self.upper - self.lower)
        guess = min(max(round(part * (self.size - 1)), 0), self.size - 1)
        around = (index for index in (guess, guess - 1, guess + 1) if 0 <= index < self.size)  # cast_int has moved them
        return min(around, key=lambda index: abs(self.value_at(index) - value))

    def index_of(self, value: object) -> int:
        if not self.contains(value):
            raise not_inside(value, self)
        return self._nearest(float(value))  # type: ignore[arg-type]  # contains() knows it

    def from_unit(self, u: float) -> float:
        return self.value_at(share_at(u, self.size))

    def to_unit(self, value: object) -> float:
        return middle_of_share(self.index_of(value), self.size)

    def contains(self, value: object) -> bool:
        """Whether value is one of the points; the last bits may differ: 0.3 is in finrange(0.1, 1.0, 10)."""
        if not is_number(value) or not math.isfinite(value):
            return False
        index = self._nearest(value)
        if self.cast_int:
            return self.value_at(index) == value
        beside = index - 1 if index else 1
        return abs(self.value_at(index) - value) <= _NEAR * abs(self.value_at(index) - self.value_at(beside))

    def plain(self, value: object) -> float:
        return self.value_at(self.index_of(value))

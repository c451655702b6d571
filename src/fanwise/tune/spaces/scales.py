"""Scales: which real number stands at which part of the way between two bounds. Quiet.

    linear         0.5 of the way from 1 to 100 is 50.5     (uniform)
    log            0.5 of the way from 1 to 100 is 10       (loguniform)
    reverse log    0.5 of the way from 0.9 to 0.999 is 0.99: 1 - x is on a log scale   (reverseloguniform)

Invariants: no value lies outside the bounds; a longer way never leads to a smaller value; at 0 stands the lower bound.
All of it is + - * / of floats and the integers of `bits`, so the values have the same bits everywhere.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol, final

from .bits import FRACTION_BITS, exp2_float, log2
from .bounds import below_one

_ONE = float(1 << FRACTION_BITS)


class Scale(Protocol):
    """The way between two bounds."""

    @property
    def lower(self) -> float: ...

    @property
    def upper(self) -> float: ...

    def at(self, part: float) -> float:
        """The value at this part of the way, 0 <= part < 1."""

    def part(self, value: float) -> float:
        """The part of the way, in [0, 1), at which a value between the bounds stands."""


@final
@dataclass(frozen=True, slots=True)
class LinearScale:
    """Equal parts of the way are equal differences."""

    lower: float
    upper: float

    def at(self, part: float) -> float:
        # Not lower * (1 - part) + upper * part, which may fall when part rises.
        return min(self.lower + part * (self.upper - self.lower), self.upper)

    def part(self, value: float) -> float:
        return below_one((value - self.lower) / (self.upper - self.lower))


@final
@dataclass(frozen=True, slots=True)
class LogScale:
    """Equal parts of the way are equal ratios; lower is above 0."""

    lower: float
    upper: float
    _log_lower: int = field(init=False, repr=False, compare=False)
    _log_width: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log_lower", log2(self.lower))  # frozen for everybody else
        object.__setattr__(self, "_log_width", log2(self.upper) - self._log_lower)

    def log_at(self, part: float) -> int:
        """The logarithm of the value, as `bits` counts it."""
        return self._log_lower + (int(part * _ONE) * self._log_width >> FRACTION_BITS)

    def at(self, part: float) -> float:
        return min(max(exp2_float(self.log_at(part)), self.lower), self.upper)

    def at_step(self, index: int, num_steps: int) -> float:
        """Return the value after `index` of `num_steps` equal steps, as the decimal that a person would write.

        The bounds are floats near the decimals that are meant, so the result is off by up to 2 units in the last place:
        9.999999999999998 means 10.
        """
        value = exp2_float(self._log_lower + self._log_width * index // num_steps)
        decimal = float(f"{value:.12g}")
        return decimal if abs(decimal - value) <= 2 * math.ulp(value) else value

    def part(self, value: float) -> float:
        return below_one((log2(value) - self._log_lower) / self._log_width)


@final
@dataclass(frozen=True, slots=True)
class ReverseLogScale:
    """The distance to 1 is on a log scale; upper is below 1."""

    lower: float
    upper: float
    _log_first: int = field(init=False, repr=False, compare=False)
    _log_width: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log_first", log2(1.0 - self.lower))  # frozen for everybody else
        object.__setattr__(self, "_log_width", self._log_first - log2(1.0 - self.upper))

    def at(self, part: float) -> float:
        if part == 0.0:
            return self.lower  # 1 - (1 - lower) need not be lower
        distance = exp2_float(self._log_first - (int(part * _ONE) * self._log_width >> FRACTION_BITS))
        return min(max(1.0 - distance, self.lower), self.upper)

    def part(self, value: float) -> float:
        return below_one((self._log_first - log2(1.0 - value)) / self._log_width)

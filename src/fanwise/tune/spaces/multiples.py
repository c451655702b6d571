"""Multiples: the multiples of q between two bounds (randint with q = 1, lograndint and the quantised domains). Quiet.

    qrandint(8, 32, 8)     8, 16, 24, 32, all equally likely
    qlograndint(8, 32, 8)  the same; k * q has the share of [(k - 1/2) * q, (k + 1/2) * q] on the logarithmic scale

All shares are whole, those of the two bounds too. A q such as 0.1 means the decimal number that is written: the third
multiple is 0.3, not 0.30000000000000004. A q such as 1/3 means the fraction: the third multiple is 1.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal, final

from ..values import is_number
from .bits import FRACTION_BITS, exp2
from .bounds import (
    MOST_VALUES,
    check_order,
    check_positive,
    check_unit,
    finite,
    is_whole,
    middle_of_share,
    not_inside,
    share_at,
    whole,
)
from .scales import LogScale

MultiplesMaker = Literal["randint", "lograndint", "quniform", "qloguniform", "qrandint", "qlograndint"]
_LARGEST_LOG_MULTIPLE = 2**45
_NEAR = Fraction(1, 10**6)  # of q: how far from a multiple a float may be that means it


@final
@dataclass(frozen=True, slots=True, repr=False)
class Multiples:
    """Multiples of q from lower to upper, both included. Made by `randint`, `lograndint`, `quniform`, ..."""

    made_by: MultiplesMaker
    lower: float
    upper: float
    q: float = 1
    _step: tuple[int, int] = field(init=False, repr=False, compare=False)  # q as a fraction
    _first: int = field(init=False, repr=False, compare=False)  # lower is the _first multiple of q
    _size: int = field(init=False, repr=False, compare=False)
    _scale: LogScale | None = field(init=False, repr=False, compare=False)
    ordered: ClassVar[bool] = True
    num_features: ClassVar[int] = 1

    def __post_init__(self) -> None:
        read = whole if self._is_int else finite
        lower, upper = read(f"{self.made_by}: lower", self.lower), read(f"{self.made_by}: upper", self.upper)
        q = read(f"{self.made_by}: q", self.q)
        check_order(self.made_by, lower, upper)
        if q <= 0:
            raise ValueError(f"{self.made_by}: q must be above 0, got {q!r}")
        step = Fraction(q).limit_denominator(1000)  # 1/3
        if float(step) != q:
            step = Fraction(repr(q))
        first, last = self._multiple("lower", lower, step), self._multiple("upper", upper, step)
        object.__setattr__(self, "q", q)  # frozen for everybody else
        object.__setattr__(self, "_step", step.as_integer_ratio())
        object.__setattr__(self, "_first", first)
        object.__setattr__(self, "_size", last - first + 1)
        object.__setattr__(self, "lower", self._value(first))
        object.__setattr__(self, "upper", self._value(last))
        object.__setattr__(self, "_scale", self._make_scale(first, last))

    def _multiple(self, bound: str, value: float, step: Fraction) -> int:
        ratio = (Fraction(value) if self._is_int else Fraction(repr(value))) / step
        nearest = round(ratio)
        if abs(ratio - nearest) > (0 if self._is_int else _NEAR):
            below, above = math.floor(ratio) * step, math.ceil(ratio) * step
            plain = int if self._is_int else float
            raise ValueError(
                f"{self.made_by}: {bound} {value!r} is not a multiple of q = {self.q!r}; "
                f"the nearest ones are {plain(below)!r} and {plain(above)!r}"
            )
        return nearest

    def _make_scale(self, first: int, last: int) -> LogScale | None:
        if self._size > MOST_VALUES:
            raise ValueError(
                f"{self.made_by}: at most 2**52 values can be told apart, got {self._size}; narrow the range"
            )
        if "log" not in self.made_by:
            return None
        check_positive(self.made_by, self.lower)
        if last > _LARGEST_LOG_MULTIPLE:
            raise ValueError(f"{self.made_by}: upper must be at most 2**45 times q, got {self.upper!r}; use loguniform")
        return LogScale(first - 0.5, last + 0.5)

    def __repr__(self) -> str:
        return f"{self.made_by}({', '.join(map(repr, self.settings().values()))})"

    def settings(self) -> dict[str, object]:
        bounds: dict[str, object] = {"lower": self.lower, "upper": self.upper}
        return bounds | {"q": self.q} if self.made_by.startswith("q") else bounds

    @property
    def _is_int(self) -> bool:
        return self.made_by.endswith("int")

    @property
    def is_log(self) -> bool:
        """Whether the shares are those of a logarithmic scale."""
        return self._scale is not None

    @property
    def num_values(self) -> int:
        return self._size

    def _value(self, multiple: int) -> float:
        numerator, denominator = self._step
        return multiple * numerator if self._is_int else multiple * numerator / denominator

    def value_at(self, index: int) -> float:
        return self._value(self._first + index)

    def index_of(self, value: object) -> int:
        if not self.contains(value):
            raise not_inside(value, self)
        numerator, denominator = self._step
        if self._is_int:
            return int(value) // numerator - self._first  # type: ignore[call-overload,no-any-return]  # contains() knows it
        return round(Fraction(float(value)) * denominator / numerator) - self._first  # type: ignore[arg-type]  # the same

    def from_unit(self, u: float) -> float:
        if self._scale is None:
            index = share_at(u, self._size)
        else:
            m, e = exp2(self._scale.log_at(check_unit(u)))
            multiple = ((m >> (FRACTION_BITS - 1 - e)) + 1) >> 1  # rounded half up; e is below 46
            index = min(max(multiple - self._first, 0), self._size - 1)
        return self.value_at(index)

    def to_unit(self, value: object) -> float:
        index = self.index_of(value)
        return middle_of_share(index, self._size) if self._scale is None else self._scale.part(self._first + index)

    def contains(self, value: object) -> bool:
        """Whether value is one of the multiples; the last bits of a float may differ: 0.1 * 3 is a multiple of 0.1."""
        if self._is_int:
            return is_whole(value) and self.lower <= value <= self.upper and int(value) % self._step[0] == 0
        if not is_number(value) or not math.isfinite(value):
            return False
        ratio = Fraction(float(value)) / Fraction(*self._step)
        return abs(ratio - round(ratio)) <= _NEAR and 0 <= round(ratio) - self._first < self._size

    def plain(self, value: object) -> float:
        return self.value_at(self.index_of(value))

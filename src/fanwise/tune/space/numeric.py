"""Numeric domains: intervals of real numbers, multiples of a step, and a number of equally spaced points.

    Interval    uniform, loguniform, reverseloguniform
    Multiples   randint, lograndint, quniform, qloguniform, qrandint, qlograndint
    FinRange    finrange, logfinrange

Bounds and steps stand for the decimal numbers that were written: the third multiple of 0.1 is 0.3, not
0.30000000000000004, and the third point of logfinrange(0.0001, 0.1, 4) is 0.01. A step such as 1/3 stands for the
fraction.
"""

import math
import numbers
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal, TypeGuard, final

from ..values import check_bool, is_number
from .scales import (
    FRACTION_BITS,
    LinearScale,
    LogScale,
    ReverseLogScale,
    Scale,
    bin_at,
    check_unit,
    exp2,
    middle_of_bin,
)

IntervalType = Literal["uniform", "loguniform", "reverseloguniform"]
MultiplesType = Literal["randint", "lograndint", "quniform", "qloguniform", "qrandint", "qlograndint"]

# With more values, the midpoint of a bin of [0, 1) rounds to its edge.
_MAX_VALUES = 2**52
_MAX_LOG_MULTIPLE = 2**45  # keeps the exponent in `from_unit` below 46
_TOLERANCE = Fraction(1, 10**6)  # maximum distance of a float from the value it stands for, in steps


@final
@dataclass(frozen=True, slots=True, repr=False)
class Interval:
    """Real numbers between lower and upper; constructed by `uniform`, `loguniform` and `reverseloguniform`."""

    domain_type: IntervalType
    lower: float
    upper: float
    _scale: Scale = field(init=False, repr=False, compare=False)
    ordered: ClassVar[bool] = True
    num_values: ClassVar[None] = None

    def __post_init__(self) -> None:
        lower, upper = (
            _checked_finite(f"{self.domain_type}: lower", self.lower),
            _checked_finite(f"{self.domain_type}: upper", self.upper),
        )
        _check_order(self.domain_type, lower, upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        object.__setattr__(self, "_scale", self._make_scale(lower, upper))

    def _make_scale(self, lower: float, upper: float) -> Scale:
        if self.domain_type == "uniform":
            if not math.isfinite(upper - lower):
                raise ValueError(f"uniform: upper - lower must be finite, got {self!r}")
            return LinearScale(lower, upper)
        if self.domain_type == "loguniform":
            _check_positive(self.domain_type, lower)
            return LogScale(lower, upper)
        if not 0.0 <= lower or not 1.0 - lower > 1.0 - upper > 0.0:
            raise ValueError(
                f"reverseloguniform: the bounds must lie in [0, 1) with different distances to 1, got {self!r}; "
                f"for values near 0 use loguniform"
            )
        return ReverseLogScale(lower, upper)

    def __repr__(self) -> str:
        return f"{self.domain_type}({self.lower!r}, {self.upper!r})"

    def settings(self) -> dict[str, object]:
        return {"lower": self.lower, "upper": self.upper}

    def from_unit(self, u: float) -> float:
        return self._scale.at(check_unit(u))

    def to_unit(self, value: object) -> float:
        if not self.contains(value):
            raise ValueError(f"{value!r} is not in {self!r}")
        return self._scale.position(self.normalize(value))

    def contains(self, value: object) -> bool:
        return is_number(value) and self.lower <= value <= self.upper

    def normalize(self, value: object) -> float:
        return float(value)  # type: ignore[arg-type]  # callers have checked contains()


@final
@dataclass(frozen=True, slots=True, repr=False)
class Multiples:
    """Multiples of q from lower to upper inclusive; constructed by `randint`, `lograndint`, `quniform`, ...

    On a log scale, k * q is drawn with the probability of [(k - 1/2) * q, (k + 1/2) * q], also at the bounds.
    """

    domain_type: MultiplesType
    lower: float
    upper: float
    q: float = 1
    _step: tuple[int, int] = field(init=False, repr=False, compare=False)  # q as a fraction
    _first: int = field(init=False, repr=False, compare=False)  # lower / q
    _size: int = field(init=False, repr=False, compare=False)
    _scale: LogScale | None = field(init=False, repr=False, compare=False)
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked = _checked_int if self._is_int else _checked_finite
        lower, upper = (
            checked(f"{self.domain_type}: lower", self.lower),
            checked(f"{self.domain_type}: upper", self.upper),
        )
        q = checked(f"{self.domain_type}: q", self.q)
        _check_order(self.domain_type, lower, upper)
        if q <= 0:
            raise ValueError(f"{self.domain_type}: q must be above 0, got {q!r}")
        step = Fraction(q).limit_denominator(1000)  # recovers fractions such as 1/3 from their float
        if float(step) != q:
            step = Fraction(repr(q))
        first, last = self._multiple("lower", lower, step), self._multiple("upper", upper, step)
        object.__setattr__(self, "q", q)
        object.__setattr__(self, "_step", step.as_integer_ratio())
        object.__setattr__(self, "_first", first)
        object.__setattr__(self, "_size", last - first + 1)
        object.__setattr__(self, "lower", self._value(first))
        object.__setattr__(self, "upper", self._value(last))
        object.__setattr__(self, "_scale", self._make_scale(first, last))

    def _multiple(self, bound: str, value: float, step: Fraction) -> int:
        ratio = (Fraction(value) if self._is_int else Fraction(repr(value))) / step
        nearest = round(ratio)
        if abs(ratio - nearest) > (0 if self._is_int else _TOLERANCE):
            below, above = math.floor(ratio) * step, math.ceil(ratio) * step
            plain = int if self._is_int else float
            raise ValueError(
                f"{self.domain_type}: {bound} {value!r} is not a multiple of q = {self.q!r}; "
                f"the nearest ones are {plain(below)!r} and {plain(above)!r}"
            )
        return nearest

    def _make_scale(self, first: int, last: int) -> LogScale | None:
        if self._size > _MAX_VALUES:
            raise ValueError(
                f"{self.domain_type}: at most 2**52 values can be represented, got {self._size}; narrow the range"
            )
        if "log" not in self.domain_type:
            return None
        _check_positive(self.domain_type, self.lower)
        if last > _MAX_LOG_MULTIPLE:
            raise ValueError(
                f"{self.domain_type}: upper must be at most 2**45 times q, got {self.upper!r}; use loguniform"
            )
        return LogScale(first - 0.5, last + 0.5)

    def __repr__(self) -> str:
        return f"{self.domain_type}({', '.join(map(repr, self.settings().values()))})"

    def settings(self) -> dict[str, object]:
        bounds: dict[str, object] = {"lower": self.lower, "upper": self.upper}
        return bounds | {"q": self.q} if self.domain_type.startswith("q") else bounds

    @property
    def _is_int(self) -> bool:
        return self.domain_type.endswith("int")

    @property
    def is_log(self) -> bool:
        """True if the values are uniform on a log scale."""
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
            raise ValueError(f"{value!r} is not in {self!r}")
        numerator, denominator = self._step
        if self._is_int:
            return int(value) // numerator - self._first  # type: ignore[call-overload,no-any-return]  # contains() is true
        return round(Fraction(float(value)) * denominator / numerator) - self._first  # type: ignore[arg-type]  # callers have checked contains()

    def from_unit(self, u: float) -> float:
        if self._scale is None:
            index = bin_at(u, self._size)
        else:
            m, e = exp2(self._scale.log_at(check_unit(u)))
            multiple = ((m >> (FRACTION_BITS - 1 - e)) + 1) >> 1  # rounds the fixed-point number half up
            index = min(max(multiple - self._first, 0), self._size - 1)
        return self.value_at(index)

    def to_unit(self, value: object) -> float:
        index = self.index_of(value)
        return middle_of_bin(index, self._size) if self._scale is None else self._scale.position(self._first + index)

    def contains(self, value: object) -> bool:
        """Return True for a multiple within the bounds, up to rounding: 0.1 * 3 is a multiple of 0.1."""
        if self._is_int:
            return _is_integral(value) and self.lower <= value <= self.upper and int(value) % self._step[0] == 0
        if not is_number(value) or not math.isfinite(value):
            return False
        ratio = Fraction(float(value)) / Fraction(*self._step)
        return abs(ratio - round(ratio)) <= _TOLERANCE and 0 <= round(ratio) - self._first < self._size

    def normalize(self, value: object) -> float:
        return self.value_at(self.index_of(value))


@final
@dataclass(frozen=True, slots=True, repr=False)
class FinRange:
    """`size` equally spaced numbers from lower to upper inclusive; constructed by `finrange` and `logfinrange`."""

    domain_type: Literal["finrange", "logfinrange"]
    lower: float
    upper: float
    size: int
    cast_int: bool = False
    _scale: LogScale | None = field(init=False, repr=False, compare=False)
    _exact: tuple[int, int, int] = field(
        init=False, repr=False, compare=False
    )  # numerators of lower and upper, common denominator
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bool(f"{self.domain_type}: cast_int", self.cast_int)
        checked = _checked_int if self.cast_int else _checked_finite
        lower, upper = (
            checked(f"{self.domain_type}: lower", self.lower),
            checked(f"{self.domain_type}: upper", self.upper),
        )
        _check_order(self.domain_type, lower, upper)
        size = _checked_int(f"{self.domain_type}: size", self.size)
        for name, value in (("lower", lower), ("upper", upper), ("size", size), ("_scale", None)):
            object.__setattr__(self, name, value)
        if self.size < 2:
            raise ValueError(f"{self.domain_type}: size must be at least 2, got {self.size!r}")
        (lower_num, lower_den), (upper_num, upper_den) = (
            Fraction(repr(bound)).as_integer_ratio() for bound in (lower, upper)
        )
        object.__setattr__(self, "_exact", (lower_num * upper_den, upper_num * lower_den, lower_den * upper_den))
        if self.domain_type == "logfinrange":
            _check_positive(self.domain_type, lower)
            object.__setattr__(self, "_scale", LogScale(lower, upper))
        if self.cast_int and self.size > self.upper - self.lower + 1:
            raise ValueError(f"{self.domain_type}: there are fewer than {self.size} integers in {self!r}; reduce size")
        if self.size > _MAX_VALUES or not math.isfinite(self.upper - self.lower) or not self._points_differ():
            raise ValueError(
                f"{self.domain_type}: the points of {self!r} are too close together; "
                f"reduce size or use {self._suggested_domain}"
            )

    @property
    def _suggested_domain(self) -> str:
        return "uniform" if self._scale is None else "lograndint" if self.cast_int else "loguniform"

    def _points_differ(self) -> bool:
        if self._scale is not None:
            return self._log_points_differ(self._scale)
        largest = max(abs(self.lower), abs(self.upper))
        return self.cast_int or (self.upper - self.lower) / (self.size - 1) > 8 * math.ulp(largest)

    def _log_points_differ(self, scale: LogScale) -> bool:
        second = scale.at(1 / (self.size - 1)) if self.size > 2 else self.upper
        if not self.cast_int:
            return second - self.lower > 8 * math.ulp(second)
        # The gaps grow; once they reach 1, rounding cannot merge two points.
        index = 0
        while index < self.size - 2 and scale.at((index + 1) / (self.size - 1)) - scale.at(index / (self.size - 1)) < 1:
            if self.value_at(index) == self.value_at(index + 1):
                return False
            index += 1
        return self.value_at(self.size - 2) < self.upper

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, (self.lower, self.upper, self.size)))
        return f"{self.domain_type}({shown}{', cast_int=True' if self.cast_int else ''})"

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
        # Integer arithmetic, so that each point is rounded once.
        return (2 * numerator + denominator) // (2 * denominator) if self.cast_int else numerator / denominator

    def _nearest(self, value: float) -> int:
        """Return the index of the nearest point."""
        if self._scale is not None:
            inside = min(max(value, self.lower), self.upper)
            u = 1.0 if inside == self.upper else self._scale.position(inside)
        else:
            u = (value - self.lower) / (self.upper - self.lower)
        guess = min(max(round(u * (self.size - 1)), 0), self.size - 1)
        # With cast_int, rounding can make a neighbor the nearest point.
        candidates = (index for index in (guess, guess - 1, guess + 1) if 0 <= index < self.size)
        return min(candidates, key=lambda index: abs(self.value_at(index) - value))

    def index_of(self, value: object) -> int:
        if not self.contains(value):
            raise ValueError(f"{value!r} is not in {self!r}")
        return self._nearest(float(value))  # type: ignore[arg-type]  # callers have checked contains()

    def from_unit(self, u: float) -> float:
        return self.value_at(bin_at(u, self.size))

    def to_unit(self, value: object) -> float:
        return middle_of_bin(self.index_of(value), self.size)

    def contains(self, value: object) -> bool:
        """Return True for one of the points, up to rounding: 0.3 is in finrange(0.1, 1.0, 10)."""
        if not is_number(value) or not math.isfinite(value):
            return False
        index = self._nearest(value)
        if self.cast_int:
            return self.value_at(index) == value
        neighbor = index - 1 if index else 1
        return abs(self.value_at(index) - value) <= _TOLERANCE * abs(self.value_at(index) - self.value_at(neighbor))

    def normalize(self, value: object) -> float:
        return self.value_at(self.index_of(value))


def _checked_finite(label: str, value: object) -> float:
    if not is_number(value):
        raise TypeError(f"{label} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{label} must be finite, got {value!r}")
    return number


def _checked_int(label: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{label} must be an int, got {value!r} of type {type(value).__name__}")
    return int(value)


def _is_integral(value: object) -> TypeGuard[float]:
    """Return True for integers, including floats such as 3.0."""
    return is_number(value) and (isinstance(value, numbers.Integral) or float(value).is_integer())


def _check_order(domain_type: str, lower: float, upper: float) -> None:
    if lower > upper:
        raise ValueError(
            f"{domain_type}: lower {lower!r} is above upper {upper!r}; write {domain_type}({upper!r}, {lower!r})"
        )
    if lower == upper:
        raise ValueError(f"{domain_type}: lower and upper are both {lower!r}; write the constant {lower!r} instead")


def _check_positive(domain_type: str, lower: float) -> None:
    if lower <= 0:
        linear = domain_type.replace("log", "")
        raise ValueError(f"{domain_type}: lower must be above 0, got {lower!r}; to include 0, use {linear}")

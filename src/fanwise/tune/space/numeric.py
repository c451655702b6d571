"""Numeric domains: intervals of real numbers, multiples of a step, and equally spaced points.

    Interval    uniform, loguniform, reverseloguniform
    Quantized   randint, lograndint, quniform, qloguniform, qrandint, qlograndint
    FinRange    finrange, logfinrange

A bound or step stands for the decimal number in the user's code, not for its binary approximation. So the third
multiple of 0.1 is 0.3, not 0.30000000000000004, and the third point of logfinrange(0.0001, 0.1, 4) is 0.01. A step such
as 1/3 stands for the fraction.
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal, final

from ..values import checked_bool, is_number
from .base import Domain, FiniteDomain, set_fields
from .scales import FRACTION_BITS, LogScale, ReverseLogScale, below_one, check_unit, exp2

IntervalType = Literal["uniform", "loguniform", "reverseloguniform"]
QuantizedType = Literal["randint", "lograndint", "quniform", "qloguniform", "qrandint", "qlograndint"]

_MAX_FLOAT = math.nextafter(math.inf, 0.0)
_MAX_VALUES = 2**52  # with more values, `to_unit`, the middle of a value's share of [0, 1), could round to its edge
_MAX_LOG_MULTIPLE = 2**45  # keeps the exponent in `from_unit` below 46
_TOLERANCE = Fraction(1, 10**6)  # maximum rounding error of a float, as a fraction of the step


@final
@dataclass(frozen=True, slots=True, repr=False)
class Interval(Domain):
    """Real numbers between lower and upper. Created by `uniform`, `loguniform` and `reverseloguniform`."""

    domain_type: IntervalType
    lower: float
    upper: float
    _scale: LogScale | ReverseLogScale | None = field(init=False, repr=False, compare=False)
    num_values: ClassVar[None] = None

    def __post_init__(self) -> None:
        lower, upper = _checked_bounds(self.domain_type, self.lower, self.upper, _checked_finite)
        set_fields(self, lower=lower, upper=upper)
        set_fields(self, _scale=self._make_scale(lower, upper))

    def _make_scale(self, lower: float, upper: float) -> LogScale | ReverseLogScale | None:
        if self.domain_type == "uniform":
            if not math.isfinite(upper - lower):
                raise ValueError(f"uniform: upper - lower must be finite, got {self!r}")
            return None
        if self.domain_type == "loguniform":
            _check_positive(self.domain_type, lower)
            return LogScale(lower, upper)
        if not 0.0 <= lower or not 1.0 - lower > 1.0 - upper > 0.0:
            raise ValueError(
                f"reverseloguniform: the bounds must lie in [0, 1) with different distances to 1, got {self!r}; "
                f"for values near 0 use loguniform"
            )
        return ReverseLogScale(lower, upper)

    def settings(self) -> dict[str, object]:
        return {"lower": self.lower, "upper": self.upper}

    def from_unit(self, u: float) -> float:
        if self._scale is not None:
            return self._scale.at(check_unit(u))
        # lower * (1 - u) + upper * u is not monotone.
        return min(self.lower + check_unit(u) * (self.upper - self.lower), self.upper)

    def to_unit(self, value: object) -> float:
        number = self.normalize(value)
        if self._scale is not None:
            return self._scale.position(number)
        return below_one((number - self.lower) / (self.upper - self.lower))

    def contains(self, value: object) -> bool:
        return is_number(value) and self.lower <= value <= self.upper

    def normalize(self, value: object) -> float:
        if not (is_number(value) and self.lower <= value <= self.upper):
            raise ValueError(f"{value!r} is not in {self!r}")
        return float(value)


@final
@dataclass(frozen=True, slots=True, repr=False)
class Quantized(FiniteDomain):
    """Multiples of q from lower to upper inclusive. Created by `randint`, `lograndint`, `quniform`, ...

    On a log scale, the probability of k * q is proportional to log((k + 1/2) / (k - 1/2)), also at the bounds.
    """

    domain_type: QuantizedType
    lower: float
    upper: float
    q: float = 1
    _step: tuple[int, int] = field(init=False, repr=False, compare=False)  # q as a fraction
    _first: int = field(init=False, repr=False, compare=False)  # lower / q
    _size: int = field(init=False, repr=False, compare=False)
    _scale: LogScale | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        convert = _checked_int if self._is_int else _checked_finite
        lower, upper = _checked_bounds(self.domain_type, self.lower, self.upper, convert)
        q = convert(f"{self.domain_type}: q", self.q)
        if q <= 0:
            raise ValueError(f"{self.domain_type}: q must be above 0, got {q!r}")
        step = Fraction(q).limit_denominator(1000)  # recovers fractions such as 1/3 from their float
        if float(step) != q:
            step = Fraction(repr(q))
        first, last = self._multiple("lower", lower, step), self._multiple("upper", upper, step)
        set_fields(self, q=q, _step=step.as_integer_ratio(), _first=first, _size=last - first + 1)
        set_fields(self, lower=self._value(first), upper=self._value(last), _scale=self._make_scale(first, last))

    def _multiple(self, bound: str, value: float, step: Fraction) -> int:
        """Return k such that the bound is k * step. Raises ValueError if the bound is not a multiple of the step."""
        ratio = (Fraction(value) if self._is_int else Fraction(repr(value))) / step
        nearest = round(ratio)
        if abs(ratio - nearest) > (0 if self._is_int else _TOLERANCE):
            number = int if self._is_int else float
            lower_neighbor, upper_neighbor = number(math.floor(ratio) * step), number(math.ceil(ratio) * step)
            raise ValueError(
                f"{self.domain_type}: {bound} {value!r} is not a multiple of q = {self.q!r}; "
                f"the nearest ones are {lower_neighbor!r} and {upper_neighbor!r}"
            )
        return nearest

    def _make_scale(self, first: int, last: int) -> LogScale | None:
        if self._size > _MAX_VALUES:
            raise ValueError(
                f"{self.domain_type}: at most 2**52 values can be represented, got {self._size}; narrow the range"
            )
        if "log" not in self.domain_type:
            return None
        _check_positive(self.domain_type, self._value(first))
        if last > _MAX_LOG_MULTIPLE:
            upper = self._value(last)
            raise ValueError(f"{self.domain_type}: upper must be at most 2**45 times q, got {upper!r}; use loguniform")
        return LogScale(first - 0.5, last + 0.5)

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

    def find(self, value: object) -> int | None:
        """Return the index of a multiple, or None. Ignore rounding errors, so 0.1 * 3 is a multiple of 0.1."""
        if not is_number(value) or not abs(value) <= _MAX_FLOAT:
            return None
        numerator, denominator = self._step
        if self._is_int:
            multiple, rest = divmod(int(value), numerator)
            is_multiple = rest == 0 and int(value) == value
        else:
            ratio = Fraction(float(value)) * denominator / numerator
            multiple = round(ratio)
            is_multiple = abs(ratio - multiple) <= _TOLERANCE
        index = multiple - self._first
        return index if is_multiple and 0 <= index < self._size else None

    def from_unit(self, u: float) -> float:
        if self._scale is None:
            return FiniteDomain.from_unit(self, u)  # type: ignore[return-value]  # `value_at` returns float
        m, e = exp2(self._scale.log_at(check_unit(u)))
        multiple = ((m >> (FRACTION_BITS - 1 - e)) + 1) >> 1  # rounds the fixed-point number half up
        return self.value_at(min(max(multiple - self._first, 0), self._size - 1))

    def to_unit(self, value: object) -> float:
        if self._scale is None:
            return FiniteDomain.to_unit(self, value)
        return self._scale.position(self._first + self.index_of(value))


@final
@dataclass(frozen=True, slots=True, repr=False)
class FinRange(FiniteDomain):
    """`size` points, equally spaced on a linear or log scale. Created by `finrange` and `logfinrange`."""

    domain_type: Literal["finrange", "logfinrange"]
    lower: float
    upper: float
    size: int
    cast_int: bool = False
    _scale: LogScale | None = field(init=False, repr=False, compare=False)
    # Numerators of lower and upper, and their common denominator.
    _bound_fractions: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked_bool(f"{self.domain_type}: cast_int", self.cast_int)
        convert = _checked_int if self.cast_int else _checked_finite
        lower, upper = _checked_bounds(self.domain_type, self.lower, self.upper, convert)
        size = _checked_int(f"{self.domain_type}: size", self.size)
        if size < 2:
            raise ValueError(f"{self.domain_type}: size must be at least 2, got {size!r}")
        (a, c), (b, d) = (Fraction(repr(bound)).as_integer_ratio() for bound in (lower, upper))
        set_fields(self, lower=lower, upper=upper, size=size, _bound_fractions=(a * d, b * c, c * d), _scale=None)
        if self.domain_type == "logfinrange":
            _check_positive(self.domain_type, lower)
            set_fields(self, _scale=LogScale(lower, upper))
        if self.cast_int and size > upper - lower + 1:
            raise ValueError(f"{self.domain_type}: there are fewer than {size} integers in {self!r}; reduce size")
        if size > _MAX_VALUES or not math.isfinite(upper - lower) or not self._points_differ():
            function = "uniform" if self._scale is None else "lograndint" if self.cast_int else "loguniform"
            raise ValueError(
                f"{self.domain_type}: the points of {self!r} are too close together; reduce size or use {function}"
            )

    def _points_differ(self) -> bool:
        num_steps, scale = self.size - 1, self._scale
        if scale is None:
            largest_bound = max(abs(self.lower), abs(self.upper))
            return self.cast_int or (self.upper - self.lower) / num_steps > 8 * math.ulp(largest_bound)
        if not self.cast_int:
            second_point = scale.at(1 / num_steps) if num_steps > 1 else self.upper
            return second_point - self.lower > 8 * math.ulp(second_point)
        # The gaps grow. When they reach 1, rounding cannot merge two points.
        index = 0
        while index < num_steps - 1 and scale.at((index + 1) / num_steps) - scale.at(index / num_steps) < 1:
            if self.value_at(index) == self.value_at(index + 1):
                return False
            index += 1
        return self.value_at(num_steps - 1) < self.upper

    def __repr__(self) -> str:
        bounds = f"{self.lower!r}, {self.upper!r}, {self.size!r}"
        return f"{self.domain_type}({bounds}{', cast_int=True' if self.cast_int else ''})"

    def settings(self) -> dict[str, object]:
        return {"lower": self.lower, "upper": self.upper, "size": self.size, "cast_int": self.cast_int}

    @property
    def num_values(self) -> int:
        return self.size

    def value_at(self, index: int) -> float:
        num_steps = self.size - 1
        if index in (0, num_steps):
            return self.upper if index else self.lower
        if self._scale is not None:
            value = self._scale.at_step(index, num_steps)
            return math.floor(value + 0.5) if self.cast_int else value
        lower, upper, denominator = self._bound_fractions
        numerator, denominator = lower * (num_steps - index) + upper * index, denominator * num_steps
        # Integer arithmetic, because floats would be rounded more than once.
        return (2 * numerator + denominator) // (2 * denominator) if self.cast_int else numerator / denominator

    def find(self, value: object) -> int | None:
        """Return the index of a point, or None. Ignore rounding errors, so 0.3 is in finrange(0.1, 1.0, 10)."""
        if not is_number(value) or not abs(value) <= _MAX_FLOAT:
            return None
        num_steps = self.size - 1
        clipped_value = min(max(value, self.lower), self.upper)
        if self._scale is not None:
            u = 1.0 if clipped_value == self.upper else self._scale.position(clipped_value)
        else:
            u = (clipped_value - self.lower) / (self.upper - self.lower)
        guess = round(u * num_steps)
        # With cast_int, a neighbor can be nearest, because points are rounded.
        neighbors = (index for index in (guess, guess - 1, guess + 1) if 0 <= index <= num_steps)
        index = min(neighbors, key=lambda index: abs(self.value_at(index) - value))
        point = self.value_at(index)
        step = abs(point - self.value_at(index - 1 if index else 1))
        return index if abs(point - value) <= (0 if self.cast_int else _TOLERANCE * step) else None


def _checked_bounds(
    domain_type: str, lower: object, upper: object, convert: Callable[[str, object], float]
) -> tuple[float, float]:
    low, high = convert(f"{domain_type}: lower", lower), convert(f"{domain_type}: upper", upper)
    if low > high:
        raise ValueError(
            f"{domain_type}: lower {low!r} is above upper {high!r}; write {domain_type}({high!r}, {low!r})"
        )
    if low == high:
        raise ValueError(f"{domain_type}: lower and upper are both {low!r}; write the constant {low!r} instead")
    return low, high


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


def _check_positive(domain_type: str, lower: float) -> None:
    if lower <= 0:
        linear_type = domain_type.replace("log", "")
        raise ValueError(f"{domain_type}: lower must be above 0, got {lower!r}; to include 0, use {linear_type}")

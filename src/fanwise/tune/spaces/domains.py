"""Domains: which values one hyperparameter may take, and how a number in [0, 1) becomes one of them.

    u in [0, 1)  --from_unit-->  value  --to_unit-->  u in [0, 1)  --from_unit-->  the same value

A domain (Uniform, LogUniform, RandInt, LogRandInt, Choice, FinRange) knows its values and nothing of names, chance or
trials. `contains` accepts what a person may write (numbers of numpy, 3.0 for 3), `plain` turns it into plain Python.

Invariants: every value is plain Python (int, float, str, bool, None); no value lies outside its domain, whatever
rounding does; all integers of `randint` and all points of `choice` and `finrange` have the same probability.
Logarithms are taken with `decimal`, which rounds correctly everywhere; the C library's differ from machine to
machine in the last bit, and a search must replay with the same bits.
"""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import TypeAlias, TypeGuard, final

from ...base.nearest import did_you_mean
from ..values import check_switch, is_number, plain_json

Value: TypeAlias = int | float | str | bool | None

# 40 digits: rounding to a float or an int afterwards cannot leave bounds that are floats or ints below 2**45.
_DECIMAL = Context(prec=40, rounding=ROUND_HALF_EVEN, traps=[])
_HALF = Decimal("0.5")
_LARGEST_UNIT = math.nextafter(1.0, 0.0)
# A float has 53 bits: from here on, the middle of an integer's share of [0, 1) cannot be told from its edge.
_MOST_POINTS = 2**52
_LARGEST_LOG_INT = 2**45


def _finite(what: str, value: object) -> float:
    if not is_number(value):
        raise TypeError(f"{what} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, got {value!r}")
    return number


def _whole(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an int, got {value!r} of type {type(value).__name__}")
    return int(value)


def _read_bounds(domain: "Bounded", kind: str, read: Callable[[str, object], float]) -> None:
    """Replace the bounds by what `read` makes of them, and check that they are in order."""
    lower, upper = read(f"{kind}: lower", domain.lower), read(f"{kind}: upper", domain.upper)
    if lower > upper:
        raise ValueError(f"{kind}: lower {lower!r} is above upper {upper!r}; write {kind}({upper!r}, {lower!r})")
    if lower == upper:
        raise ValueError(f"{kind}: lower and upper are both {lower!r}; write the constant {lower!r} instead")
    object.__setattr__(domain, "lower", lower)  # frozen for everybody else
    object.__setattr__(domain, "upper", upper)


def _check_unit(u: float) -> float:
    if not 0.0 <= u < 1.0:
        raise ValueError(f"u must lie in [0, 1), got {u!r}")
    return u


def _check_inside(domain: "Domain", value: object) -> None:
    if not domain.contains(value):
        raise ValueError(f"{value!r} is not in {domain!r}")


def _as_float(value: object) -> float:
    return float(value)  # type: ignore[arg-type]  # called on what contains() accepts


def _as_int(value: object) -> int:
    return int(value)  # type: ignore[call-overload,no-any-return]  # called on what contains() accepts


def _is_whole(value: object) -> TypeGuard[float]:
    return is_number(value) and (isinstance(value, numbers.Integral) or float(value).is_integer())


def _index_at(u: float, size: int) -> int:
    """Which of `size` equal shares of [0, 1) holds u; exact, so that no share is wider than another."""
    numerator, denominator = _check_unit(u).as_integer_ratio()
    return numerator * size // denominator


def _middle_of(index: int, size: int) -> float:
    return (2 * index + 1) / (2 * size)


def _lerp(lower: float, upper: float, t: float) -> float:
    return min(max(lower * (1.0 - t) + upper * t, lower), upper)


def _clip(u: float) -> float:
    return min(max(u, 0.0), _LARGEST_UNIT)


def _log_ratio(upper: float, lower: float) -> Decimal:
    return _DECIMAL.ln(_DECIMAL.divide(Decimal.from_float(upper), Decimal.from_float(lower)))


def _log_lerp(lower: float, upper: float, u: float) -> Decimal:
    power = _DECIMAL.multiply(Decimal.from_float(u), _log_ratio(upper, lower))
    return _DECIMAL.multiply(Decimal.from_float(lower), _DECIMAL.exp(power))


@final
@dataclass(frozen=True, slots=True, repr=False)
class Uniform:
    """Real numbers between lower and upper, all equally likely. Made by `uniform`."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _read_bounds(self, "uniform", _finite)
        if not math.isfinite(self.upper - self.lower):
            raise ValueError(f"uniform: upper - lower must be finite, got {self!r}")

    def __repr__(self) -> str:
        return f"uniform({self.lower!r}, {self.upper!r})"

    def from_unit(self, u: float) -> float:
        return _lerp(self.lower, self.upper, _check_unit(u))

    def to_unit(self, value: object) -> float:
        _check_inside(self, value)
        return _clip((self.plain(value) - self.lower) / (self.upper - self.lower))

    def contains(self, value: object) -> bool:
        return is_number(value) and self.lower <= value <= self.upper

    def plain(self, value: object) -> float:
        return _as_float(value)


@final
@dataclass(frozen=True, slots=True, repr=False)
class LogUniform:
    """Positive real numbers whose logarithm is uniform: 0.01 to 0.1 is as likely as 0.1 to 1. Made by `loguniform`."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _read_bounds(self, "loguniform", _finite)
        if self.lower <= 0:
            raise ValueError(f"loguniform: lower must be above 0, got {self.lower!r}; with 0 use uniform")

    def __repr__(self) -> str:
        return f"loguniform({self.lower!r}, {self.upper!r})"

    def from_unit(self, u: float) -> float:
        return float(_log_lerp(self.lower, self.upper, _check_unit(u)))

    def to_unit(self, value: object) -> float:
        _check_inside(self, value)
        part = _DECIMAL.divide(_log_ratio(self.plain(value), self.lower), _log_ratio(self.upper, self.lower))
        return _clip(float(part))

    def contains(self, value: object) -> bool:
        return is_number(value) and self.lower <= value <= self.upper

    def plain(self, value: object) -> float:
        return _as_float(value)


@final
@dataclass(frozen=True, slots=True, repr=False)
class RandInt:
    """Integers from lower to upper, both included, all equally likely. Made by `randint`."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        _read_bounds(self, "randint", _whole)
        if self._size > _MOST_POINTS:
            raise ValueError(f"randint: at most 2**52 integers can be told apart, got {self._size}; narrow the range")

    def __repr__(self) -> str:
        return f"randint({self.lower!r}, {self.upper!r})"

    @property
    def _size(self) -> int:
        return self.upper - self.lower + 1

    def from_unit(self, u: float) -> int:
        return self.lower + _index_at(u, self._size)

    def to_unit(self, value: object) -> float:
        _check_inside(self, value)
        return _middle_of(self.plain(value) - self.lower, self._size)

    def contains(self, value: object) -> bool:
        return _is_whole(value) and self.lower <= value <= self.upper

    def plain(self, value: object) -> int:
        return _as_int(value)


@final
@dataclass(frozen=True, slots=True, repr=False)
class LogRandInt:
    """Integers from lower to upper, both included, k about as likely as 1/k. Made by `lograndint`.

    The share of k is that of [k - 1/2, k + 1/2] on the logarithmic scale, so the two ends have whole shares.
    """

    lower: int
    upper: int

    def __post_init__(self) -> None:
        _read_bounds(self, "lograndint", _whole)
        if self.lower < 1:
            raise ValueError(f"lograndint: lower must be at least 1, got {self.lower!r}; with 0 use randint")
        if self.upper > _LARGEST_LOG_INT:
            raise ValueError(f"lograndint: upper must be at most 2**45, got {self.upper!r}; use loguniform")

    def __repr__(self) -> str:
        return f"lograndint({self.lower!r}, {self.upper!r})"

    def from_unit(self, u: float) -> int:
        middle = _log_lerp(self.lower - 0.5, self.upper + 0.5, _check_unit(u))
        return math.floor(_DECIMAL.add(middle, _HALF))

    def to_unit(self, value: object) -> float:
        _check_inside(self, value)
        whole = _log_ratio(self.upper + 0.5, self.lower - 0.5)
        return _clip(float(_DECIMAL.divide(_log_ratio(self.plain(value), self.lower - 0.5), whole)))

    def contains(self, value: object) -> bool:
        return _is_whole(value) and self.lower <= value <= self.upper

    def plain(self, value: object) -> int:
        return _as_int(value)


@final
@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """One of a few named values, all equally likely and without an order. Made by `choice`."""

    categories: tuple[Value, ...]

    def __post_init__(self) -> None:
        given = self.categories
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise TypeError(f"choice takes a list of values, got {given!r} of type {type(given).__name__}")
        if not given:
            raise ValueError("choice needs at least one category, got none")
        values = tuple(map(_category, given))
        object.__setattr__(self, "categories", values)
        for index, value in enumerate(values):
            if self._index(value) != index:
                raise ValueError(f"choice has {value!r} twice; say each category once")

    def __repr__(self) -> str:
        return f"choice({list(self.categories)!r})"

    def _index(self, value: object) -> int | None:
        # True == 1 in Python, but not here: a switch and a number are different hyperparameters.
        for index, category in enumerate(self.categories):
            if _sort(category) == _sort(value) and category == value:
                return index
        return None

    def from_unit(self, u: float) -> Value:
        return self.categories[_index_at(u, len(self.categories))]

    def to_unit(self, value: object) -> float:
        _check_inside(self, value)
        index = self._index(value)
        assert index is not None, "contains() has found it"
        return _middle_of(index, len(self.categories))

    def contains(self, value: object) -> bool:
        return self._index(value) is not None

    def plain(self, value: object) -> Value:
        index = self._index(value)
        assert index is not None, "called on what contains() accepts"
        return self.categories[index]


def _sort(value: object) -> type:
    if isinstance(value, bool):
        return bool
    return numbers.Real if isinstance(value, numbers.Real) else str if isinstance(value, str) else type(value)


def _category(value: object) -> Value:
    copy = plain_json("a category of choice", value)
    if isinstance(copy, list | dict):
        raise TypeError(
            f"a category of choice must be text, a number, a boolean or None, got {value!r}; "
            f"give it a name and look it up in the objective"
        )
    return copy  # type: ignore[return-value]  # plain_json returns nothing else


@final
@dataclass(frozen=True, slots=True, repr=False)
class FinRange:
    """`size` equally spaced numbers from lower to upper, both included, all equally likely. Made by `finrange`."""

    lower: float
    upper: float
    size: int
    cast_int: bool = False

    def __post_init__(self) -> None:
        check_switch("finrange: cast_int", self.cast_int)
        _read_bounds(self, "finrange", _whole if self.cast_int else _finite)
        object.__setattr__(self, "size", _whole("finrange: size", self.size))
        if self.size < 2:
            raise ValueError(f"finrange: size must be at least 2, got {self.size!r}")
        if self.cast_int and self.size > self.upper - self.lower + 1:
            raise ValueError(f"finrange: there are fewer than {self.size} integers in {self!r}; lower size")
        if self.size > _MOST_POINTS or not math.isfinite(self.upper - self.lower) or not self._steps_differ():
            raise ValueError(f"finrange: the points of {self!r} cannot be told apart; lower size or use uniform")

    def __repr__(self) -> str:
        return f"finrange({self.lower!r}, {self.upper!r}, {self.size!r}{', cast_int=True' if self.cast_int else ''})"

    def _steps_differ(self) -> bool:
        largest = max(abs(self.lower), abs(self.upper))
        return self.cast_int or (self.upper - self.lower) / (self.size - 1) > 8 * math.ulp(largest)

    def _point(self, index: int) -> float:
        steps = self.size - 1
        if self.cast_int:
            # lower + index/steps * width, rounded half up, in whole numbers
            twice = 2 * (int(self.lower) * (steps - index) + int(self.upper) * index)
            return (twice + steps) // (2 * steps)
        return _lerp(self.lower, self.upper, index / steps)

    def _index(self, value: float) -> int:
        part = (value - self.lower) / (self.upper - self.lower)
        return min(max(round(part * (self.size - 1)), 0), self.size - 1)

    def from_unit(self, u: float) -> float:
        return self._point(_index_at(u, self.size))

    def to_unit(self, value: object) -> float:
        _check_inside(self, value)
        return _middle_of(self._index(self.plain(value)), self.size)

    def contains(self, value: object) -> bool:
        """Whether value is one of the points; the last bits may differ: 0.3 is in finrange(0.1, 1.0, 10)."""
        if not is_number(value) or not math.isfinite(value):
            return False
        step = (self.upper - self.lower) / (self.size - 1)
        return abs(self._point(self._index(value)) - value) <= (0 if self.cast_int else 1e-6 * step)

    def plain(self, value: object) -> float:
        return self._point(self._index(value))  # type: ignore[arg-type]  # called on what contains() accepts


Bounded: TypeAlias = Uniform | LogUniform | RandInt | LogRandInt | FinRange
Domain: TypeAlias = Bounded | Choice

_DOMAINS: Mapping[str, type[Domain]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "randint": RandInt,
    "lograndint": LogRandInt,
    "choice": Choice,
    "finrange": FinRange,
}


def uniform(lower: float, upper: float) -> Uniform:
    """Real numbers between lower and upper, all equally likely.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN or infinite.
    """
    return Uniform(lower, upper)


def loguniform(lower: float, upper: float) -> LogUniform:
    """Positive real numbers, uniform on the logarithmic scale: for learning rates and regularisation.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN, infinite, or not above 0.

    >>> loguniform(0.01, 1).from_unit(0.5)
    0.1
    """
    return LogUniform(lower, upper)


def randint(lower: int, upper: int) -> RandInt:
    """Integers from lower to upper, both included, all equally likely.

    Raises:
        TypeError: a bound is not an int.
        ValueError: bounds reversed or equal, or more than 2**52 integers.

    >>> randint(32, 256).from_unit(0.0), randint(32, 256).from_unit(0.9999)
    (32, 256)
    """
    return RandInt(lower, upper)


def lograndint(lower: int, upper: int) -> LogRandInt:
    """Integers from lower to upper, both included, uniform on the logarithmic scale: for widths and batch sizes.

    Raises:
        TypeError: a bound is not an int.
        ValueError: bounds reversed or equal, lower below 1, or upper above 2**45.
    """
    return LogRandInt(lower, upper)


def choice(categories: Sequence[Value]) -> Choice:
    """One of `categories` (text, numbers, booleans, None), all equally likely.

    Raises:
        TypeError: not a list or tuple, or a category that is neither text, number, boolean nor None.
        ValueError: no category, one of them twice, or NaN.

    >>> choice(["relu", "tanh"]).from_unit(0.5)
    'tanh'
    """
    return Choice(tuple(categories) if isinstance(categories, list | range) else categories)  # type: ignore[arg-type]  # checked there


def finrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` equally spaced numbers from lower to upper, both included; rounded to ints with cast_int.

    Raises:
        TypeError: a bound is not a number (with cast_int: not an int), or size is not an int.
        ValueError: bounds reversed, equal, NaN or infinite; size below 2; points that could not be told apart.

    >>> [finrange(0.5, 2.0, 4).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.5, 1.0, 1.5, 2.0]
    """
    return FinRange(lower, upper, size, cast_int)


def domain_to_json(domain: Domain) -> dict[str, object]:
    """The JSON form of a domain: its kind and its settings."""
    kind = next(kind for kind, made in _DOMAINS.items() if isinstance(domain, made))
    body = {field.name: getattr(domain, field.name) for field in fields(domain)}
    return {"domain": kind, **{name: list(item) if isinstance(item, tuple) else item for name, item in body.items()}}


def domain_from_json(body: Mapping[str, object]) -> Domain:
    """The domain that `domain_to_json` wrote.

    Raises:
        ValueError: not written by it.
    """
    settings = dict(body)
    kind = settings.pop("domain", None)
    if kind not in _DOMAINS:
        raise ValueError(f"{kind!r} is not a kind of domain{did_you_mean(kind, _DOMAINS)}")
    try:
        return _DOMAINS[str(kind)](**settings)  # type: ignore[arg-type]  # the domain checks them
    except TypeError as error:
        raise ValueError(f"{dict(body)!r} is not the JSON form of a domain: {error}") from error

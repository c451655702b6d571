"""What the domains have in common: how their settings are read, and how [0, 1) is divided into shares. Quiet."""

import math
import numbers
from typing import TypeAlias, TypeGuard

from ..values import is_number

Value: TypeAlias = int | float | str | bool | None

# A float has 53 bits: from here on, the middle of an integer's share of [0, 1) cannot be told from its edge.
MOST_VALUES = 2**52
_LARGEST_UNIT = math.nextafter(1.0, 0.0)


def finite(what: str, value: object) -> float:
    """A finite number as a float; or TypeError, ValueError that begin with `what`."""
    if not is_number(value):
        raise TypeError(f"{what} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, got {value!r}")
    return number


def whole(what: str, value: object) -> int:
    """An int; or TypeError that begins with `what`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an int, got {value!r} of type {type(value).__name__}")
    return int(value)


def is_whole(value: object) -> TypeGuard[float]:
    """Whether a value is an integer, also one that is written as 3.0."""
    return is_number(value) and (isinstance(value, numbers.Integral) or float(value).is_integer())


def check_order(made_by: str, lower: float, upper: float) -> None:
    """ValueError if the bounds are reversed or equal, with what to write instead."""
    if lower > upper:
        raise ValueError(f"{made_by}: lower {lower!r} is above upper {upper!r}; write {made_by}({upper!r}, {lower!r})")
    if lower == upper:
        raise ValueError(f"{made_by}: lower and upper are both {lower!r}; write the constant {lower!r} instead")


def check_positive(made_by: str, lower: float) -> None:
    """ValueError if a logarithmic scale would begin at 0 or below."""
    if lower <= 0:
        instead = made_by.replace("log", "")
        raise ValueError(f"{made_by}: lower must be above 0, got {lower!r}; with 0 use {instead}")


def check_unit(u: float) -> float:
    """u, if it lies in [0, 1); or ValueError."""
    if not 0.0 <= u < 1.0:
        raise ValueError(f"u must lie in [0, 1), got {u!r}")
    return u


def not_inside(value: object, domain: object) -> ValueError:
    """What is raised for a value that a domain does not contain."""
    return ValueError(f"{value!r} is not in {domain!r}")


def share_at(u: float, size: int) -> int:
    """Which of `size` equal shares of [0, 1) holds u: in integers, so that no share is wider than another."""
    return int(check_unit(u) * 18446744073709551616.0) * size >> 64  # the float is 2**64; a float times it is exact


def middle_of_share(index: int, size: int) -> float:
    """The middle of one of `size` equal shares of [0, 1)."""
    return (2 * index + 1) / (2 * size)


def below_one(u: float) -> float:
    """u, moved into [0, 1) if rounding took it out."""
    return min(max(u, 0.0), _LARGEST_UNIT)

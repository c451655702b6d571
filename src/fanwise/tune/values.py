"""Values: what counts as a number, and what a configuration may hold so that the record can keep it.

numpy's scalars are numbers here without numpy being imported: they are registered as `numbers.Real`. Its booleans are
known by their names.
"""

import math
import numbers
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """An int or a float, of Python or numpy; a boolean is none."""
    kind = type(value)  # looked at first: asking an abstract class takes ten times as long
    return kind is float or kind is int or (isinstance(value, numbers.Real) and kind is not bool)


def is_switch(value: object) -> bool:
    """A boolean, of Python or numpy."""
    made = type(value)
    return made is bool or (made.__module__ == "numpy" and made.__name__ in ("bool", "bool_"))


def check_switch(name: str, value: object) -> bool:
    """True or False, or TypeError: a text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}")
    return value


def plain_json(what: str, value: object) -> object:
    """A deep copy of `value` in plain Python types that JSON keeps as they are.

    Numbers and booleans of numpy become int, float and bool; lists and dicts are copied.

    Raises:
        TypeError: JSON cannot hold it, or would change its type (tuples, sets, keys that are no text).
        ValueError: NaN, which is not equal to itself and so cannot be checked.
    """
    if value is None:
        return value
    if is_switch(value):
        return bool(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if math.isnan(value):
            raise ValueError(f"{what} is NaN; use None for a value that is missing")
        return float(value)
    if isinstance(value, list):
        return [plain_json(f"{what}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str.__str__(key): plain_json(f"{what}[{key!r}]", item) for key, item in value.items()}
    raise TypeError(
        f"{what} is {value!r} of type {type(value).__name__}, which the record cannot keep. "
        f"Use numbers, text, booleans, None, lists, or dicts with text keys, and make the object inside the objective"
    )


def at_least(name: str, value: int, smallest: int) -> int:
    """An int, `smallest` or more; or TypeError, ValueError with the setting's name."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    if value < smallest:
        raise ValueError(f"{name} must be at least {smallest}, got {value!r}")
    return value


def rounded_resource(value: float) -> float:
    """Round a resource to 12 significant digits, so that sums of floats reach the level that they mean.

    >>> rounded_resource(0.1 + 0.2), rounded_resource(3)
    (0.3, 3)
    """
    return value if isinstance(value, int) or value.is_integer() else float(f"{value:.12g}")


def probability(name: str, value: float) -> float:
    """A number from 0 to 1; or TypeError, ValueError with the setting's name."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number from 0 to 1, got {value!r} of type {type(value).__name__}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def seconds(name: str, value: float) -> float:
    """Seconds, finite and not negative; or TypeError, ValueError with the setting's name."""
    if not is_number(value):
        raise TypeError(f"{name} must be seconds, got {value!r} of type {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and at least 0 seconds, got {value!r}")
    return float(value)

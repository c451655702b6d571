"""Validation and conversion of values in configurations, reports and settings.

NumPy scalars are recognized without importing NumPy, because they are registered as `numbers.Real`. NumPy booleans are
recognized by the name of their type.
"""

import hashlib
import math
import numbers
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

Value: TypeAlias = int | float | str | bool | None  # value of a hyperparameter

_MAX_NAME_LENGTH = 60


def is_number(value: object) -> TypeGuard[float]:
    """Return True for ints and floats of Python or NumPy, but not for booleans."""
    value_type = type(value)  # a type comparison is ten times faster than isinstance with an ABC
    return value_type is float or value_type is int or (isinstance(value, numbers.Real) and value_type is not bool)


def is_bool(value: object) -> bool:
    """Return True for booleans of Python or NumPy."""
    value_type = type(value)
    return value_type is bool or (value_type.__module__ == "numpy" and value_type.__name__ in ("bool", "bool_"))


def checked_bool(name: str, value: object) -> bool:
    """Return a boolean setting. Raises TypeError for other types, such as str."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}")
    return value


def plain_json(label: str, value: object) -> object:
    """Return a deep copy of a value, in plain Python types that JSON preserves. NumPy scalars are converted.

    Args:
        label: name of the value in error messages.

    Raises:
        TypeError: JSON cannot represent the value, or would change its type (tuples, sets, keys that are not strings).
        ValueError: the value is or contains NaN. NaN is not equal to itself, so configurations could not be compared.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and not math.isnan(value)):
        return value  # fast path: isinstance with an ABC is slow
    if is_bool(value):
        return bool(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if math.isnan(value):
            raise ValueError(f"{label} is NaN; use None for missing values")
        return float(value)
    if isinstance(value, list):
        return [plain_json(f"{label}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str.__str__(key): plain_json(f"{label}[{key!r}]", item) for key, item in value.items()}
    raise TypeError(
        f"{label} is {value!r} of type {type(value).__name__}, which cannot be recorded. "
        f"Use numbers, strings, booleans, None, lists, or dicts with string keys. To pass an object of another type, "
        f"pass its name and create the object in the objective"
    )


def with_objects(config: Mapping[str, object], objects: Mapping[str, Mapping[Any, Any]]) -> dict[str, Any]:
    """Return a copy of a configuration in which names of objects are replaced by the objects (see `object_categories`).

    Lists, tuples and dicts are copied; other objects are shared.
    """
    copy = dict(config)
    for name, object_by_name in objects.items():
        value = copy.get(name)
        if isinstance(value, str) and value in object_by_name:
            copy[name] = copy_containers(object_by_name[value])
    return copy


def copy_containers(value: Any) -> Any:
    """Copy lists, tuples and dicts recursively, but no other objects."""
    if type(value) in (list, tuple):
        return type(value)(map(copy_containers, value))
    return {key: copy_containers(item) for key, item in value.items()} if type(value) is dict else value


def object_name(value: Any) -> str:
    """Return a name for an object, the same in every process.

    >>> object_name(max), object_name([64, 64]), object_name((3, 3)), object_name({"b", "a"})
    ('max', '[64, 64]', '(3, 3)', "{'a', 'b'}")
    """
    text = getattr(value, "__name__", None)
    if not isinstance(text, str):
        is_set = isinstance(value, set | frozenset)
        text = f"{{{', '.join(sorted(map(repr, value)))}}}" if is_set else repr(value)
    text = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", text).split())
    if len(text) > _MAX_NAME_LENGTH:
        return f"{text[: _MAX_NAME_LENGTH - 12]}...#{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"
    return text


def plain_json_or_name(label: str, value: object) -> object:
    """Return `plain_json(label, value)` or, if JSON cannot represent the value, its name. Raises ValueError for NaN."""
    try:
        return plain_json(label, value)
    except TypeError:
        return object_name(value)


def checked_int(name: str, value: object, minimum: int) -> int:
    """Return an int setting. Raises TypeError for other types, ValueError for a value below the minimum."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return value


def round_resource(value: float) -> float:
    """Round a resource to 12 significant digits, so that a rounding error does not matter in comparisons.

    >>> round_resource(0.1 + 0.2), round_resource(3)
    (0.3, 3)
    """
    return value if isinstance(value, int) or value.is_integer() else float(f"{value:.12g}")


def checked_number(name: str, value: object) -> float:
    """Return a number of Python or NumPy as an int or float of Python. Raises TypeError for other types."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def checked_positive(name: str, value: float) -> float:
    """Return a finite setting above 0. Raises TypeError, ValueError."""
    if not 0 < checked_number(name, value) < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}")
    return checked_number(name, value)


def checked_probability(name: str, value: float) -> float:
    """Return a setting between 0 and 1, inclusive. Raises TypeError, ValueError."""
    if not 0 <= checked_number(name, value) <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def checked_nonnegative(name: str, value: float) -> float:
    """Return a finite setting of at least 0. Raises TypeError, ValueError."""
    if not 0 <= checked_number(name, value) < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value!r}")
    return value

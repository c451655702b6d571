"""Values: what counts as a number, and what a configuration may hold so that the record can keep it.

numpy's scalars are numbers here without numpy being imported: they are registered as `numbers.Real`. Its booleans are
known by their names.
"""

import hashlib
import math
import numbers
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

_LONGEST_NAME = 60


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


def with_objects(config: Mapping[str, object], objects: Mapping[str, Mapping[Any, Any]]) -> dict[str, Any]:
    """Return a copy of a configuration, with objects (by hyperparameter and name) in the places of their names.

    Lists, tuples and dicts are copied, so that an objective may change them.
    """
    found = dict(config)
    for name, of_name in objects.items():
        value = found.get(name)
        if isinstance(value, str) and value in of_name:
            found[name] = copy_containers(of_name[value])
    return found


def copy_containers(value: Any) -> Any:  # Any: a category of the user's
    """Copy lists, tuples and dicts, and no other objects in them."""
    if type(value) in (list, tuple):
        return type(value)(map(copy_containers, value))
    return {key: copy_containers(inner) for key, inner in value.items()} if type(value) is dict else value


def name_of(value: Any) -> str:  # Any: a category of the user's
    """Return a name for an object that is the same in every process: no addresses, and sets are sorted.

    >>> name_of(max), name_of([64, 64]), name_of((3, 3)), name_of({"b", "a"})
    ('max', '[64, 64]', '(3, 3)', "{'a', 'b'}")
    """
    text = getattr(value, "__name__", None)
    if not isinstance(text, str):
        is_set = isinstance(value, set | frozenset)
        text = f"{{{', '.join(sorted(map(repr, value)))}}}" if is_set else repr(value)
    text = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", text).split())
    if len(text) > _LONGEST_NAME:
        return f"{text[: _LONGEST_NAME - 12]}...#{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"
    return text


def named_json(what: str, value: object) -> object:
    """Return `plain_json` of a value, or the name of an object that JSON cannot keep. ValueError: NaN."""
    try:
        return plain_json(what, value)
    except TypeError:
        return name_of(value)


def at_least(name: str, value: object, smallest: int) -> int:
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

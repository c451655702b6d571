"""array-api-strict: the standard's functions and nothing else. The reference of `check_portable`, not an engine.

Its arrays are its own; float32 is the default type of floats here, as on every engine of this layer.
"""

import functools
from collections.abc import Callable
from typing import Any

import array_api_strict as strict

from ..namespaces.standard import CONSTANTS, DTYPES, PARTS

# Any throughout: arrays of array-api-strict, which has no annotations.


def names(part: str) -> dict[str, Any]:
    """All that the standard names, by name."""
    home = getattr(strict, part) if part else strict
    found = {name: getattr(home, name) for name in PARTS[part] if hasattr(home, name)}
    if part:
        return found
    found |= {name: getattr(strict, name) for name in DTYPES} | CONSTANTS
    found["__array_namespace_info__"] = strict.__array_namespace_info__
    return found | {name: _float32_by_default(found[name]) for name in _OF_FLOATS} | {"asarray": asarray}


_OF_FLOATS = ("arange", "empty", "eye", "full", "linspace", "ones", "zeros")


def _float32_by_default(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def made(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        x = function(*args, dtype=dtype, **kwargs)
        return strict.astype(x, strict.float32) if dtype is None and x.dtype == strict.float64 else x

    return made


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """As the standard's; floats of Python become float32."""
    x = strict.asarray(obj, dtype=dtype, device=device, copy=copy)
    of_python = not hasattr(obj, "dtype")
    return strict.astype(x, strict.float32) if dtype is None and of_python and x.dtype == strict.float64 else x

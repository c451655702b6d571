"""Writing into arrays of NumPy: `ufunc.at` where an index may select an element twice."""

from typing import Any

import numpy as np

from ..adapters import How
from ..indexing import Index, check_broadcast, is_basic

_Array = np.ndarray[Any, Any]
_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


def changed(x: _Array, index: Index, value: Any, how: How) -> _Array:
    y = x.copy()
    write(y, index, value, how)
    return y


def write(x: _Array, index: Index, value: Any, how: How) -> None:
    if np.ndim(value):
        check_broadcast(np.shape(value), np.shape(x[index]))
    if how == "set":
        x[index] = value
        return
    value = np.asarray(value, dtype=x.dtype)
    if is_basic(index):
        x[index] = _UFUNCS[how](x[index], value)
    else:
        _UFUNCS[how].at(x, index, value)


def read(x: _Array, index: Index) -> Any:
    return x[index]


def new_variable(x: _Array, copy: bool) -> _Array:
    return np.array(x) if copy else np.asarray(x)


def value_of(variable: _Array) -> _Array:
    return variable


def assign(variable: _Array, index: Index, value: Any, how: How) -> _Array:
    write(variable, index, value, how)
    return variable

"""Writing into arrays of NumPy: `ufunc.at` where an index may select an element twice."""

from typing import Any

import numpy as np

from ..adapters import How
from ..indexing import Index, is_basic, operation, positions_to_write

_Array = np.ndarray[Any, Any]


def changed(x: _Array, index: Index, value: Any, how: How) -> _Array:
    return assign(x.copy(), index, value, how)


def read(x: _Array, index: Index) -> Any:
    return x[index]


def new_variable(x: _Array, copy: bool) -> _Array:
    return np.array(x) if copy else np.asarray(x)


def value_of(variable: _Array) -> _Array:
    return variable


def assign(variable: _Array, index: Index, value: Any, how: How) -> _Array:
    if np.ndim(value) or not is_basic(index):
        positions_to_write(variable.shape, index, np.shape(value), how)
    if how == "set":
        variable[index] = value
        return variable
    value = np.asarray(value, dtype=variable.dtype)
    if how in ("add", "subtract") and not is_basic(index):
        getattr(np, how).at(variable, index, value)
    else:
        variable[index] = operation(np, how)(variable[index], value)
    return variable

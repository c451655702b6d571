"""Cells of numpy: an array, written to."""

from typing import Any

import numpy as np

from ..indexing import with_numpy
from ..indexing.places import How

_Array = np.ndarray[Any, Any]  # Any: shape and element type are known only when it runs


def held(x: _Array, copy: bool) -> _Array:
    return np.array(x) if copy else np.asarray(x)


def value(holder: _Array) -> _Array:
    return holder


def read(holder: _Array, index: Any) -> Any:  # Any, here and below: an index or a value of `at`
    return holder[index]


def write(holder: _Array, index: Any, value: Any, how: How) -> _Array:
    if index is ... and how != "set":
        with_numpy.UFUNCS[how](holder, np.asarray(value, dtype=holder.dtype), out=holder)
    else:
        with_numpy.write(holder, index, value, how)
    return holder

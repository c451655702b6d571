"""Writing into arrays of array-api-strict, for `check_portable`: numpy writes into the array below."""

from typing import Any

import array_api_strict as strict
import numpy as np

from ..adapters import How
from ..with_numpy import writing as with_numpy

# Any throughout: arrays of array-api-strict, which has no annotations, and what `at` takes.


def changed(x: Any, index: Any, value: Any, how: How) -> Any:
    return strict.asarray(with_numpy.changed(x._array, _plain(index), _plain(value), how))


def write(x: Any, index: Any, value: Any, how: How) -> None:
    with_numpy.write(x._array, _plain(index), _plain(value), how)


def read(x: Any, index: Any) -> Any:
    return strict.asarray(np.asarray(with_numpy.read(x._array, _plain(index))))


def _plain(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(_plain(each) for each in part)
    return getattr(part, "_array", part)


def new_variable(x: Any, copy: bool) -> Any:
    return strict.asarray(x, copy=copy or None)


def value_of(variable: Any) -> Any:
    return variable


def assign(variable: Any, index: Any, value: Any, how: How) -> Any:
    write(variable, index, value, how)
    return variable

"""Cells of array-api-strict, for `check_portable`: written to in place."""

from typing import Any

import array_api_strict as strict

from ..indexing import with_array_api_strict
from ..indexing.places import How

# Any throughout: arrays of array-api-strict, which has no annotations, and what `State` takes.


def held(x: Any, copy: bool) -> Any:
    return strict.asarray(x, copy=copy or None)


def value(holder: Any) -> Any:
    return holder


def read(holder: Any, index: Any) -> Any:
    return with_array_api_strict.read(holder, index)


def write(holder: Any, index: Any, value: Any, how: How) -> Any:
    with_array_api_strict.write(holder, index, value, how)
    return holder

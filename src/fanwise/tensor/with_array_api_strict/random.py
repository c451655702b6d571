"""Random arrays of array-api-strict, for `check_portable`: those of numpy, handed over."""

from collections.abc import Callable
from typing import Any

import array_api_strict as strict

from ..random.exact import Array
from ..with_numpy import random as with_numpy

check_dtype, default_integer = with_numpy.check_dtype, with_numpy.default_integer

# Any: arrays of array-api-strict, which has no annotations.


def adopt(made: Array, device: str | None) -> Any:
    return strict.asarray(made)


def reordered(x: Any, order: Array) -> Any:
    return strict.asarray(x._array[order])


def _handed_over(function: Callable[..., Array]) -> Callable[..., Any]:
    return lambda *order: strict.asarray(function(*order))


native_uniform = _handed_over(with_numpy.native_uniform)
native_normal = _handed_over(with_numpy.native_normal)
native_integers = _handed_over(with_numpy.native_integers)
native_bernoulli = _handed_over(with_numpy.native_bernoulli)
native_permutation = _handed_over(with_numpy.native_permutation)

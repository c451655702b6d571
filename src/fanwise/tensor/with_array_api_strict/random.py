"""Random arrays of array-api-strict, for `check_portable`: those of numpy, handed over."""

from typing import Any

import array_api_strict as strict

from ..adapters import Draw
from ..random.exact import Array
from ..with_numpy import random as with_numpy

check_dtype, default_integer = with_numpy.check_dtype, with_numpy.default_integer

# Any: arrays of array-api-strict, which has no annotations.


def adopt(made: Array, device: str | None) -> Any:
    return strict.asarray(made)


def reordered(x: Any, order: Array) -> Any:
    return strict.asarray(x._array[order])


def native_uniform(draw: Draw, low: float, high: float) -> Any:
    return strict.asarray(with_numpy.native_uniform(draw, low, high))


def native_normal(draw: Draw, mean: float, std: float) -> Any:
    return strict.asarray(with_numpy.native_normal(draw, mean, std))


def native_integers(draw: Draw, low: int, high: int) -> Any:
    return strict.asarray(with_numpy.native_integers(draw, low, high))


def native_bernoulli(draw: Draw, p: float) -> Any:
    return strict.asarray(with_numpy.native_bernoulli(draw, p))


def native_permutation(draw: Draw, n: int) -> Any:
    return strict.asarray(with_numpy.native_permutation(draw, n))

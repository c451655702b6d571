"""Functions of models and losses on array-api-strict, for `check_portable`: NumPy's, of the array below."""

from typing import Any

import array_api_strict as strict

from ..with_numpy import learning as with_numpy

# Any throughout: arrays of array-api-strict, which has no annotations.


def softmax(x: Any, axis: int) -> Any:
    return strict.asarray(with_numpy.softmax(x._array, axis))


def log_softmax(x: Any, axis: int) -> Any:
    return strict.asarray(with_numpy.log_softmax(x._array, axis))


def logsumexp(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return strict.asarray(with_numpy.logsumexp(x._array, axes, keepdims))


def relu(x: Any) -> Any:
    return strict.asarray(with_numpy.relu(x._array))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return strict.asarray(with_numpy.cross_entropy(logits._array, labels._array))


def einsum(subscripts: str, arrays: list[Any]) -> Any:
    return strict.asarray(with_numpy.einsum(subscripts, [x._array for x in arrays]))

"""Functions of models and losses on array-api-strict, for `check_portable`: NumPy's, of the array below."""

from collections.abc import Callable
from typing import Any

import array_api_strict as strict

from ..with_numpy import learning as with_numpy

# Any throughout: arrays of array-api-strict, which has no annotations.


def _of_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: strict.asarray(function(*(getattr(each, "_array", each) for each in arguments)))


softmax = _of_numpy(with_numpy.softmax)
log_softmax = _of_numpy(with_numpy.log_softmax)
logsumexp = _of_numpy(with_numpy.logsumexp)
relu = _of_numpy(with_numpy.relu)
cross_entropy = _of_numpy(with_numpy.cross_entropy)


def einsum(subscripts: str, arrays: list[Any]) -> Any:
    return strict.asarray(with_numpy.einsum(subscripts, [x._array for x in arrays]))

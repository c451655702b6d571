"""NumPy arrays as data: read and cut as torch tensors, over the same memory where torch can use it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

_NO_NUMBERS = "OSUMmV"  # kinds of NumPy types that torch has no tensors of


def is_array(value: object) -> bool:
    """Return whether the value is a tensor, or a NumPy array of numbers."""
    return isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind not in _NO_NUMBERS)


def tensor_of(array: Any) -> Tensor:
    """Return the tensor itself, or a NumPy array as a tensor that must not be written to."""
    if isinstance(array, Tensor):
        return array
    if array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError):  # another byte order, negative strides
            pass
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))

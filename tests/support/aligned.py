"""NumPy arrays that every engine can adopt without a copy."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from fanwise.tensor import aligned_buffer


def empty_aligned(shape: int | tuple[int, ...], dtype: Any = "float32") -> "np.ndarray[Any, Any]":
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype)
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    buffer = aligned_buffer(math.prod(lengths) * kind.itemsize)
    return np.frombuffer(buffer, np.uint8).view(kind).reshape(lengths)

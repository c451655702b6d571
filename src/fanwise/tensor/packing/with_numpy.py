"""Trees of numpy arrays in one buffer; what is taken out are views."""

from typing import Any

import numpy as np

from ..buffers import aligned_buffer
from .layout import PackedLeaf, PackSpec, as_python

_Array = np.ndarray[Any, Any]  # Any: shape and element type are known only when it runs


def gathered(leaves: list[Any], spec: PackSpec, out: _Array | None) -> _Array:  # Any: arrays and numbers
    dtype = _dtype(spec.dtype)
    if out is None:
        # Zeros already.
        out = np.frombuffer(aligned_buffer(spec.size * dtype.itemsize), dtype)
    else:
        out[...] = 0
    for leaf, place in zip(leaves, spec.leaves, strict=True):
        out[place.offset : place.offset + place.size] = np.reshape(leaf, -1)
    return out


def taken_out(buffer: _Array, leaves: tuple[PackedLeaf, ...]) -> list[Any]:
    return [_taken_out(buffer, leaf) for leaf in leaves]


def _taken_out(buffer: _Array, leaf: PackedLeaf) -> Any:
    part = buffer[leaf.offset : leaf.offset + leaf.size].reshape(leaf.shape)
    if leaf.number:
        return as_python(part.item(), leaf.number)
    return part.astype(_dtype(leaf.dtype), copy=False)


def _dtype(name: str) -> "np.dtype[Any]":
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    return np.dtype(name)

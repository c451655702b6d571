"""Functions of models and losses, their values alone: NumPy has no gradients."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]  # Any: shapes and dtypes are known only when it runs

_LEAST = -np.inf  # the maximum of no elements


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=_LEAST))
    shares: Array = powers / np.sum(powers, axis=axis, keepdims=True)
    return shares


def log_softmax(x: Array, axis: int) -> Array:
    below = x - np.max(x, axis=axis, keepdims=True, initial=_LEAST)
    with np.errstate(divide="ignore"):  # the sum of no elements is 0
        logs: Array = below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True))
    return logs


def logsumexp(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    most = np.max(x, axis=axes, keepdims=True, initial=_LEAST)
    most = np.where(np.isfinite(most), most, np.zeros_like(most))  # an infinity has no difference from itself
    with np.errstate(divide="ignore", over="ignore"):
        found: Array = np.log(np.sum(np.exp(x - most), axis=axes, keepdims=True)) + most
    return found if keepdims else np.squeeze(found, axes)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def cross_entropy(logits: Array, labels: Array) -> Array:
    wanted = np.where(labels < 0, logits.shape[-1], labels.astype(np.int64))
    return -np.take_along_axis(log_softmax(logits, -1), wanted[..., None], -1)[..., 0]


def einsum(subscripts: str, arrays: list[Array]) -> Array:
    dtype = arrays[0].dtype
    if dtype.kind == "V":  # bfloat16, which it does not sum, or makes float32 of
        arrays = [x.astype(np.float32) for x in arrays]
    return np.asarray(np.einsum(subscripts, *arrays, optimize=True)).astype(dtype, copy=False)

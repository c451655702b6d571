"""Random numbers with the same bits on every machine, as numpy arrays: what words become, but for `gaussian`.

Element i of an array, counted along its last axis first, comes from word i of its key, whatever the dtype. So an
array is the beginning of a longer one, and a float32 is the float64 of the same key, cut or rounded. Loaded when
the first number is drawn.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from . import gaussian, words

Array = npt.NDArray[Any]  # Any: the dtype is known only when it runs
_Words = tuple[int, int]
Shape = tuple[int, ...]

FLOATS = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
FLOATS["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
INTEGERS = {f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
# Up to this many, Python's own numbers are faster than arrays.
_FEW = 32


def normal(key: _Words, shape: Shape, mean: float, std: float, dtype: str) -> Array:
    """mean + std * x in float64, rounded to float32 and from there to the 16-bit types."""
    size = math.prod(shape)
    out = np.empty(size, _made_as(dtype))
    if size <= _FEW:
        few = words.words(key, words.NORMAL, size).tolist()
        out[:] = [gaussian.standard_normal_of(word) * std + mean for word in few]
    else:
        for place, block in words.blocks(key, words.NORMAL, size):
            x = gaussian.standard_normal(block)
            if (mean, std) != (0.0, 1.0):
                x *= std
                x += mean
            out[place] = x
    return _rounded(out, dtype).reshape(shape)


def uniform(key: _Words, shape: Shape, low: float, high: float, dtype: str) -> Array:
    """low + (high - low) * u, where u has the word's upper 24 bits (float64: 53), and less than high after rounding."""
    out = np.empty(math.prod(shape), _made_as(dtype))
    kind = out.dtype.type
    digits = 53 if dtype == "float64" else 24
    shift, scale = np.uint64(64 - digits), kind(2.0**-digits)
    span, start = kind(high - low), kind(low)
    for place, block in words.blocks(key, words.UNIFORM, out.size):
        block >>= shift
        u = out[place]
        # A signed integer becomes a float much faster than an unsigned one.
        u[:] = block.view(np.int64)
        u *= scale
        if span != 1.0 or start != 0.0:
            u *= span
            u += start
    out = _rounded(out, dtype)
    if (low, high) == (0.0, 1.0) and FLOATS[dtype].itemsize >= 4:
        return out.reshape(shape)  # u is less than 1 and was not rounded
    top = np.asarray(high, out.dtype)
    if float(top) >= high:
        top = np.nextafter(top, np.asarray(-math.inf, out.dtype))
    np.minimum(out, top, out=out)
    return out.reshape(shape)


def integers(key: _Words, shape: Shape, low: int, high: int, dtype: str) -> Array:
    """low + word modulo (high - low), with words drawn again that would favour some numbers."""
    size, span = math.prod(shape), high - low
    found = words.words(key, words.INTEGERS, size)
    # The largest multiple of the span that words reach; what lies above would come up once too often.
    fair = (1 << 64) - (1 << 64) % span
    if fair < 1 << 64:
        _draw_again_from(np.uint64(fair), found, key)
    if span < 1 << 64:
        found -= found // np.uint64(span) * np.uint64(span)
    # Modulo 2**64 also where low is negative: that is how two's complement adds.
    found += np.uint64(low % (1 << 64))
    return found.astype(INTEGERS[dtype]).reshape(shape)


def _draw_again_from(fair: np.uint64, found: words.Words, key: _Words) -> None:
    attempt = 0
    while (unfair := found >= fair).any():
        attempt += 1
        found[unfair] = words.words(key, words.INTEGERS, found.size, attempt)[unfair]


def bernoulli(key: _Words, shape: Shape, p: float) -> Array:
    """Whether the word, as a fraction of 2**64, is less than p."""
    size = math.prod(shape)
    threshold = int(p * 2.0**64)  # A product with a power of two is exact.
    if threshold == 1 << 64:
        return np.ones(shape, np.bool_)
    out = np.empty(size, np.bool_)
    for place, block in words.blocks(key, words.BERNOULLI, size):
        np.less(block, np.uint64(threshold), out=out[place])
    return out.reshape(shape)


def permutation(key: _Words, n: int) -> npt.NDArray[np.int64]:
    """The order that sorts n random words. Equal words, one pair in 2**64, would be unfair: all are drawn again."""
    attempt = 0
    while True:
        found = words.words(key, words.PERMUTATION, n, attempt)
        # Words that differ have one order, whichever way of sorting numpy takes on this machine.
        order = np.argsort(found)
        in_order = found[order]
        if not (in_order[1:] == in_order[:-1]).any():
            return order.astype(np.int64, copy=False)
        attempt += 1


def _made_as(dtype: str) -> "np.dtype[Any]":
    return FLOATS["float64" if dtype == "float64" else "float32"]


def _rounded(made: Array, dtype: str) -> Array:
    return made.astype(FLOATS[dtype], copy=False)

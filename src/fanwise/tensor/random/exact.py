"""Random NumPy arrays with the same bits on every machine, from 64-bit words.

The words come from Philox 4x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011):

    word 4 * j + k  =  output k of the block with counter (j + 1, 0, attempt, purpose)

`purpose` separates the kinds of numbers, `attempt` the words that are drawn again. NumPy guarantees the words of its
bit generators. Element i of an array comes from word i of its key, for every dtype, so an array is the beginning of
a longer one, and a float32 is the float64 of the same key, cut or rounded.
"""

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .gaussian import Words, standard_normal, standard_normal_of

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_Key = tuple[int, int]

UNIFORM, NORMAL, INTEGERS, PERMUTATION, BERNOULLI = range(1, 6)
# 256 KiB of words: with the scratch arrays of a transform this fits into the second-level cache.
_BLOCK = 32768
_FEW = 32  # up to this many normal numbers, Python's floats are faster than arrays
# To make a generator takes ten times as long as to set its state. Threads and signal handlers never share one.
_idle: list[np.random.Philox] = []
_FLOATS = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
_FLOATS["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


def words(key: _Key, purpose: int, size: int, attempt: int = 0) -> Words:
    """Return the first `size` words of a key for one purpose."""
    generator = _philox(key, purpose, attempt)
    drawn = generator.random_raw(size)
    _idle.append(generator)
    return drawn


def blocks(key: _Key, purpose: int, size: int) -> Iterator[tuple[slice, Words]]:
    """Yield the same words in blocks: the position of a block, and words that may be overwritten."""
    generator = _philox(key, purpose, 0)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        yield slice(start, stop), generator.random_raw(stop - start)
    _idle.append(generator)


def _philox(key: _Key, purpose: int, attempt: int) -> np.random.Philox:
    try:
        generator = _idle.pop()
    except IndexError:
        generator = np.random.Philox(key=0)
    state: Any = {  # NumPy's annotation has arrays here, which take longer to make
        "bit_generator": "Philox",
        "state": {"key": key, "counter": (0, 0, attempt, purpose)},
        "buffer": (0, 0, 0, 0),
        "buffer_pos": 4,  # the buffer is used up
        "has_uint32": 0,
        "uinteger": 0,
    }
    generator.state = state
    return generator


def normal(key: _Key, shape: Shape, mean: float, std: float, dtype: str) -> Array:
    """Return mean + std * x in float64, rounded to float32 and from there to the 16-bit types."""
    out = np.empty(math.prod(shape), _made_as(dtype))
    if out.size <= _FEW:
        out[:] = [standard_normal_of(word) * std + mean for word in words(key, NORMAL, out.size).tolist()]
        return out.astype(_FLOATS[dtype], copy=False).reshape(shape)
    for place, block in blocks(key, NORMAL, out.size):
        x = standard_normal(block)
        if (mean, std) != (0.0, 1.0):
            x *= std
            x += mean
        out[place] = x
    return out.astype(_FLOATS[dtype], copy=False).reshape(shape)


def uniform(key: _Key, shape: Shape, low: float, high: float, dtype: str) -> Array:
    """Return low + (high - low) * u, less than high after rounding; u is the upper 24 bits of a word (float64: 53)."""
    out = np.empty(math.prod(shape), _made_as(dtype))
    kind = out.dtype.type
    digits = 53 if dtype == "float64" else 24
    shift, scale = np.uint64(64 - digits), kind(2.0**-digits)
    span, start = kind(high - low), kind(low)
    for place, block in blocks(key, UNIFORM, out.size):
        block >>= shift
        u = out[place]
        u[:] = block.view(np.int64)  # signed integers become floats much faster than unsigned ones
        u *= scale
        if span != 1.0 or start != 0.0:
            u *= span
            u += start
    out = out.astype(_FLOATS[dtype], copy=False)
    if (low, high) == (0.0, 1.0) and out.itemsize >= 4:
        return out.reshape(shape)  # u is less than 1 and was not rounded
    top = np.asarray(high, out.dtype)
    if float(top) >= high:
        top = np.nextafter(top, np.asarray(-math.inf, out.dtype))
    np.minimum(out, top, out=out)
    return out.reshape(shape)


def integers(key: _Key, shape: Shape, low: int, high: int, dtype: str) -> Array:
    """Return low + word modulo (high - low). Words that would bias the result are drawn again."""
    size, span = math.prod(shape), high - low
    result = words(key, INTEGERS, size)
    limit = (1 << 64) - (1 << 64) % span  # the largest multiple of the span
    attempt = 0
    while limit < 1 << 64 and (biased := result >= np.uint64(limit)).any():
        attempt += 1
        result[biased] = words(key, INTEGERS, size, attempt)[biased]
    if span < 1 << 64:
        result -= result // np.uint64(span) * np.uint64(span)
    result += np.uint64(low % (1 << 64))  # modulo 2**64, as two's complement adds
    return result.astype(dtype).reshape(shape)


def bernoulli(key: _Key, shape: Shape, p: float) -> Array:
    """Return whether each word, as a fraction of 2**64, is less than p."""
    threshold = int(p * 2.0**64)  # a product with a power of two is exact
    if threshold == 1 << 64:
        return np.ones(shape, np.bool_)
    out = np.empty(math.prod(shape), np.bool_)
    for place, block in blocks(key, BERNOULLI, out.size):
        np.less(block, np.uint64(threshold), out=out[place])
    return out.reshape(shape)


def permutation(key: _Key, shape: Shape, dtype: str) -> Array:
    """Return the order that sorts n random words. If two are equal (one pair in 2**64), all are drawn again."""
    attempt = 0
    while True:
        drawn = words(key, PERMUTATION, shape[0], attempt)
        order = np.argsort(drawn)  # different words have one order in every algorithm
        ordered = drawn[order]
        if not (ordered[1:] == ordered[:-1]).any():
            return order.astype(dtype, copy=False)
        attempt += 1


def _made_as(dtype: str) -> "np.dtype[Any]":
    return _FLOATS["float64" if dtype == "float64" else "float32"]

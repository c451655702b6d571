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

import numpy as np
import numpy.typing as npt

from .gaussian import Words, standard_normal, standard_normal_of

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_Key = tuple[int, int]

UNIFORM, NORMAL, PERMUTATION = 1, 2, 4
# 256 KiB of words: with the scratch arrays of a transform this fits into the second-level cache.
_BLOCK = 32768
_FEW = 32  # up to this many normal numbers, Python's floats are faster than arrays
# To make a generator takes ten times as long as to set its state. Threads and signal handlers never share one.
_idle: list[np.random.Philox] = []


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
    """Return mean + std * x in float64, rounded to the dtype."""
    out = np.empty(math.prod(shape), dtype)
    if out.size <= _FEW:
        out[:] = [standard_normal_of(word) * std + mean for word in words(key, NORMAL, out.size).tolist()]
        return out.reshape(shape)
    for place, block in blocks(key, NORMAL, out.size):
        x = standard_normal(block)
        if (mean, std) != (0.0, 1.0):
            x *= std
            x += mean
        out[place] = x
    return out.reshape(shape)


def uniform(key: _Key, shape: Shape, low: float, high: float, dtype: str) -> Array:
    """Return low + (high - low) * u, less than high after rounding; u is the upper 24 bits of a word (float64: 53)."""
    out = np.empty(math.prod(shape), dtype)
    kind = out.dtype.type
    digits = 53 if dtype == "float64" else 24
    shift, scale = np.uint64(64 - digits), kind(2.0**-digits)
    for place, block in blocks(key, UNIFORM, out.size):
        block >>= shift
        u = out[place]
        u[:] = block.view(np.int64)  # signed integers become floats much faster than unsigned ones
        u *= scale
        if (low, high) != (0.0, 1.0):
            u *= kind(high - low)
            u += kind(low)
    top = kind(high)
    np.minimum(out, np.nextafter(top, kind(-math.inf)) if float(top) >= high else top, out=out)
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

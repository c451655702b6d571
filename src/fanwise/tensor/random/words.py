"""Random words: what a key becomes, as 64-bit integers. Philox 4x64-10, in blocks that stay in the cache.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The algorithm is a bijection
of a counter under a key, so word i is a function of i alone, whatever is drawn before or beside it:

    word 4 * j + k  =  output k of the block with counter (j + 1, 0, attempt, purpose)

`purpose` keeps the kinds of numbers apart, `attempt` those that are drawn again. It is numpy's generator that
computes the words: numpy promises that the words of its bit generators stay (its distributions may change, and
are not used), and the tests hold a model of it in plain integers against the authors' own known answers.
Written with ufuncs it would be three times slower, and 50 us for the first word.
"""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

UNIFORM, NORMAL, INTEGERS, PERMUTATION, BERNOULLI = range(1, 6)
# 256 KiB of words: with the two or three scratch arrays of a transform this stays in the second-level cache, and
# the fixed cost of a call to numpy, half a microsecond, does not count.
_BLOCK = 32768


class _Kept(threading.local):
    """A generator for each thread: to make one costs 8 us, to give it another key and counter 1."""

    def __init__(self) -> None:
        self.generator = np.random.Philox(key=0)


_kept = _Kept()


def words(key: tuple[int, int], purpose: int, size: int, attempt: int = 0) -> Words:
    """The first `size` words of a key for one purpose."""
    generator = _kept.generator
    _set(generator, key, purpose, attempt)
    return generator.random_raw(size)


def blocks(key: tuple[int, int], purpose: int, size: int) -> Iterator[tuple[slice, Words]]:
    """The same, a block at a time: where it belongs, and an array of words that may be overwritten."""
    if size <= _BLOCK:
        yield slice(0, size), words(key, purpose, size)
        return
    generator = np.random.Philox(key=0)
    _set(generator, key, purpose, 0)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        yield slice(start, stop), generator.random_raw(stop - start)


def _set(generator: np.random.Philox, key: tuple[int, int], purpose: int, attempt: int) -> None:
    state: Any = {  # Any: numpy's annotation of this dict is of arrays, which cost more to make
        "bit_generator": "Philox",
        "state": {"key": key, "counter": (0, 0, attempt, purpose)},
        "buffer": (0, 0, 0, 0),
        "buffer_pos": 4,  # all four used: the next word is of the next block
        "has_uint32": 0,
        "uinteger": 0,
    }
    generator.state = state

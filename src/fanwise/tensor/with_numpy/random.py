"""Random arrays of numpy: exact ones as they are, native ones by numpy's Generator on Philox."""

from typing import Any

import numpy as np

from ..adapters import Draw
from ..random.exact import FLOATS, Array


def default_integer() -> str:
    return "int64"


def check_dtype(name: str) -> None:
    """numpy has them all, bfloat16 by ml_dtypes."""


def adopt(made: Array, device: str | None) -> Array:
    return made


def reordered(x: Array, order: Array) -> Array:
    return x[order]


def native_uniform(draw: Draw, low: float, high: float) -> Array:
    return _cast(_generator(draw).uniform(low, high, draw.shape), draw)


def native_normal(draw: Draw, mean: float, std: float) -> Array:
    return _cast(_generator(draw).normal(mean, std, draw.shape), draw)


def native_integers(draw: Draw, low: int, high: int) -> Array:
    return np.asarray(_generator(draw).integers(low, high, draw.shape, dtype=draw.dtype))


def native_bernoulli(draw: Draw, p: float) -> Array:
    return np.asarray(_generator(draw).random(draw.shape) < p)


def native_permutation(draw: Draw, n: int) -> Array:
    return _generator(draw).permutation(n)


def _generator(draw: Draw) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array(draw.key.words, dtype=np.uint64)))


def _cast(made: Any, draw: Draw) -> Array:  # Any: a float where the shape is empty
    return np.asarray(made, dtype=FLOATS[draw.dtype])

"""Functions that draw numbers from a key.

exact.py makes a NumPy array on the host, which the engine adopts, so the bits are the same on every engine, device and
machine. Numbers have no gradient by low, mean and so on.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex, cast

from ..adapters import exchanges
from ..dtype_names import dtype_name
from ..engines import check_engine, current_engine
from .keys import Key

_Array = Any  # an array of the chosen engine
_Shape = SupportsIndex | Iterable[SupportsIndex]  # also the shape of an array
_LARGEST = {"float32": 2.0**128 - 2.0**104, "float64": math.inf}


def uniform(
    key: Key,
    shape: _Shape = (),
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: object = "float32",
    engine: str | None = None,
) -> _Array:
    """Draw numbers uniformly from low (included) to high (excluded).

    low + (high - low) * u in the precision of the array, where u has 24 random bits, or 53 in float64. A number that
    rounding would bring up to high becomes the largest number below it.

    Args:
        key: the same key gives the same numbers; a larger shape of one axis begins with those of a smaller one.
        shape: shape of the array, an integer for one axis, () for a 0-d array.
        low: least number.
        high: above the largest number.
        dtype: "float32" or "float64", or the engine's dtype.
        engine: engine of the array; default: the current one. The array is where the engine puts new arrays.

    Raises:
        ValueError: empty range; unknown dtype or engine.
        TypeError: `key` is not a Key; `shape` is not integers; float64 on JAX without 64-bit mode.

    >>> uniform(Key(0), 3, engine="numpy")
    array([0.57058096, 0.8506132 , 0.56927776], dtype=float32)
    """
    low, high, dtype = float(low), float(high), _check_float(dtype)
    largest = _LARGEST[dtype]
    if not low < high or not -largest <= low or not high <= largest or not high - low <= largest or high == math.inf:
        raise ValueError(f"low must be less than high and both finite in {dtype}, got low={low!r}, high={high!r}")
    return _drawn(key, shape, engine, "uniform", low, high, dtype)


def normal(
    key: Key,
    shape: _Shape = (),
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: object = "float32",
    engine: str | None = None,
) -> _Array:
    """Draw numbers from the normal distribution.

    mean + std * x in float64, where x is within 8e-16 of the exact inverse of the distribution at a random word of
    64 bits (its tails reach 9 standard deviations); then rounded to float32.

    Args:
        mean: mean of the distribution.
        std: standard deviation, at least 0.
        key, shape, dtype, engine: as in `uniform`.

    Raises:
        ValueError: `std` is negative, or one of both is not finite; otherwise as `uniform`.
        TypeError: as `uniform`.

    >>> normal(Key(0), 3, engine="numpy")
    array([-1.1283134 , -1.2921705 ,  0.27794075], dtype=float32)
    """
    mean, std, dtype = float(mean), float(std), _check_float(dtype)
    if not math.isfinite(mean) or not 0.0 <= std < math.inf:
        raise ValueError(f"mean must be finite and std finite and at least 0, got mean={mean!r}, std={std!r}")
    return _drawn(key, shape, engine, "normal", mean, std, dtype)


def permutation(key: Key, n: SupportsIndex, *, engine: str | None = None) -> _Array:
    """Return the integers 0 to n - 1 in random order. Shuffle an array by `take(x, permutation(key, len(x)), axis=0)`.

    Args:
        n: number of integers.
        key, engine: as in `uniform`.

    Raises:
        ValueError: n is negative; otherwise as `uniform`.
        TypeError: n is not an integer; otherwise as `uniform`.
    """
    exchange = exchanges[current_engine() if engine is None else check_engine(engine)]
    dtype = "int32" if hasattr(exchange, "has_int64") and not exchange.has_int64() else "int64"  # JAX
    return _drawn(key, operator.index(n), engine, "permutation", dtype)


def _drawn(key: Key, shape: _Shape, engine: str | None, kind: str, *settings: Any) -> _Array:
    from . import exact  # loads NumPy

    if type(key) is not Key:
        raise TypeError(f"key must be a fanwise.tensor.Key, such as Key(0), got {type(key).__name__}")
    engine = current_engine() if engine is None else check_engine(engine)
    if hasattr(shape, "__index__"):  # isinstance of a protocol takes 5 us
        lengths: tuple[int, ...] = (operator.index(cast(SupportsIndex, shape)),)
    else:
        axes = list(shape)
        if None in axes:  # of a tf.TensorShape
            raise ValueError(f"TensorFlow does not know all of the shape {shape} while it traces; pass a known one")
        lengths = tuple(map(operator.index, axes))
    if lengths and min(lengths) < 0:
        raise ValueError(f"the lengths of a shape must be at least 0, got {shape!r}")
    return exchanges[engine].adopt(getattr(exact, kind)(key.words, lengths, *settings))


def _check_float(dtype: object) -> str:
    name = dtype_name(dtype)
    if name not in _LARGEST:
        raise ValueError(f"dtype must be one of {', '.join(_LARGEST)}, got {name!r}")
    return name

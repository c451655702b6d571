"""Functions that draw numbers from a key.

exact.py makes a NumPy array on the host, which the engine adopts, so the bits are the same on every engine, device and
machine. Compiled code with a traced key calls back to the host whenever it runs. Numbers have no gradient by low, mean
and so on.
"""

import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from ..adapters import CompilingDifferentiator, differentiators, exchanges
from ..dtype_names import dtype_name
from ..engines import check_engine, current_engine, engine_of
from ..placement import find_device, to_device
from .keys import Key, key_with_values, traced_arrays

if TYPE_CHECKING:
    from types import ModuleType

_Array = Any  # an array of the chosen engine
_Words = tuple[int, int]
_Shape = SupportsIndex | Iterable[SupportsIndex]  # also the shape of an array
_LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104}
_FLOATS = (*_LARGEST, "float64")
_RANGES = {f"int{bits}": (-(1 << bits - 1), 1 << bits - 1) for bits in (8, 16, 32, 64)}
_RANGES |= {f"uint{bits}": (0, 1 << bits) for bits in (8, 16, 32, 64)}


def uniform(
    key: Key,
    shape: _Shape = (),
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: object = "float32",
    engine: str | None = None,
    device: object = None,
) -> _Array:
    """Draw numbers uniformly from low (included) to high (excluded).

    low + (high - low) * u in the precision of the array, where u has 24 random bits, or 53 in float64. The 16-bit types
    are rounded from float32. A number that rounding would bring up to high becomes the largest number below it.

    Args:
        key: the same key gives the same numbers; a larger shape of one axis begins with those of a smaller one.
        shape: shape of the array, an integer for one axis, () for a 0-d array.
        low: least number.
        high: above the largest number.
        dtype: "float32", "float64", "float16" or "bfloat16", or the engine's dtype.
        engine: engine of the array; default: the current one.
        device: device of the array ("cuda:0"); default: where the engine puts new arrays.

    Raises:
        ValueError: empty range; unknown dtype, engine or device.
        TypeError: `key` is not a Key; `shape` is not integers; float64 on JAX without 64-bit mode.

    >>> uniform(Key(0), 3, engine="numpy")
    array([0.57058096, 0.8506132 , 0.56927776], dtype=float32)
    """
    low, high, dtype = float(low), float(high), _one_of(_FLOATS, dtype)
    largest = _LARGEST.get(dtype, math.inf)
    if not low < high or not -largest <= low or not high <= largest or not high - low <= largest or high == math.inf:
        raise ValueError(f"low must be less than high and both finite in {dtype}, got low={low!r}, high={high!r}")
    return _drawn(
        key, shape, dtype, engine, device, lambda words, size: _exact().uniform(words, size, low, high, dtype)
    )


def normal(
    key: Key,
    shape: _Shape = (),
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: object = "float32",
    engine: str | None = None,
    device: object = None,
) -> _Array:
    """Draw numbers from the normal distribution.

    mean + std * x in float64, where x is within 8e-16 of the exact inverse of the distribution at a random word of
    64 bits (its tails reach 9 standard deviations); then rounded to float32, and from there to the 16-bit types.

    Args:
        mean: mean of the distribution.
        std: standard deviation, at least 0.
        key, shape, dtype, engine, device: as in `uniform`.

    Raises:
        ValueError: `std` is negative, or one of both is not finite; otherwise as `uniform`.
        TypeError: as `uniform`.

    >>> normal(Key(0), 3, engine="numpy")
    array([-1.1283134 , -1.2921705 ,  0.27794075], dtype=float32)
    """
    mean, std, dtype = float(mean), float(std), _one_of(_FLOATS, dtype)
    if not math.isfinite(mean) or not 0.0 <= std < math.inf:
        raise ValueError(f"mean must be finite and std finite and at least 0, got mean={mean!r}, std={std!r}")
    return _drawn(key, shape, dtype, engine, device, lambda words, size: _exact().normal(words, size, mean, std, dtype))


def integers(
    key: Key,
    shape: _Shape,
    low: SupportsIndex,
    high: SupportsIndex,
    *,
    dtype: object = None,
    engine: str | None = None,
    device: object = None,
) -> _Array:
    """Draw integers from low (included) to high (excluded), all equally likely.

    A word of 64 bits modulo (high - low); the few words that would bias the result are drawn again.

    Args:
        low: least number.
        high: one more than the largest number.
        dtype: an integer type that holds them all; default: int64, or int32 on JAX without 64-bit mode.
        key, shape, engine, device: as in `uniform`.

    Raises:
        ValueError: the dtype does not hold the range; otherwise as `uniform`.
        TypeError: `low` or `high` is not an integer; otherwise as `uniform`.

    >>> integers(Key(0), 5, 0, 10, engine="numpy")
    array([0, 8, 6, 7, 1])
    """
    dtype = _default_integer(engine) if dtype is None else _one_of(_RANGES, dtype)
    low, high = operator.index(low), operator.index(high)
    least, end = _RANGES[dtype]
    if not least <= low < high <= end:
        raise ValueError(
            f"low must be less than high, and {dtype} must hold the numbers between, from {least} to {end - 1}; "
            f"got low={low}, high={high}"
        )
    return _drawn(
        key, shape, dtype, engine, device, lambda words, size: _exact().integers(words, size, low, high, dtype)
    )


def bernoulli(
    key: Key, p: float = 0.5, shape: _Shape = (), *, engine: str | None = None, device: object = None
) -> _Array:
    """Draw booleans that are true with probability p, to 64 bits. For an array of probabilities use `uniform(...) < p`.

    Args:
        p: from 0 to 1. Of one key, those that are true with a smaller p are true with a larger one.
        key, shape, engine, device: as in `uniform`.

    Raises:
        ValueError: p is not a probability; otherwise as `uniform`.
        TypeError: as `uniform`.
    """
    p = float(p)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be from 0 to 1, got {p!r}")
    return _drawn(key, shape, "bool", engine, device, lambda words, size: _exact().bernoulli(words, size, p))


def permutation(key: Key, n: SupportsIndex, *, engine: str | None = None, device: object = None) -> _Array:
    """Return the integers 0 to n - 1 in random order. Shuffle an array by `take(x, permutation(key, len(x)), axis=0)`.

    Args:
        n: number of integers.
        key, engine, device: as in `uniform`.

    Raises:
        ValueError: n is negative; otherwise as `uniform`.
        TypeError: n is not an integer; otherwise as `uniform`.
    """
    dtype = _default_integer(engine)
    return _drawn(
        key, operator.index(n), dtype, engine, device, lambda words, size: _exact().permutation(words, size, dtype)
    )


def _drawn(
    key: Key,
    shape: _Shape,
    dtype: str,
    engine: str | None,
    device: object,
    draw: Callable[[_Words, tuple[int, ...]], Any],
) -> _Array:
    """Return what `draw` makes of the key's words and a shape: now, or whenever compiled code runs."""
    if type(key) is not Key:
        raise TypeError(f"numbers are drawn from a fanwise.tensor.Key, as Key(0), got {type(key).__name__}")
    engine = current_engine() if engine is None else check_engine(engine)
    lengths = _lengths(shape)
    if device is not None:
        device = find_device(engine, device)
    x = _of_words(key, engine, lambda words: draw(words, lengths), lengths, dtype)
    return x if device is None else to_device(x, device)


def _of_words(key: Key, engine: str, draw: Callable[[_Words], Any], shape: tuple[int, ...], dtype: str) -> _Array:
    arrays = traced_arrays(key)
    if not arrays:
        return exchanges[engine].adopt(draw(key.words))
    if (tracing := engine_of(arrays[0])) != engine:
        raise TypeError(
            f"numbers of {engine} cannot be drawn from a key that depends on a traced array of {tracing}. "
            f"Pass engine={tracing!r}, or enter fanwise.tensor.use({tracing!r})."
        )
    part = cast(CompilingDifferentiator, differentiators[engine])
    return part.computed_on_host(lambda *values: draw(key_with_values(key, values).words), arrays, shape, dtype)


def words_array(key: Key, engine: str) -> _Array:
    """Return a key as an array of the engine, which `key_of_words` takes: four words of 32 bits, the lowest first."""
    import numpy as np

    def draw(words: _Words) -> Any:
        return np.array([word >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)], np.uint32)

    return _of_words(key, engine, draw, (4,), "uint32")


def _default_integer(engine: str | None) -> str:
    exchange: Any = exchanges[current_engine() if engine is None else check_engine(engine)]
    return "int32" if hasattr(exchange, "has_int64") and not exchange.has_int64() else "int64"  # JAX


def _lengths(shape: _Shape) -> tuple[int, ...]:
    if hasattr(shape, "__index__"):  # isinstance of a protocol takes 5 us
        lengths: tuple[int, ...] = (operator.index(cast(SupportsIndex, shape)),)
    else:
        axes = list(shape)
        if None in axes:  # of a tf.TensorShape
            raise ValueError(f"TensorFlow does not know all of the shape {shape} while it traces; pass a known one")
        lengths = tuple(map(operator.index, axes))
    if lengths and min(lengths) < 0:
        raise ValueError(f"a shape has no negative lengths, got {shape!r}")
    return lengths


def _one_of(names: Iterable[str], dtype: object) -> str:
    name = dtype_name(dtype)
    if name not in names:
        raise ValueError(f"dtype must be one of {', '.join(names)}, got {name!r}")
    return name


def _exact() -> "ModuleType":
    from . import exact  # loads NumPy

    return exact

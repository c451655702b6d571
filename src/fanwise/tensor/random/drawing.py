"""Drawing numbers from a key: what is checked, and who makes them.

    uniform, normal, integers, bernoulli, permutation
        exact.py makes a numpy array, `adopt` of with_<engine>/random.py hands it to the engine

Numbers have the same bits on every engine, device and machine, because the host makes them all.

Compiled code draws anew each time it runs, from a key that is an argument or has a traced step folded in: it calls
back to exact.py on the host, with the numbers that the key depends on, so the bits are the same (`called`).
From a key that the function closes over, numbers are drawn when it is traced, and are constants of what was compiled.
Nothing here can be differentiated with respect to low, mean and so on.
"""

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from ..adapters import CompilingGenerator, Generator, generators
from ..dtype_names import dtype_name
from ..engines import check_engine, current_engine, engine_of
from ..placement import find_device, to_device
from .keys import Key, traced_arrays, words_of_32_bits, words_with

if TYPE_CHECKING:
    from types import ModuleType

_Array = Any  # An array of whichever engine was asked for; they have no type in common.
_Shape = SupportsIndex | Iterable[SupportsIndex]  # tuples, lists, and the shape of any engine's array
_LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104}
_FLOATS = (*_LARGEST, "float64")
_RANGES = {f"int{bits}": (-(1 << bits - 1), 1 << bits - 1) for bits in (8, 16, 32, 64)}
_RANGES |= {f"uint{bits}": (0, 1 << bits) for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True)
class Draw:
    """An order for numbers, checked. `device` is a name that exists, or None for the engine's choice."""

    key: Key
    engine: str
    shape: tuple[int, ...]
    dtype: str
    device: str | None


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
    """Numbers from low (included) to high (not included), all alike.

    low + (high - low) * u in the array's own precision, where u has 24 random bits, or 53 in float64; for the
    16-bit types float32 is rounded. What rounding would bring up to high is the largest number below it.

    Args:
        key: the same key gives the same numbers; a larger shape of one axis begins with those of a smaller one.
        shape: of the array, a number for one axis; () for an array of one number and no axis.
        low: the least number.
        high: above the largest number.
        dtype: "float32", "float64", "float16" or "bfloat16", or the engine's own name of it.
        engine: which makes the array; the current one if None.
        device: where it shall be ("cuda:0"); where the engine puts new arrays if None.

    Raises:
        ValueError: a range of no numbers, no such dtype, engine or device, or one that JAX is not set up for.
        TypeError: `key` is no Key, or `shape` no integers.

    >>> uniform(Key(0), 3, engine="numpy")
    array([0.57058096, 0.8506132 , 0.56927776], dtype=float32)
    """
    maker, draw = _draw(key, shape, _float(dtype), engine=engine, device=device)
    low, high = float(low), float(high)
    largest = _LARGEST.get(draw.dtype, math.inf)
    if not low < high or not -largest <= low or not high <= largest or not high - low <= largest or high == math.inf:
        raise ValueError(f"low must be less than high and both finite in {draw.dtype}, got low={low!r}, high={high!r}")
    return _made(maker, draw, lambda words: _exact().uniform(words, draw.shape, low, high, draw.dtype))


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
    """Numbers of the normal distribution.

    mean + std * x in float64, where x is within 8e-16 of the exact inverse of the distribution at a random word of
    64 bits (its tails reach 9 standard deviations); then rounded to float32, and from there to the 16-bit types.

    Args:
        key: the same key gives the same numbers; a larger shape of one axis begins with those of a smaller one.
        shape: of the array, a number for one axis; () for an array of one number and no axis.
        mean: of the distribution.
        std: its standard deviation, at least 0.
        dtype, engine, device: as in `uniform`.

    Raises:
        ValueError: as `uniform`; or `std` is negative, or one of both is not finite.
        TypeError: `key` is no Key, or `shape` no integers.

    >>> normal(Key(0), 3, engine="numpy")
    array([-1.1283134 , -1.2921705 ,  0.27794075], dtype=float32)
    """
    maker, draw = _draw(key, shape, _float(dtype), engine=engine, device=device)
    mean, std = float(mean), float(std)
    if not math.isfinite(mean) or not 0.0 <= std < math.inf:
        raise ValueError(f"mean must be finite and std finite and at least 0, got mean={mean!r}, std={std!r}")
    return _made(maker, draw, lambda words: _exact().normal(words, draw.shape, mean, std, draw.dtype))


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
    """Integers from low (included) to high (not included), each exactly as likely as any other.

    A word of 64 bits modulo (high - low); the few words that would favour some numbers are drawn again.

    Args:
        key: the same key gives the same numbers; a larger shape of one axis begins with those of a smaller one.
        shape: of the array, a number for one axis; () for an array of one number and no axis.
        low: the least number.
        high: one more than the largest.
        dtype: an integer type that holds them all; if None int64, in JAX set to 32 bits int32.
        engine, device: as in `uniform`.

    Raises:
        ValueError: as `uniform`; or the dtype does not hold the range.
        TypeError: `key` is no Key, or `shape`, `low` or `high` no integers.

    >>> integers(Key(0), 5, 0, 10, engine="numpy")
    array([0, 8, 6, 7, 1])
    """
    maker, draw = _draw(key, shape, _integer(dtype), engine=engine, device=device)
    low, high = operator.index(low), operator.index(high)
    least, end = _RANGES[draw.dtype]
    if not least <= low < high <= end:
        raise ValueError(
            f"low must be less than high and {draw.dtype} hold the numbers between, from {least} to {end - 1}; "
            f"got low={low}, high={high}"
        )
    return _made(maker, draw, lambda words: _exact().integers(words, draw.shape, low, high, draw.dtype))


def bernoulli(
    key: Key,
    p: float = 0.5,
    shape: _Shape = (),
    *,
    engine: str | None = None,
    device: object = None,
) -> _Array:
    """Booleans that are true with probability p, to 64 bits. For an array of probabilities: `uniform(...) < p`.

    Args:
        key: the same key gives the same booleans; with a larger p all that were true stay so.
        p: from 0 to 1.
        shape: of the array, a number for one axis; () for an array of one boolean and no axis.
        engine, device: as in `uniform`.

    Raises:
        ValueError: p is no probability; no such engine or device.
        TypeError: `key` is no Key, or `shape` no integers.
    """
    maker, draw = _draw(key, shape, "bool", engine=engine, device=device)
    p = float(p)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be from 0 to 1, got {p!r}")
    return _made(maker, draw, lambda words: _exact().bernoulli(words, draw.shape, p))


def permutation(key: Key, n: SupportsIndex, *, engine: str | None = None, device: object = None) -> _Array:
    """The numbers 0 to n - 1 in random order. An array is shuffled by `take(x, permutation(key, len(x)), axis=0)`.

    Args:
        key: the same key gives the same order for the same length.
        n: how many numbers.
        engine, device: as in `uniform`.

    Returns:
        int64, in JAX set to 32 bits int32.

    Raises:
        ValueError: n is negative; no such engine or device.
        TypeError: `key` is no Key, or n no integer.
    """
    (n,) = _axes(operator.index(n))
    maker, draw = _draw(key, n, None, engine=engine, device=device)
    return _made(maker, draw, lambda words: _exact().permutation(words, n).astype(draw.dtype, copy=False))


def _made(maker: Generator, draw: Draw, make: Callable[[tuple[int, int]], Any]) -> _Array:
    """What `make` makes of the key's words: now, or each time when compiled code runs."""
    if traced_arrays(draw.key):
        numbers = _called(draw.engine, draw.key, make, draw.shape, draw.dtype)
        return numbers if draw.device is None else to_device(numbers, draw.device)
    return maker.adopt(make(draw.key.words), draw.device)


def _called(
    engine: str, key: Key, make: Callable[[tuple[int, int]], Any], shape: tuple[int, ...], dtype: str
) -> _Array:
    for each in traced_arrays(key):
        tracing = engine_of(each)
        if tracing != engine:
            raise TypeError(
                f"numbers of {engine} are asked for, from a key that depends on an array of {tracing} that is traced. "
                f"Say engine={tracing!r}, or enter fanwise.tensor.use({tracing!r})."
            )
    compiling = cast(CompilingGenerator, generators[engine])
    return compiling.called(lambda numbers: make(words_with(key, numbers)), traced_arrays(key), shape, dtype)


def words_array(key: Key, engine: str) -> _Array:
    """What `key_of_words` takes, as an array of the engine; also of a key of compiled code."""
    import numpy as np

    def make(words: tuple[int, int]) -> Any:
        return np.array(words_of_32_bits(words), np.uint32)

    return (
        _called(engine, key, make, (4,), "uint32")
        if traced_arrays(key)
        else generators[engine].adopt(make(key.words), None)
    )


def _draw(key: Key, shape: _Shape, dtype: str | None, *, engine: str | None, device: object) -> tuple[Generator, Draw]:
    """Who draws, and the checked order."""
    engine = current_engine() if engine is None else check_engine(engine)
    maker = generators[engine]
    if dtype is None:
        dtype = maker.default_integer()
    else:
        maker.check_dtype(dtype)
    return maker, Draw(
        _checked(key), engine, _axes(shape), dtype, None if device is None else find_device(engine, device)
    )


def _checked(key: Key) -> Key:
    if type(key) is not Key:
        raise TypeError(f"numbers are drawn from a fanwise.tensor.Key, as Key(0), got {type(key).__name__}")
    return key


def _axes(shape: _Shape) -> tuple[int, ...]:
    if isinstance(shape, (tuple, list)):
        lengths = tuple(map(operator.index, shape))
    elif hasattr(shape, "__index__"):  # isinstance of a protocol would cost 5 us
        lengths = (operator.index(shape),)  # type: ignore[arg-type]  # it has what this asks for
    else:
        if any(length is None for length in shape):  # of a tf.TensorShape
            raise ValueError(f"TensorFlow does not know all of the shape {shape} while it traces; give a known one")
        lengths = tuple(map(operator.index, shape))
    if lengths and min(lengths) < 0:
        raise ValueError(f"a shape has no negative lengths, got {shape!r}")
    return lengths


def _float(dtype: object) -> str:
    name = dtype_name(dtype)
    if name not in _FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(_FLOATS)}, got {name!r}")
    return name


def _integer(dtype: object) -> str | None:
    name = None if dtype is None else dtype_name(dtype)
    if name is not None and name not in _RANGES:
        raise ValueError(f"dtype must be one of {', '.join(_RANGES)}, got {name!r}")
    return name


def _exact() -> "ModuleType":
    # Not above: it loads numpy.
    from . import exact

    return exact

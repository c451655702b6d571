"""Functions for TensorFlow by the standard's names: those of chapter 2.1 of "Dive into Deep Learning", and a few more.

TensorFlow has no implementation of the array API standard; for any other function, call TensorFlow. These functions
accept tensors, variables and Python numbers, return tensors, and work inside `tf.function`. TensorFlow does not promote
dtypes, so arrays in one call must have the same. A function that differs from TensorFlow's says what TensorFlow does.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtype_names import BOOL, COMPLEX, FLOAT, INTEGER, dtype_rank
from ..namespaces import arguments
from ..namespaces.arguments import check_indices, check_numbers, contains, numbers_to_numpy, pow, root
from ..namespaces.namespace import CONSTANTS, DTYPES, EXTRA_DTYPES
from ..placement import find_device
from . import placed_on, tf

Array = Any
Axis = int | tuple[int, ...] | None
_Function = Callable[..., Any]
_ARRAYS = (tf.Tensor, tf.Variable)
_RANK_OF_NUMBER = {bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}


def names(part: str) -> dict[str, Any]:
    """Return the functions, constants and dtypes of one part of the standard by name."""
    if part:
        return {"vector_norm": vector_norm, "matmul": matmul} if part == "linalg" else {}
    created = {name: _on_device(_FUNCTIONS[name]) for name in _CREATION}
    return _FUNCTIONS | created | CONSTANTS | {name: getattr(tf, name) for name in (*DTYPES, *EXTRA_DTYPES)}


def _on_device(function: _Function) -> _Function:
    @functools.wraps(function)
    def created(*args: Any, device: str | None = None, **keywords: Any) -> Array:
        if device is None:
            return function(*args, **keywords)
        with placed_on(find_device("tensorflow", device)):
            return tf.identity(function(*args, **keywords))

    return created


def asarray(obj: Any, /, *, dtype: Any = None, copy: bool | None = None) -> Array:
    if copy is False and not (isinstance(obj, _ARRAYS) and dtype in (None, obj.dtype)):
        raise ValueError(f"asarray(copy=False) has to copy or convert {type(obj).__name__}")
    if isinstance(obj, _ARRAYS):
        x = tf.convert_to_tensor(obj) if dtype is None else tf.cast(obj, dtype)
        return tf.identity(x) if copy else x
    if not contains(obj, _ARRAYS):
        return tf.constant(numbers_to_numpy(obj, None if dtype is None else dtype.as_numpy_dtype))
    parts = [asarray(part, dtype=dtype) if contains(part, _ARRAYS) else part for part in obj]
    like = next(part for part in parts if isinstance(part, tf.Tensor))
    return tf.stack([part if isinstance(part, tf.Tensor) else asarray(part, dtype=like.dtype) for part in parts])


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None) -> Array:
    start, stop = (0, start) if stop is None else (start, stop)
    check_numbers(start, stop, step)
    default = np.int64 if isinstance(start + stop + step, int) else np.float32
    kind: Any = np.dtype(default if dtype is None else dtype.as_numpy_dtype)
    return tf.constant(np.arange(start, stop, step, dtype=kind))


def linspace(start: Any, stop: Any, /, num: int, *, dtype: Any = None, endpoint: bool = True) -> Array:
    check_numbers(start, stop)
    kind: Any = np.dtype(np.float32 if dtype is None else dtype.as_numpy_dtype)
    return tf.constant(np.linspace(start, stop, num, endpoint, dtype=kind))


def full(shape: Any, fill_value: Any, *, dtype: Any = None) -> Array:
    sizes = shape if isinstance(shape, tf.Tensor) else tf.constant(np.asarray(shape, np.int64).reshape(-1))
    return tf.fill(sizes, asarray(fill_value, dtype=dtype))


def full_like(x: Array, fill_value: Any, *, dtype: Any = None) -> Array:
    return full(tf.shape(x), fill_value, dtype=dtype or x.dtype)


def zeros(shape: Any, *, dtype: Any = None) -> Array:
    return full(shape, 0, dtype=dtype or tf.float32)


def ones(shape: Any, *, dtype: Any = None) -> Array:
    return full(shape, 1, dtype=dtype or tf.float32)


# tf.cast drops the imaginary part.
def astype(x: Array, dtype: Any, /, *, copy: bool = True) -> Array:
    if dtype_rank(x.dtype) == COMPLEX and dtype_rank(dtype) in (INTEGER, FLOAT):
        raise TypeError(f"{x.dtype.name} does not become {dtype.name}: take fanwise.tensor.real(x), imag(x) or abs(x)")
    return tf.cast(x, dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    kinds = [k if isinstance(k, str) else k.as_numpy_dtype for k in (kind if isinstance(kind, tuple) else (kind,))]
    return bool(np.isdtype(np.dtype(dtype.as_numpy_dtype), tuple(kinds)))


def _pair(x1: Any, x2: Any) -> tuple[Array, Array]:
    """Return both arguments as tensors; a Python number gets the other's dtype."""
    if not isinstance(x1, _ARRAYS):
        return _number(x1, x2.dtype), x2
    return x1, x2 if isinstance(x2, _ARRAYS) else _number(x2, x1.dtype)


def _number(number: Any, dtype: Any) -> Array:
    if _RANK_OF_NUMBER.get(type(number), COMPLEX + 1) > dtype_rank(dtype):
        raise TypeError(f"{number!r} does not fit beside an array of {dtype.name}; convert one of them")
    # tf.constant of a number looks it up by equality, and may return 0.0 for -0.0.
    return tf.constant(np.asarray(number, dtype.as_numpy_dtype))


# The gradient of tf.sqrt at 0 is 0 if the upstream gradient is 0; on torch and JAX it is NaN.
@tf.custom_gradient  # type: ignore[untyped-decorator]
def _sqrt(x: Array) -> Any:
    return tf.sqrt(x), lambda upstream: upstream * 0.5 / tf.math.conj(_sqrt(x))


# TensorFlow assigns the gradient of equal elements to the first array; on torch and JAX they share it.
def _maximum(x1: Array, x2: Array) -> Array:
    if dtype_rank(x1.dtype) == INTEGER:
        return tf.maximum(x1, x2)
    larger = 0.5 * tf.where(x1 >= x2, x1, x2) + 0.5 * tf.where(x1 > x2, x1, x2)
    return tf.where(tf.math.is_nan(x1), x1 + x2, larger)


def _minimum(x1: Array, x2: Array) -> Array:
    return tf.minimum(x1, x2) if dtype_rank(x1.dtype) == INTEGER else -_maximum(-x1, -x2)


def _pow(x1: Array, x2: Array) -> Array:
    return pow(tf, x1, x2, tf.pow) if dtype_rank(x1.dtype) == FLOAT else tf.pow(x1, x2)


def _hypot(x1: Array, x2: Array) -> Array:
    return arguments.hypot(tf, x1, x2, tf.stop_gradient(tf.maximum(tf.abs(x1), tf.abs(x2))))


# tf.clip_by_value ignores a bound of NaN.
def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    x = tf.convert_to_tensor(x)
    return arguments.clip(tf, x, *(bound if bound is None else _pair(x, bound)[1] for bound in (min, max)))


def _axes(x: Array, axis: Axis) -> list[int]:
    """Return the axes counted from the front."""
    axes = range(x.shape.rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    return [range(x.shape.rank)[index] for index in axes]


def _reduction(name: str) -> _Function:
    def reduction(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
        x, axes = tf.cast(x, tf.bool) if name in ("all", "any") else x, _axes(x, axis)
        if name in ("max", "min") and 0 in [x.shape[index] for index in axes]:  # TensorFlow returns an infinity
            raise ValueError(f"{name} of no elements has no value: the array has shape {tuple(x.shape)}")
        return getattr(tf, f"reduce_{name}")(x, axes, keepdims)

    return reduction


def _arg_reduction(name: str) -> _Function:
    def reduction(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
        if axis is None:
            result = reduction(tf.reshape(x, [-1]), axis=0)
            return tf.reshape(result, [1] * x.shape.rank) if keepdims else result
        (place,) = _axes(x, axis)
        result = getattr(tf, name)(x, place, tf.int64)
        if dtype_rank(x.dtype) == FLOAT:  # TensorFlow skips NaN (tensorflow#118177)
            is_nan = tf.math.is_nan(x)
            first = tf.argmax(tf.cast(is_nan, tf.int32), place, tf.int64)
            result = tf.where(tf.reduce_any(is_nan, place), first, result)
        return tf.expand_dims(result, place) if keepdims else result

    return reduction


# Small integers and booleans overflow in TensorFlow.
def _summed(x: Array, dtype: Any) -> Array:
    if dtype is None and dtype_rank(x.dtype) <= INTEGER:
        dtype = tf.uint64 if x.dtype.name.startswith("u") else tf.int64
    return tf.cast(x, dtype or x.dtype)


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    return tf.reduce_sum(_summed(x, dtype), _axes(x, axis), keepdims)


# TensorFlow rounds the mean of integers.
def _floats(x: Array) -> Array:
    return tf.cast(x, tf.float32 if dtype_rank(x.dtype) <= INTEGER else x.dtype)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    return tf.reduce_mean(_floats(x), _axes(x, axis), keepdims)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    x, axes = _floats(x), _axes(x, axis)
    divisor = math.prod(x.shape[index] for index in axes) - correction
    squares = _squares(x - tf.reduce_mean(x, axes, keepdims=True))
    return tf.reduce_sum(squares, axes, keepdims) / (divisor if divisor > 0 else math.nan)


# The second derivative of tf.square(tf.abs(x)) at 0 is 0.
def _squares(x: Array) -> Array:
    return tf.math.real(x * tf.math.conj(x))


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    return root(tf, var(x, axis=axis, correction=correction, keepdims=keepdims))


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    if ord != 2:
        raise ValueError(f"vector_norm has ord=2 only on TensorFlow, got {ord!r}; use tf.norm")
    return root(tf, tf.reduce_sum(_squares(x), _axes(x, axis), keepdims))


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    if axis is None:
        return tf.concat([tf.reshape(x, [-1]) for x in arrays], 0)
    return tf.concat(arrays, axis)


# tf.gather refuses negative indices.
def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    check_indices(indices, x.shape.rank, axis)
    (place,) = _axes(x, axis or 0)
    length = tf.cast(tf.shape(x)[place], indices.dtype)
    try:
        return tf.gather(x, tf.where(indices < 0, indices + length, indices), axis=place)
    except tf.errors.InvalidArgumentError as error:  # in a tf.function it stays one; a GPU returns zeros
        raise IndexError(f"an index is out of range for axis {place} with {x.shape[place]} elements") from error


# tf.matmul refuses vectors.
def matmul(x1: Array, x2: Array, /) -> Array:
    result = tf.matmul(x1 if x1.shape.rank > 1 else x1[None], x2 if x2.shape.rank > 1 else x2[:, None])
    result = tf.squeeze(result, -1) if x2.shape.rank == 1 else result
    return tf.squeeze(result, -1 if x2.shape.rank == 1 else -2) if x1.shape.rank == 1 else result


_OWN: tuple[_Function, ...] = (
    *(arange, asarray, astype, clip, concat, full, full_like, isdtype, linspace, matmul, mean),
    *(ones, std, sum, take, var, zeros),
)
_CREATION = "arange asarray astype full full_like linspace ones ones_like zeros zeros_like".split()
_OF_TWO: dict[str, _Function] = {
    **{name: getattr(tf, name) for name in ("greater", "greater_equal", "less", "less_equal")},
    **{name: getattr(tf, name) for name in ("add", "divide", "multiply", "subtract", "logical_and", "logical_or")},
    # tf.equal returns False if the shapes do not fit.
    "equal": lambda x1, x2: tf.raw_ops.Equal(x=x1, y=x2),
    "not_equal": lambda x1, x2: tf.raw_ops.NotEqual(x=x1, y=x2),
    **{function.__name__[1:]: function for function in (_hypot, _maximum, _minimum, _pow)},
}
_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(tf.math, name) for name in ("abs", "cos", "exp", "log", "sin", "tan", "tanh")},
    **{name: getattr(tf.math, name) for name in ("conj", "imag", "logical_not", "negative", "real", "sign", "square")},
    "isnan": tf.math.is_nan,
    "sqrt": _sqrt,
    "where": lambda condition, x1, x2, /: tf.where(condition, *_pair(x1, x2)),
    "reshape": lambda x, /, shape, *, copy=None: tf.reshape(x, shape),
    "permute_dims": lambda x, /, axes: tf.transpose(x, _axes(x, tuple(axes))),
    **{name: lambda x1, x2, /, f=function: f(*_pair(x1, x2)) for name, function in _OF_TWO.items()},
    **{name: _reduction(name) for name in ("all", "any", "max", "min")},
    **{name: _arg_reduction(name) for name in ("argmax", "argmin")},
    "zeros_like": functools.partial(full_like, fill_value=0),
    "ones_like": functools.partial(full_like, fill_value=1),
    **{function.__name__: function for function in _OWN},
}

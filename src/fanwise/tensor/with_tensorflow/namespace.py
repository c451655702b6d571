"""Functions for TensorFlow by the standard's names: those of chapter 2.1 of "Dive into Deep Learning", and a few more.

TensorFlow has no implementation of the array API standard; for any other function, call TensorFlow. These functions
accept tensors, variables and Python numbers, return tensors, and work inside `tf.function`. Arrays in one call must
have the same dtype: TensorFlow does not promote dtypes.
"""

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtype_names import BOOL, COMPLEX, FLOAT, INTEGER, dtype_rank, limits
from ..namespaces.infos import KINDS
from ..namespaces.shared import broadcast_shapes, check_fits, check_indices, contains, numbers_to_numpy
from ..namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES
from ..placement import find_device
from . import tf
from .devices import placed_on

Array = Any  # Any, here and below: TensorFlow has no annotations
Axis = int | tuple[int, ...] | None
_Function = Callable[..., Any]

_ARRAYS = (tf.Tensor, tf.Variable)
_REAL = (INTEGER, FLOAT)
_FLOATS = (FLOAT, COMPLEX)
_NUMERIC = (INTEGER, FLOAT, COMPLEX)
_ALL = (BOOL, INTEGER, FLOAT, COMPLEX)
_RANK_OF_NUMBER = {bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}


def names(part: str) -> dict[str, Any]:
    """Return the functions, constants and dtypes of one part of the standard by name."""
    if part:
        return {"vector_norm": vector_norm, "matmul": matmul} if part == "linalg" else {}
    for function in _FUNCTIONS.values():
        # AutoGraph would rewrite the source of each function, which takes tens of milliseconds and changes nothing.
        function.autograph_info__ = {}
    return _FUNCTIONS | CONSTANTS | {name: getattr(tf, name) for name in (*DTYPES, *EXTRA_DTYPES)}


def _tensor(name: str, x: Array, ranks: Sequence[int] = _ALL) -> Array:
    x = tf.convert_to_tensor(x) if isinstance(x, tf.Variable) else x
    if not isinstance(x, tf.Tensor):
        raise TypeError(f"{name} takes arrays of tensorflow, got {type(x).__module__}.{type(x).__qualname__}")
    if dtype_rank(x.dtype) not in ranks:
        raise TypeError(f"{name} does not take arrays of {x.dtype.name}; convert it: fanwise.tensor.astype(x, dtype)")
    return x


def _pair(name: str, x1: Any, x2: Any, ranks: Sequence[int] = _ALL) -> tuple[Array, Array]:
    """Return two tensors of one dtype. One of the arguments may be a Python number that fits the other's dtype."""
    if not isinstance(x1, _ARRAYS):
        x2 = _tensor(name, x2, ranks)
        return _number(name, x1, x2.dtype), x2
    x1 = _tensor(name, x1, ranks)
    if not isinstance(x2, _ARRAYS):
        return x1, _number(name, x2, x1.dtype)
    x2 = _tensor(name, x2, ranks)
    if x1.dtype != x2.dtype:
        raise TypeError(
            f"{name} got arrays of {x1.dtype.name} and {x2.dtype.name}, and TensorFlow does not promote dtypes; "
            f"convert one of them: fanwise.tensor.astype(x, dtype)"
        )
    return x1, x2


def _number(name: str, number: Any, dtype: Any) -> Array:
    rank, array_rank = _RANK_OF_NUMBER.get(type(number)), dtype_rank(dtype)
    if rank is None or rank > array_rank or (rank == BOOL) != (array_rank == BOOL):
        raise TypeError(f"{name} got {number!r} beside an array of {dtype.name}; convert one of them")
    check_fits(number, limits(dtype.name) if array_rank == INTEGER else None)
    # tf.constant of a number looks it up by equality, and may return 0.0 for -0.0.
    return tf.constant(np.asarray(number, dtype.as_numpy_dtype))


def _axes(x: Array, axis: Axis) -> list[int]:
    """Return the axes counted from the front."""
    axes = range(x.shape.rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    for each in axes:
        if not -x.shape.rank <= each < x.shape.rank:
            raise IndexError(f"axis {each} is out of bounds for an array of {x.shape.rank} axes")
    if len({each % x.shape.rank for each in axes}) < len(axes):
        raise ValueError(f"an axis is named twice in {axis}")
    return [each % x.shape.rank for each in axes]


# -- creation ----------------------------------------------------------------------------------------------------------


def _on_device(function: _Function) -> _Function:
    @functools.wraps(function)
    def created(*arguments: Any, device: str | None = None, **keywords: Any) -> Array:
        if device is None:
            return function(*arguments, **keywords)
        with placed_on(find_device("tensorflow", device)):
            return tf.identity(function(*arguments, **keywords))

    return created


@_on_device
def asarray(obj: Any, /, *, dtype: Any = None, copy: bool | None = None) -> Array:
    if isinstance(obj, _ARRAYS):
        x = _tensor("asarray", obj)
        if copy is False and dtype not in (None, x.dtype):
            raise ValueError(f"asarray(copy=False) cannot convert {x.dtype.name} to {dtype.name}")
        x = x if dtype is None else tf.cast(x, dtype)
        return tf.identity(x) if copy else x
    if copy is False:
        raise ValueError(f"asarray(copy=False) takes a tensor, got {type(obj).__name__}, which has to be copied")
    if not contains(obj, _ARRAYS):
        return tf.constant(numbers_to_numpy(obj, None if dtype is None else dtype.as_numpy_dtype))
    parts = [asarray(part, dtype=dtype) if contains(part, _ARRAYS) else part for part in obj]
    like = next(part for part in parts if isinstance(part, tf.Tensor))
    return tf.stack([part if isinstance(part, tf.Tensor) else asarray(part, dtype=like.dtype) for part in parts])


@_on_device
def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None) -> Array:
    start, stop = (0, start) if stop is None else (start, stop)
    if contains([start, stop, step], _ARRAYS):
        raise TypeError("arange takes Python numbers on TensorFlow: no gradient would flow through an array")
    default = np.int64 if isinstance(start + stop + step, int) else np.float32
    kind: Any = np.dtype(default if dtype is None else dtype.as_numpy_dtype)
    return tf.constant(np.arange(start, stop, step, dtype=kind))


@_on_device
def linspace(start: Any, stop: Any, /, num: int, *, dtype: Any = None, endpoint: bool = True) -> Array:
    if contains([start, stop], _ARRAYS):
        raise TypeError("linspace takes Python numbers on TensorFlow: no gradient would flow through an array")
    kind: Any = np.dtype(np.float32 if dtype is None else dtype.as_numpy_dtype)
    return tf.constant(np.linspace(start, stop, num, endpoint, dtype=kind))


@_on_device
def full(shape: Any, fill_value: Any, *, dtype: Any = None) -> Array:
    sizes = shape if isinstance(shape, tf.Tensor) else tf.constant(np.asarray(shape, np.int64).reshape(-1))
    return tf.fill(sizes, asarray(fill_value, dtype=dtype))


def zeros(shape: Any, *, dtype: Any = None, device: str | None = None) -> Array:
    return full(shape, 0, dtype=dtype or tf.float32, device=device)


def ones(shape: Any, *, dtype: Any = None, device: str | None = None) -> Array:
    return full(shape, 1, dtype=dtype or tf.float32, device=device)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: str | None = None) -> Array:
    return full(tf.shape(x), fill_value, dtype=dtype or x.dtype, device=device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    return full_like(x, 1, dtype=dtype, device=device)


@_on_device
def astype(x: Array, dtype: Any, /, *, copy: bool = True) -> Array:
    x = _tensor("astype", x)
    if dtype_rank(x.dtype) == COMPLEX and dtype_rank(dtype) in _REAL:
        raise TypeError(f"{x.dtype.name} does not become {dtype.name}: take fanwise.tensor.real(x), imag(x) or abs(x)")
    return tf.cast(x, dtype)


# -- element by element ------------------------------------------------------------------------------------------------


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _sqrt(x: Array) -> Any:
    # At 0 the gradient of tf.sqrt is 0 if the upstream gradient is 0, where the other engines return NaN.
    return tf.sqrt(x), lambda upstream: upstream * 0.5 / tf.math.conj(_sqrt(x))


def _sqrt_flat_at_zero(squares: Array) -> Array:
    """Return the square root, with the gradient 0 at 0."""
    is_zero = tf.equal(squares, 0)
    return tf.where(is_zero, tf.zeros_like(squares), _sqrt(tf.where(is_zero, tf.ones_like(squares), squares)))


def _maximum(x1: Array, x2: Array) -> Array:
    if dtype_rank(x1.dtype) == INTEGER:
        return tf.maximum(x1, x2)
    # Equal elements share the gradient, as on torch and JAX; TensorFlow assigns it to the first array.
    larger = 0.5 * tf.where(x1 >= x2, x1, x2) + 0.5 * tf.where(x1 > x2, x1, x2)
    return tf.where(tf.math.is_nan(x1), x1 + x2, larger)


def _pow(x1: Array, x2: Array) -> Array:
    if dtype_rank(x1.dtype) != FLOAT:
        return tf.pow(x1, x2)
    # At 0, tf.pow has NaN as the gradient of the power 0, and as the second derivative of the power 1.
    is_zero, is_one = tf.equal(x1, 0), tf.equal(x2, 1)
    power = tf.pow(tf.where(is_zero & (is_one | tf.equal(x2, 0)), tf.ones_like(x1), x1), x2)
    return tf.where(is_zero & is_one, x1, power)


def _hypot(x1: Array, x2: Array) -> Array:
    scale = tf.stop_gradient(tf.maximum(tf.abs(x1), tf.abs(x2)))
    safe = tf.where((scale > 0) & tf.math.is_finite(scale), scale, tf.ones_like(scale))
    found = safe * _sqrt_flat_at_zero(tf.square(x1 / safe) + tf.square(x2 / safe))
    return tf.where(tf.math.is_inf(x1) | tf.math.is_inf(x2), tf.constant(math.inf, found.dtype), found)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    x = _tensor("clip", x, _REAL)
    if min is not None:
        low = _pair("clip", x, min)[1]
        x = tf.where((x < low) | (low != low), low, x)  # a bound of NaN makes NaN
    if max is not None:
        high = _pair("clip", x, max)[1]
        x = tf.where((x > high) | (high != high), high, x)
    return x


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    return tf.where(_tensor("where", condition, (BOOL,)), *_pair("where", x1, x2))


_OF_ONE: dict[str, tuple[Sequence[int], _Function]] = {
    **{name: (_FLOATS, getattr(tf.math, name)) for name in ("cos", "exp", "log", "sin", "tan", "tanh")},
    "abs": (_NUMERIC, tf.abs),
    "conj": (_NUMERIC, tf.math.conj),
    "imag": ((COMPLEX,), tf.math.imag),
    "isnan": ((FLOAT,), tf.math.is_nan),
    "logical_not": ((BOOL,), tf.logical_not),
    "negative": (_NUMERIC, tf.negative),
    "real": (_NUMERIC, tf.math.real),
    "sign": (_REAL, tf.sign),
    "sqrt": (_FLOATS, _sqrt),
    "square": (_NUMERIC, tf.square),
}
_OF_TWO: dict[str, tuple[Sequence[int], _Function]] = {
    **{name: (_REAL, getattr(tf, name)) for name in ("greater", "greater_equal", "less", "less_equal")},
    **{name: (_NUMERIC, getattr(tf, name)) for name in ("add", "multiply", "subtract")},
    **{name: ((BOOL,), getattr(tf, name)) for name in ("logical_and", "logical_or")},
    "divide": (_FLOATS, tf.divide),
    # tf.equal returns False if the shapes do not fit.
    "equal": (_ALL, lambda x, y: tf.raw_ops.Equal(x=x, y=y)),
    "not_equal": (_ALL, lambda x, y: tf.raw_ops.NotEqual(x=x, y=y)),
    "hypot": ((FLOAT,), _hypot),
    "maximum": (_REAL, _maximum),
    "minimum": (_REAL, lambda x, y: tf.minimum(x, y) if dtype_rank(x.dtype) == INTEGER else -_maximum(-x, -y)),
    "pow": (_NUMERIC, _pow),
}


def _of_one(name: str, ranks: Sequence[int], op: _Function) -> _Function:
    return lambda x, /: op(_tensor(name, x, ranks))


def _of_two(name: str, ranks: Sequence[int], op: _Function) -> _Function:
    return lambda x1, x2, /: op(*_pair(name, x1, x2, ranks))


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduction(name: str, ranks: Sequence[int], op: _Function) -> _Function:
    def reduction(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
        x = _tensor(name, x, ranks)
        if name in ("max", "min") and 0 in [x.shape[each] for each in _axes(x, axis)]:
            raise ValueError(f"{name} of no elements has no value: the array has shape {tuple(x.shape)}")
        return op(tf.cast(x, tf.bool) if name in ("all", "any") else x, _axes(x, axis), keepdims)

    return reduction


def _summed(name: str, x: Array, dtype: Any) -> Array:
    """Return x as the dtype in which its elements are added: booleans and small integers as 64-bit integers."""
    x = _tensor(name, x)
    if dtype is None and dtype_rank(x.dtype) <= INTEGER:
        dtype = tf.uint64 if x.dtype.name.startswith("u") else tf.int64
    return tf.cast(x, dtype or x.dtype)


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    x = _summed("sum", x, dtype)
    return tf.reduce_sum(x, _axes(x, axis), keepdims)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    x = _summed("cumulative_prod", x, dtype)
    if axis is None and x.shape.rank != 1:
        raise ValueError(f"cumulative_prod needs an axis for an array of {x.shape.rank} axes")
    (place,) = _axes(x, axis or 0)
    if include_initial:
        x = tf.concat([tf.ones([*x.shape[:place], 1, *x.shape[place + 1 :]], x.dtype), x], place)
    # Not tf.math.cumprod: its gradient divides by the elements and is wrong at zeros (tensorflow#3862).
    before, shift = (slice(None),) * place, 1
    while shift < x.shape[place]:
        products = x[(*before, slice(shift, None))] * x[(*before, slice(None, -shift))]
        x = tf.concat([x[(*before, slice(None, shift))], products], place)
        shift *= 2
    return x


def _floats(name: str, x: Array) -> Array:
    x = _tensor(name, x)
    return tf.cast(x, tf.float32) if dtype_rank(x.dtype) <= INTEGER else x


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    x = _floats("mean", x)
    return tf.reduce_mean(x, _axes(x, axis), keepdims)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    x = _tensor("var", _floats("var", x), (FLOAT,))
    axes = _axes(x, axis)
    divisor = math.prod(x.shape[each] for each in axes) - correction
    squares = tf.square(x - tf.reduce_mean(x, axes, keepdims=True))
    return tf.reduce_sum(squares, axes, keepdims) / (divisor if divisor > 0 else math.nan)


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    return _sqrt_flat_at_zero(var(x, axis=axis, correction=correction, keepdims=keepdims))


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    if ord != 2:
        raise ValueError(f"vector_norm has ord=2 only on TensorFlow, got {ord!r}; use tf.norm")
    x = _tensor("vector_norm", x, (FLOAT,))
    return _sqrt_flat_at_zero(tf.reduce_sum(tf.square(x), _axes(x, axis), keepdims))


def _arg_reduction(name: str, find: _Function) -> _Function:
    def reduction(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
        x = _tensor(name, x, _REAL)
        if axis is None:
            found = reduction(tf.reshape(x, [-1]), axis=0)
            return tf.reshape(found, [1] * x.shape.rank) if keepdims else found
        (place,) = _axes(x, axis)
        if x.shape[place] == 0:
            raise ValueError(f"{name} of no elements has no value: the array has shape {tuple(x.shape)}")
        found = find(x, place, tf.int64)
        if dtype_rank(x.dtype) == FLOAT:  # TensorFlow skips NaN (tensorflow#118177)
            is_nan = tf.math.is_nan(x)
            first = tf.argmax(tf.cast(is_nan, tf.int32), place, tf.int64)
            found = tf.where(tf.reduce_any(is_nan, place), first, found)
        return tf.expand_dims(found, place) if keepdims else found

    return reduction


# -- order, shape and products -----------------------------------------------------------------------------------------


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    x = _tensor("sort", x, _REAL)
    (place,) = _axes(x, axis)
    last = x.shape.rank - 1
    swapped = [*range(place), last, *range(place + 1, last), place][: last + 1]  # gathering is along the last axis
    direction = "DESCENDING" if descending else "ASCENDING"
    x = tf.transpose(x, swapped)
    is_nan = tf.not_equal(x, x)  # beside NaN, TensorFlow loses the order of the other elements
    order = tf.argsort(tf.where(is_nan, tf.zeros_like(x), x), -1, direction, stable=True)
    x, is_nan = (tf.gather(each, order, batch_dims=last) for each in (x, is_nan))
    if dtype_rank(x.dtype) == FLOAT:
        order = tf.argsort(tf.cast(is_nan, tf.int32), -1, direction, stable=True)
        x = tf.gather(x, order, batch_dims=last)
    return tf.transpose(x, swapped)


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    tensors = [_pair("concat", arrays[0], x)[1] for x in arrays]
    if axis is None:
        return tf.concat([tf.reshape(x, [-1]) for x in tensors], 0)
    return tf.concat(tensors, _axes(tensors[0], axis)[0])


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    return tf.reshape(_tensor("reshape", x), shape)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    x = _tensor("permute_dims", x)
    return tf.transpose(x, _axes(x, tuple(axes)))


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    x, indices = _tensor("take", x), _tensor("take", indices, (INTEGER,))
    check_indices(indices, x.shape.rank, axis)
    (place,) = _axes(x, axis or 0)
    length = tf.cast(tf.shape(x)[place], indices.dtype)
    try:
        return tf.gather(x, tf.where(indices < 0, indices + length, indices), axis=place)
    except tf.errors.InvalidArgumentError as error:  # in a tf.function it stays one; a GPU returns zeros
        raise IndexError(f"an index is out of range for axis {place} with {x.shape[place]} elements") from error


def isdtype(dtype: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, each) for each in kind)
    return dtype.name in KINDS[kind] if isinstance(kind, str) else bool(dtype == kind)


def matmul(x1: Array, x2: Array, /) -> Array:
    x1, x2 = _pair("matmul", x1, x2, _NUMERIC)
    if not x1.shape.rank or not x2.shape.rank:
        raise ValueError(f"matmul needs arrays of one axis or more, got shapes {x1.shape} and {x2.shape}")
    found = tf.matmul(x1 if x1.shape.rank > 1 else x1[None], x2 if x2.shape.rank > 1 else x2[:, None])
    found = tf.squeeze(found, -1) if x2.shape.rank == 1 else found
    return tf.squeeze(found, -1 if x2.shape.rank == 1 else -2) if x1.shape.rank == 1 else found


_FUNCTIONS: dict[str, Any] = {
    **{name: _of_one(name, *row) for name, row in _OF_ONE.items()},
    **{name: _of_two(name, *row) for name, row in _OF_TWO.items()},
    **{name: _reduction(name, _ALL, getattr(tf, f"reduce_{name}")) for name in ("all", "any")},
    **{name: _reduction(name, _REAL, getattr(tf, f"reduce_{name}")) for name in ("max", "min")},
    **{name: _arg_reduction(name, getattr(tf, name)) for name in ("argmax", "argmin")},
    **{
        function.__name__: function
        for function in (
            *(arange, asarray, astype, broadcast_shapes, clip, concat, cumulative_prod, full, full_like, isdtype),
            *(matmul, mean, ones, ones_like, permute_dims, reshape, sort, std, sum, take, var, where, zeros),
            *(linspace, zeros_like),
        )
    },
}

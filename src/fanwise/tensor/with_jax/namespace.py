"""The standard's functions on JAX: those of jax.numpy, and corrections where JAX is wrong or silent.

Each function below says what JAX does. Beside them:
* asking for a dtype of 64 bits while JAX is set to 32 is an error; JAX narrows the numbers;
* floats made from Python numbers are float32 also when 64 bits are on; `device` may be a name;
* functions of two arrays raise OverflowError for a Python integer outside of the array's dtype; JAX wraps it around.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dtype_names import limits
from ..namespaces import arguments
from ..namespaces.arguments import (
    check_bounds,
    check_fits,
    check_indices,
    check_number,
    check_numbers,
    contains,
    num_reduced,
    numbers_to_numpy,
    root,
    with_float32_defaults,
)
from ..namespaces.namespace import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS, of_two_arrays
from . import check_width, config

_Function = Callable[..., Any]
_Axis = int | tuple[int, ...] | None

_LIMITS: dict[Any, tuple[int, int]] = {
    np.dtype(name): limits(name) for name in DTYPES if name.startswith(("int", "uint"))
}
# Functions of JAX with a dtype or a device; True if the default dtype is float32.
_CHECKED = {
    **dict.fromkeys(("cumulative_sum", "empty_like", "ones_like", "prod", "sum", "zeros_like"), False),
    **dict.fromkeys(("empty", "eye", "fftfreq", "ones", "rfftfreq", "zeros"), True),
}


def names(part: str) -> dict[str, Any]:
    source = getattr(jnp, part) if part else jnp
    functions = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    functions |= {name: _checked(functions[name], _CHECKED[name]) for name in functions.keys() & _CHECKED}
    if part:
        return functions | ({"vector_norm": vector_norm} if part == "linalg" else {})
    functions |= {name: np.dtype(getattr(jnp, name)) for name in (*DTYPES, *EXTRA_DTYPES)} | CONSTANTS
    functions |= {name: _as_tuple(functions[name]) for name in ("broadcast_arrays", "meshgrid")}
    functions |= {function.__name__: function for function in _CORRECTED}
    return functions | {name: _fitting(functions[name]) for name in of_two_arrays()}


def _check_dtype(dtype: Any) -> Any:
    if dtype is not None:
        check_width(np.dtype(dtype))
    return dtype


def _checked(function: _Function, is_float32: bool = False) -> _Function:
    """Check the keyword `dtype`, and let `device` be a name."""

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        if is_float32 and keywords.get("dtype") is None:
            keywords["dtype"] = jnp.float32
        _check_dtype(keywords.get("dtype"))
        if type(device := keywords.get("device")) is str:
            from .exchange import device_named  # initializes JAX's devices

            keywords["device"] = device_named(device)
        return function(*args, **keywords)

    return checked


def _fitting(function: _Function) -> _Function:
    @functools.wraps(function)
    def fitting(x1: Any, x2: Any, /) -> Any:
        check_number(x1, x2, _LIMITS)
        return function(x1, x2)

    return fitting


# JAX returns lists.
def _as_tuple(function: _Function) -> _Function:
    return functools.wraps(function)(lambda *arrays, **keywords: tuple(function(*arrays, **keywords)))


def _default_int() -> Any:
    return np.dtype("int64" if config.jax_enable_x64 else "int32")


# -- creation ----------------------------------------------------------------------------------------------------------


@_checked
def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> jax.Array:
    if not contains(obj, (jax.Array,)) and not hasattr(obj, "__dlpack__"):
        obj = numbers_to_numpy(obj, dtype, _default_int().name, copy=copy)
    for leaf in jax.tree.leaves(obj) if dtype is None else ():
        _check_dtype(getattr(leaf, "dtype", None))
    return jnp.asarray(obj, dtype=dtype, copy=copy, device=device)


@_checked
def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> jax.Array:
    check_numbers(start, stop, step)
    if dtype is None and float in (type(start), type(stop), type(step)):
        dtype = jnp.float32
    return jnp.arange(start, stop, step, dtype=dtype, device=device)


# JAX makes 1 of 1.9999 in an array of integers.
@_checked
def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> jax.Array:
    check_numbers(start, stop)
    if dtype is None:
        dtype = jnp.complex64 if isinstance(start, complex) or isinstance(stop, complex) else jnp.float32
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(np.linspace(start, stop, num, endpoint, dtype=dtype), device=device)
    return jnp.linspace(start, stop, num, dtype=dtype, device=device, endpoint=endpoint)


@_checked
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> jax.Array:
    if dtype is None:
        defaults = {int: _default_int(), float: jnp.float32, complex: jnp.complex64}
        dtype = defaults.get(type(fill_value), getattr(fill_value, "dtype", None))
    if type(fill_value) is int:
        check_fits(fill_value, _LIMITS.get(np.dtype(dtype)))
    return jnp.full(shape, fill_value, dtype=dtype, device=device)


def full_like(x: jax.Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> jax.Array:
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)  # type: ignore[no-any-return]


@_checked
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> jax.Array:
    name = str(getattr(x, "dtype", "")).rpartition(".")[2]  # torch.float64 is "torch.float64"
    _check_dtype(np.dtype(name) if name in DTYPES else None)
    return jnp.from_dlpack(x, device=device, copy=copy)


@_checked
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> jax.Array:
    return jnp.astype(x, _check_dtype(dtype), copy=copy, device=device)


# The defaults of JAX depend on whether 64 bits are on.
def __array_namespace_info__() -> Any:
    return with_float32_defaults(jnp.__array_namespace_info__(), np.dtype("float32"), np.dtype("complex64"))


# -- element by element ------------------------------------------------------------------------------------------------


# The gradient of jnp.abs at 0 is 1.
def abs(x: jax.Array, /) -> jax.Array:
    return x * jnp.sign(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.abs(x)


def hypot(x1: Any, x2: Any, /) -> Any:
    x1, x2 = _promoted(x1, x2)
    return arguments.hypot(jnp, x1, x2, jax.lax.stop_gradient(jnp.maximum(jnp.abs(x1), jnp.abs(x2))))


# The derivative of jnp.sign of a complex number is 0. jnp.sign of -0 is -0.
def sign(x: jax.Array, /) -> jax.Array:
    signs = jnp.sign(x)
    if jnp.iscomplexobj(x):
        length = jnp.abs(x)
        signs = jnp.where(jnp.isfinite(length), x / jnp.where(length == 0, 1, length), signs)
    return jnp.where(x == 0, jnp.zeros_like(x), signs)


# The derivative of jnp.acosh of a complex number has the wrong sign left of 0.
def acosh(x: jax.Array, /) -> jax.Array:
    return 2 * jnp.log(jnp.sqrt((x + 1) / 2) + jnp.sqrt((x - 1) / 2)) if jnp.iscomplexobj(x) else jnp.acosh(x)


def _promoted(x1: Any, x2: Any) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.result_type(x1, x2)
    return jnp.asarray(x1, dtype=dtype), jnp.asarray(x2, dtype=dtype)


# JAX has NaN where x1 is infinite or x2 zero, because it computes by the remainder, and loses the sign of zeros.
def floor_divide(x1: Any, x2: Any, /) -> jax.Array:
    x1, x2 = jax.lax.stop_gradient(_promoted(x1, x2))
    result = jnp.floor_divide(x1, x2)
    if not jnp.issubdtype(result.dtype, jnp.floating):
        return result
    plain = jnp.floor(jnp.divide(x1, x2))
    is_usual = jnp.isfinite(plain) & jnp.isfinite(x2) & (result != 0)
    is_zero = jnp.isfinite(x2) & (result == 0)
    result = jnp.where(is_usual, result, jnp.where(is_zero, jnp.copysign(result, plain), plain))
    # The standard leaves these open; as on NumPy and torch.
    is_below = jnp.isinf(x2) & jnp.isfinite(x1) & (x1 != 0) & (jnp.signbit(x1) != jnp.signbit(x2))
    return jnp.where(is_below, -1, jnp.where(jnp.isinf(x1) & (x2 != 0), jnp.nan, result)).astype(result.dtype)


# A zero of jnp.remainder has another sign than the divisor.
def remainder(x1: Any, x2: Any, /) -> Any:
    x1, x2 = _promoted(x1, x2)
    return _remainder(x1, x2) if jnp.issubdtype(x1.dtype, jnp.floating) else jnp.remainder(x1, x2)


@jax.custom_jvp
def _remainder(x1: jax.Array, x2: jax.Array) -> jax.Array:
    result = jnp.remainder(x1, x2)
    return jnp.where(result == 0, jnp.copysign(result, x2), result)


_remainder.defjvp(lambda xs, dxs: (_remainder(*xs), jax.jvp(jnp.remainder, xs, dxs)[1]))


# jnp.clip halves the gradient at a bound, promotes, and wraps bounds around that an integer dtype does not hold.
def clip(x: jax.Array, /, min: Any = None, max: Any = None) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"clip takes real numbers, got an array of {x.dtype}")
    check_bounds(x, (min, max), _LIMITS)
    return arguments.clip(jnp, x, min, max)


# JAX takes its default dtype for a number as the base.
def pow(x1: Any, x2: Any, /) -> Any:
    dtype = jnp.result_type(x1, x2)
    x1 = x1 if hasattr(x1, "dtype") else jnp.asarray(x1, dtype=dtype)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.pow(x1, x2)
    return arguments.pow(jnp, x1, jnp.asarray(x2), lambda base, _: jnp.pow(base, x2)).astype(dtype)


# -- reductions, order and indices -------------------------------------------------------------------------------------


# JAX takes a complex number for true by its real part alone.
def all(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False) -> jax.Array:
    return jnp.all(x != 0, axis=axis, keepdims=keepdims)


def any(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False) -> jax.Array:
    return jnp.any(x != 0, axis=axis, keepdims=keepdims)


# Small integers overflow in JAX.
@_checked
def cumulative_prod(
    x: jax.Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> jax.Array:
    if dtype is None and not jnp.issubdtype(x.dtype, jnp.inexact):
        dtype = jax.eval_shape(jnp.prod, x).dtype
    return jnp.cumulative_prod(x, axis=axis, dtype=dtype, include_initial=include_initial)


# JAX divides by N - correction <= 0.
def var(x: jax.Array, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> jax.Array:
    result = jnp.var(x, axis=axis, correction=correction, keepdims=keepdims)
    return result if num_reduced(x.shape, axis) > correction else jnp.full_like(result, jnp.nan)


# The gradients of jnp.std and jnp.linalg.vector_norm at 0 are NaN.
def std(x: jax.Array, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    return root(jnp, var(x, axis=axis, correction=correction, keepdims=keepdims))


def vector_norm(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False, ord: Any = 2) -> Any:
    if ord == 2:
        return root(jnp, jnp.sum(jnp.real(x * jnp.conj(x)), axis=axis, keepdims=keepdims))
    x = abs(x)
    is_zero = jnp.all(x == 0, axis=axis, keepdims=True) & (ord > 0)
    result = jnp.linalg.vector_norm(jnp.where(is_zero, 1, x), axis=axis, keepdims=keepdims, ord=ord)
    return jnp.where(is_zero.reshape(result.shape), 0, result)


# jnp.sort reverses the ascending order, which assigns the gradients of equal elements in the wrong order.
def sort(x: jax.Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> jax.Array:
    if not descending:
        return jnp.sort(x, axis=axis, stable=stable)
    return jnp.take_along_axis(x, jnp.argsort(x, axis=axis, stable=True, descending=True), axis=axis)


# JAX returns NaN for an index out of range.
def take(x: jax.Array, indices: jax.Array, /, *, axis: int | None = None) -> jax.Array:
    check_indices(indices, x.ndim, axis)
    _check_range(indices, x.shape, axis)
    return jnp.take(x, indices, axis=axis)


def take_along_axis(x: jax.Array, indices: jax.Array, /, *, axis: int = -1) -> jax.Array:
    _check_range(indices, x.shape, axis)
    return jnp.take_along_axis(x, indices, axis=axis)


def _check_range(indices: jax.Array, shape: tuple[int, ...], axis: int | None) -> None:
    """Raise IndexError for an index out of range, on a CPU only: an accelerator would have to be waited for."""
    if isinstance(indices, jax.core.Tracer) or next(iter(indices.devices())).platform != "cpu":
        return
    length = math.prod(shape) if axis is None else shape[axis]
    result = np.asarray(indices)
    if result.size and (result.min() < -length or result.max() >= length):
        wrong = result[(result < -length) | (result >= length)].flat[0]
        raise IndexError(f"index {wrong} is out of range for axis {axis or 0} with {length} elements")


_CORRECTED: tuple[_Function, ...] = (
    *(abs, acosh, all, any, arange, asarray, astype, clip, cumulative_prod, floor_divide, from_dlpack, full),
    *(full_like, hypot, linspace, pow, remainder, sign, sort, std, take, take_along_axis, var),
    __array_namespace_info__,
)

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
from ..namespaces.arguments import (
    check_fits,
    check_indices,
    check_number,
    contains,
    made_of_python_numbers,
    num_reduced,
    numbers_to_numpy,
    with_float32_defaults,
)
from ..namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS, of_two_arrays
from .devices import device_named

_Function = Callable[..., Any]
_Axis = int | tuple[int, ...] | None

_WIDE = {np.dtype(name) for name in ("float64", "int64", "uint64", "complex128")}
_LIMITS: dict[Any, tuple[int, int]] = {
    np.dtype(name): limits(name) for name in DTYPES if name.startswith(("int", "uint"))
}
# Functions of JAX with a dtype or a device, which are checked; True if the default dtype is float32.
_CHECKED = {
    **dict.fromkeys(("cumulative_sum", "empty_like", "ones_like", "prod", "sum", "zeros_like"), False),
    **dict.fromkeys(("empty", "eye", "ones", "zeros"), True),
}


def names(part: str) -> dict[str, Any]:
    """Return the functions, constants and dtypes of one part of the standard by name."""
    source = getattr(jnp, part) if part else jnp
    functions = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    if part:
        return functions | ({"vector_norm": vector_norm} if part == "linalg" else {})
    functions |= {name: np.dtype(getattr(jnp, name)) for name in (*DTYPES, *EXTRA_DTYPES)} | CONSTANTS
    functions |= {name: _checked(functions[name], is_float32) for name, is_float32 in _CHECKED.items()}
    functions |= {name: _as_tuple(functions[name]) for name in ("broadcast_arrays", "meshgrid")}
    functions |= {function.__name__: function for function in _CORRECTED}
    return functions | {name: _fitting(functions[name]) for name in of_two_arrays()}


def _check_dtype(dtype: Any) -> Any:
    """Return the dtype, or raise TypeError if JAX is set to 32 bits and would narrow it."""
    if dtype is None or jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return dtype
    result = np.dtype(dtype)
    if result in _WIDE:
        narrow = result.name.replace("64", "32").replace("128", "64")
        raise TypeError(
            f"jax makes no {result.name} here: it is set to 32 bits, and would narrow the numbers in silence. "
            f"Ask for {narrow} (an array of numpy: x.astype({narrow!r})), or, before anything else, "
            f"turn 64 bits on: jax.config.update('jax_enable_x64', True)"
        )
    return dtype


def _device(device: Any) -> Any:
    return device_named(device) if type(device) is str else device


def _checked(function: _Function, is_float32: bool) -> _Function:
    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if is_float32 and keywords.get("dtype") is None:
            keywords["dtype"] = jnp.float32
        _check_dtype(keywords.get("dtype"))
        if "device" in keywords:
            keywords["device"] = _device(keywords["device"])
        return function(*arguments, **keywords)

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
    return np.dtype("int64" if jax.config.jax_enable_x64 else "int32")  # type: ignore[attr-defined]


# -- creation ----------------------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> jax.Array:
    if not contains(obj, (jax.Array,)) and not hasattr(obj, "__dlpack__"):
        obj = numbers_to_numpy(obj, _check_dtype(dtype), _default_int().name)
    for leaf in jax.tree.leaves(obj) if dtype is None else ():
        _check_dtype(getattr(leaf, "dtype", None))
    return jnp.asarray(obj, dtype=_check_dtype(dtype), copy=copy, device=_device(device))


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> jax.Array:
    if contains([start, stop, step], (jax.core.Tracer,)):
        raise TypeError("arange takes numbers, not arrays that JAX traces: no gradient flows through arange")
    if dtype is None and float in (type(start), type(stop), type(step)):
        dtype = jnp.float32
    return jnp.arange(start, stop, step, dtype=_check_dtype(dtype), device=_device(device))


# JAX makes 1 of 1.9999 in an array of integers.
def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> jax.Array:
    if dtype is None:
        dtype = jnp.complex64 if isinstance(start, complex) or isinstance(stop, complex) else jnp.float32
    if jnp.issubdtype(dtype, jnp.integer) and made_of_python_numbers((start, stop)):
        return jnp.asarray(np.linspace(start, stop, num, endpoint, dtype=_check_dtype(dtype)), device=_device(device))
    return jnp.linspace(start, stop, num, dtype=_check_dtype(dtype), device=_device(device), endpoint=endpoint)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> jax.Array:
    if dtype is None:
        dtype = {int: _default_int(), float: jnp.float32, complex: jnp.complex64}.get(
            type(fill_value), getattr(fill_value, "dtype", None)
        )
    if type(fill_value) is int:
        check_fits(fill_value, _LIMITS.get(np.dtype(dtype)))
    return jnp.full(shape, fill_value, dtype=_check_dtype(dtype), device=_device(device))


def full_like(x: jax.Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> jax.Array:
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> jax.Array:
    name = str(getattr(x, "dtype", "")).rpartition(".")[2]  # torch.float64 is "torch.float64"
    _check_dtype(np.dtype(name) if name in DTYPES else None)
    return jnp.from_dlpack(x, device=_device(device), copy=copy)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> jax.Array:
    return jnp.astype(x, _check_dtype(dtype), copy=copy, device=_device(device))


# The defaults of JAX depend on whether 64 bits are on.
def __array_namespace_info__() -> Any:
    return with_float32_defaults(jnp.__array_namespace_info__(), np.dtype("float32"), np.dtype("complex64"))


# -- element by element ------------------------------------------------------------------------------------------------


def _with_derivative(kind: Any, derivative: _Function) -> Callable[[_Function], _Function]:
    """Give a function another derivative for arrays of that kind: derivative(*arguments, *tangents)."""

    def decorate(values: _Function) -> _Function:
        differentiable = jax.custom_jvp(values)
        differentiable.defjvp(lambda primals, tangents: (differentiable(*primals), derivative(*primals, *tangents)))
        raw = getattr(jnp, values.__name__)

        @jax.jit
        @functools.wraps(values)
        def function(*arguments: Any) -> Any:
            dtype = jnp.result_type(*arguments)
            if not jnp.issubdtype(dtype, kind):
                return raw(*arguments)
            return differentiable(*(jnp.asarray(x, dtype=dtype) for x in arguments))

        return function

    return decorate


# The gradient of jnp.abs at 0 is 1.
@_with_derivative(jnp.floating, lambda x, dx: dx * jnp.sign(x))
def abs(x: jax.Array, /) -> jax.Array:
    return jnp.abs(x)


# The gradient of jnp.hypot at 0 is NaN.
@_with_derivative(jnp.floating, lambda x1, x2, d1, d2: (x1 * d1 + x2 * d2) / _nonzero(jnp.hypot(x1, x2)))
def hypot(x1: jax.Array, x2: jax.Array, /) -> jax.Array:
    return jnp.hypot(x1, x2)


def _nonzero(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.ones_like(x), x)


def _derivative_of_sign(z: jax.Array, dz: jax.Array) -> jax.Array:
    if not jnp.iscomplexobj(z):
        return jnp.zeros_like(z)
    length = _nonzero(jnp.abs(z))
    direction = z / length
    return jnp.where(z == 0, 0, dz - direction * (jnp.conj(direction) * dz).real) / length


# The derivative of jnp.sign of a complex number is 0. jnp.sign of -0 is -0.
@_with_derivative(jnp.inexact, _derivative_of_sign)
def sign(x: jax.Array, /) -> jax.Array:
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.sign(x))


# The derivative of jnp.acosh of a complex number has the wrong sign left of 0.
@_with_derivative(jnp.complexfloating, lambda z, dz: dz / (jnp.sqrt(z - 1) * jnp.sqrt(z + 1)))
def acosh(x: jax.Array, /) -> jax.Array:
    return jnp.acosh(x)


# JAX has NaN where x1 is infinite or x2 zero, because it computes by the remainder, and loses the sign of zeros.
@_with_derivative(jnp.floating, lambda x1, x2, d1, d2: 0 * (d1 + d2))
def floor_divide(x1: jax.Array, x2: jax.Array, /) -> jax.Array:
    result, plain = jnp.floor_divide(x1, x2), jnp.floor(jnp.divide(x1, x2))
    is_usual = jnp.isfinite(plain) & jnp.isfinite(x2) & (result != 0)
    result = jnp.where(
        is_usual, result, jnp.where(jnp.isfinite(x2) & (result == 0), jnp.copysign(result, plain), plain)
    )
    # The standard leaves these open; as on NumPy and torch.
    is_below = jnp.isinf(x2) & jnp.isfinite(x1) & (x1 != 0) & (jnp.signbit(x1) != jnp.signbit(x2))
    return jnp.where(is_below, -1, jnp.where(jnp.isinf(x1) & (x2 != 0), jnp.nan, result)).astype(result.dtype)


# A zero of jnp.remainder has another sign than the divisor.
@_with_derivative(jnp.floating, lambda *args: jax.jvp(jnp.remainder, args[:2], args[2:])[1])
def remainder(x1: jax.Array, x2: jax.Array, /) -> jax.Array:
    result = jnp.remainder(x1, x2)
    return jnp.where(result == 0, jnp.copysign(result, x2), result)


# jnp.clip halves the gradient at a bound, promotes, and wraps bounds around that an integer dtype does not hold.
def clip(x: jax.Array, /, min: Any = None, max: Any = None) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"clip takes real numbers, got an array of {x.dtype}")
    low, high = _bound(min, x.dtype), _bound(max, x.dtype)
    x = x if low is None else jnp.where((x < low) | (low != low), low, x).astype(x.dtype)
    return x if high is None else jnp.where((x > high) | (high != high), high, x).astype(x.dtype)


def _bound(bound: Any, dtype: Any) -> Any:
    """Return the bound in that dtype; of an integer dtype the nearest number that it holds."""
    is_array = isinstance(bound, jax.Array)
    if bound is None or dtype not in _LIMITS:
        return bound.astype(dtype) if is_array else bound
    least, most = _LIMITS[dtype]
    if not is_array:
        return np.asarray(sorted((least, bound, most))[1], dtype)
    if bound.dtype in _LIMITS:
        least, most = sorted((least, most, *_LIMITS[bound.dtype]))[1:3]
    return jnp.clip(bound, np.asarray(least, bound.dtype), np.asarray(most, bound.dtype)).astype(dtype)


# JAX has NaN as the derivative of x**0 at 0 (jax#12409) and as the second derivative of x**1, and takes its default
# dtype for a number as the base.
def pow(x1: Any, x2: Any, /) -> jax.Array:
    if not hasattr(x1, "dtype"):
        x1 = jnp.asarray(x1, dtype=jnp.result_type(x1, x2))
    is_zero, exponents = x1 == 0, jnp.asarray(x2)
    is_one = is_zero & (exponents == 1)
    power = jnp.pow(jnp.where(is_one | is_zero & (exponents == 0), jnp.ones_like(x1), x1), x2)
    return jnp.where(is_one, x1, power).astype(power.dtype)


# -- reductions, order and indices -------------------------------------------------------------------------------------


# JAX takes a complex number for true by its real part alone.
def all(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False) -> jax.Array:
    return jnp.all(x != 0, axis=axis, keepdims=keepdims)


def any(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False) -> jax.Array:
    return jnp.any(x != 0, axis=axis, keepdims=keepdims)


# Small integers overflow in JAX.
def cumulative_prod(
    x: jax.Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> jax.Array:
    if dtype is None and not jnp.issubdtype(x.dtype, jnp.inexact):
        dtype = jax.eval_shape(jnp.prod, x).dtype
    return jnp.cumulative_prod(x, axis=axis, dtype=_check_dtype(dtype), include_initial=include_initial)


# JAX divides by N - correction <= 0.
def var(x: jax.Array, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> jax.Array:
    result = jnp.var(x, axis=axis, correction=correction, keepdims=keepdims)
    return result if num_reduced(x.shape, axis) > correction else jnp.full_like(result, jnp.nan)


# The gradients of jnp.std and jnp.linalg.vector_norm at 0 are NaN.
def std(x: jax.Array, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> jax.Array:
    return _root(var(x, axis=axis, correction=correction, keepdims=keepdims))


def vector_norm(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False, ord: Any = 2) -> jax.Array:
    if ord == 2:
        return _root(jnp.sum(jnp.real(x * jnp.conj(x)), axis=axis, keepdims=keepdims))
    x = abs(x)
    if ord <= 0:
        return jnp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    is_zero = jnp.all(x == 0, axis=axis, keepdims=True)
    result = jnp.linalg.vector_norm(jnp.where(is_zero, 1, x), axis=axis, keepdims=keepdims, ord=ord)
    return jnp.where(is_zero.reshape(result.shape), 0, result)


def _root(squares: jax.Array) -> jax.Array:
    is_zero = squares == 0
    return jnp.where(is_zero, squares, jnp.sqrt(_nonzero(squares)))


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

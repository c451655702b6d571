"""The standard's functions on JAX: those of jax.numpy, with what is missing or silent there mended here.

What is mended, and why:
* dtypes of 64 bits, where JAX is set to 32: asking for one is an error that says what to do; JAX narrows in silence;
* creation: floats made of Python numbers are float32 also when 64 bits are on, and have a dtype of their own instead
  of JAX's weak one; `device` may be a name;
* finfo, iinfo: Python numbers; meshgrid, broadcast_arrays: tuples; searchsorted: indices of the default dtype;
* cumulative_sum, cumulative_prod: small integers are summed up in the default integer of their kind;
* clip: the result has the dtype of x; expand_dims: IndexError;
* all, any: complex numbers are true by their imaginary parts too;
* linspace: integers at whole distances;
* pow: a Python number as base takes the dtype of the exponent; the gradient of the power 0 is 0 at 0;
* clip, std, vector_norm, abs, hypot, sort: the gradients at bounds, at 0 and of equal elements are those of torch;
* take, take_along_axis: IndexError where an index is seen to be out of range: on a CPU, and not while tracing;
* functions of two arrays: a Python integer that the other's type does not hold is an OverflowError;
* sign, floor_divide, remainder, acosh: see special_values.py.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dtype_names import limits
from ..namespaces.infos import Info, limits_of
from ..namespaces.shared import (
    broadcast_shapes,
    check_fits,
    check_indices,
    contains,
    made_of_python_numbers,
    num_reduced,
    numbers_to_numpy,
)
from ..namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS, of_two_arrays
from .devices import named
from .special_values import VALUES

_Function = Callable[..., Any]  # Any, here and below: arguments that JAX's own functions check

_Axis = int | tuple[int, ...] | None

_WIDE = {np.dtype(name) for name in ("float64", "int64", "uint64", "complex128")}
_LIMITS: dict[Any, tuple[int, int]] = {
    np.dtype(name): limits(name) for name in DTYPES if name.startswith(("int", "uint"))
}
_DTYPE_OF_NUMBER: dict[type, Any] = {float: jnp.float32, complex: jnp.complex64}


def names(part: str) -> dict[str, Any]:
    """Every name of that part of the standard, and what it is on JAX."""
    source = getattr(jnp, part) if part else jnp
    found = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    if part == "linalg":
        found["vector_norm"] = _vector_norm
    return found if part else found | _fixed()


def _has_64_bits() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]  # made when jax is imported


def _checked(dtype: Any) -> Any:
    """dtype, if JAX has it as it is set; never a narrower one."""
    if dtype is None or _has_64_bits():
        return dtype
    found = np.dtype(dtype)
    if found in _WIDE:
        narrow = found.name.replace("64", "32").replace("128", "64")
        raise TypeError(
            f"jax makes no {found.name} here: it is set to 32 bits, and would narrow the numbers in silence. "
            f"Ask for {narrow} (an array of numpy: x.astype({narrow!r})), or, before anything else, "
            f"turn 64 bits on: jax.config.update('jax_enable_x64', True)"
        )
    return dtype


def _guarded(function: _Function) -> _Function:
    """A function of JAX whose `dtype` is checked, and whose `device` may be a name."""

    @functools.wraps(function)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("dtype") is not None:
            _checked(keywords["dtype"])
        if type(keywords.get("device")) is str:
            keywords["device"] = device_of(keywords["device"])
        return function(*arguments, **keywords)

    return guarded


def _of_float32(function: _Function) -> _Function:
    """The same for a function that makes floats where no `dtype` is given."""
    guarded = _guarded(function)

    @functools.wraps(function)
    def made(*arguments: Any, dtype: Any = None, **keywords: Any) -> Any:
        return guarded(*arguments, dtype=jnp.float32 if dtype is None else dtype, **keywords)

    return made


def device_of(device: Any) -> Any:
    """The device of that name ("cpu", "cuda:0", "gpu"), or what is given if it is no name.

    Raises:
        ValueError: there is no such device.
    """
    return named(device) if type(device) is str else device


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> jax.Array:
    if not contains(obj, (jax.Array,)) and not hasattr(obj, "__dlpack__"):
        obj = numbers_to_numpy(obj, _checked(dtype), np.dtype(_default_int()).name)
    for leaf in jax.tree.leaves(obj) if dtype is None else ():
        _checked(getattr(leaf, "dtype", None))
    return jnp.asarray(obj, dtype=_checked(dtype), copy=copy, device=device_of(device))


def _default_int() -> Any:
    return jnp.int64 if _has_64_bits() else jnp.int32


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> jax.Array:
    if contains([start, stop, step], (jax.core.Tracer,)):
        raise TypeError("arange takes numbers, not arrays that JAX traces: no gradient flows through arange")
    if dtype is None and (type(start) is float or type(stop) is float or type(step) is float):
        dtype = jnp.float32
    return jnp.arange(start, stop, step, dtype=_checked(dtype), device=device_of(device))


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> jax.Array:
    if dtype is None:
        dtype = jnp.complex64 if isinstance(start, complex) or isinstance(stop, complex) else jnp.float32
    if jnp.issubdtype(dtype, jnp.integer) and made_of_python_numbers((start, stop)):
        # JAX makes 1 of 1.9999; NumPy keeps whole steps whole.
        return jnp.asarray(np.linspace(start, stop, num, endpoint, dtype=_checked(dtype)), device=device_of(device))
    return jnp.linspace(start, stop, num, dtype=_checked(dtype), device=device_of(device), endpoint=endpoint)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> jax.Array:
    if dtype is None:
        kind = type(fill_value)
        dtype = _default_int() if kind is int else _DTYPE_OF_NUMBER.get(kind, getattr(fill_value, "dtype", None))
    if type(fill_value) is int:
        check_fits(fill_value, _LIMITS.get(np.dtype(dtype)))
    return jnp.full(shape, fill_value, dtype=_checked(dtype), device=device_of(device))


def full_like(x: jax.Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> jax.Array:
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> jax.Array:
    _checked(_dtype_in_numpy(x))
    return jnp.from_dlpack(x, device=device_of(device), copy=copy)


def _dtype_in_numpy(x: Any) -> Any:
    dtype = getattr(x, "dtype", None)
    # torch.float64 has no name but in words.
    name = getattr(dtype, "name", str(dtype).rpartition(".")[2])
    return np.dtype(name) if name in DTYPES else None


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> jax.Array:
    return jnp.astype(x, _checked(dtype), copy=copy, device=device_of(device))


def clip(x: jax.Array, /, min: Any = None, max: Any = None) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"clip takes real numbers, got an array of {x.dtype}")
    # Not jnp.clip: at a bound it halves the gradient, which is 1 on torch.
    low, high = _bound(min, x.dtype), _bound(max, x.dtype)
    x = x if low is None else jnp.where((x < low) | (low != low), low, x).astype(x.dtype)
    return x if high is None else jnp.where((x > high) | (high != high), high, x).astype(x.dtype)


# A bound that the type cannot hold is replaced by the nearest that it can: it bounds the same.
def _bound(bound: Any, dtype: Any) -> Any:
    is_array = isinstance(bound, jax.Array)
    if bound is None or not jnp.issubdtype(dtype, jnp.integer):
        return bound.astype(dtype) if is_array else bound
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    if not is_array:
        return np.asarray(sorted((least, bound, most))[1], dtype)
    if jnp.issubdtype(bound.dtype, jnp.integer):
        own = np.iinfo(bound.dtype)
        least, most = sorted((least, int(own.min), most, int(own.max)))[1:3]
    return jnp.clip(bound, np.asarray(least, bound.dtype), np.asarray(most, bound.dtype)).astype(dtype)


def pow(x1: Any, x2: Any, /) -> jax.Array:
    # With a Python number as base JAX takes its own default for the dtype.
    if not hasattr(x1, "dtype"):
        x1 = jnp.asarray(x1, dtype=jnp.result_type(x1, x2))
    # The power 0 is the constant 1, also at 0, where JAX's gradient is NaN (jax#12409). So is the second derivative
    # of the power 1 there.
    is_zero, exponents = x1 == 0, jnp.asarray(x2)
    is_one = is_zero & (exponents == 1)
    power = jnp.pow(jnp.where(is_one | is_zero & (exponents == 0), jnp.ones_like(x1), x1), x2)
    return jnp.where(is_one, x1, power).astype(power.dtype)


def sort(x: jax.Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> jax.Array:
    if not descending:
        return jnp.sort(x, axis=axis, stable=stable)
    # jnp.sort turns the ascending order round, which assigns the gradients of equal elements in the wrong order.
    return jnp.take_along_axis(x, jnp.argsort(x, axis=axis, stable=True, descending=True), axis=axis)


def std(x: jax.Array, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> jax.Array:
    return _root(var(x, axis=axis, correction=correction, keepdims=keepdims))


def var(x: jax.Array, /, *, axis: _Axis = None, correction: float = 0.0, keepdims: bool = False) -> jax.Array:
    found = jnp.var(x, axis=axis, correction=correction, keepdims=keepdims)
    return found if num_reduced(x.shape, axis) > correction else jnp.full_like(found, jnp.nan)


def _vector_norm(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False, ord: Any = 2) -> jax.Array:
    if ord != 2:
        x = VALUES["abs"](x)  # its gradient at 0 is 0
        norm = functools.partial(jnp.linalg.vector_norm, axis=axis, keepdims=keepdims, ord=ord)
        if ord <= 0:
            return norm(x)
        is_zero = jnp.all(x == 0, axis=axis, keepdims=True)  # there the gradient of the root is NaN
        found = norm(jnp.where(is_zero, 1, x))
        return jnp.where(is_zero.reshape(found.shape), 0, found)
    return _root(jnp.sum(jnp.real(x * jnp.conj(x)), axis=axis, keepdims=keepdims))


def _root(squares: jax.Array) -> jax.Array:
    """The square root, with the gradient 0 at 0."""
    is_zero = squares == 0
    return jnp.where(is_zero, squares, jnp.sqrt(jnp.where(is_zero, jnp.ones_like(squares), squares)))


def _upcasting(function: _Function) -> _Function:
    """cumulative_sum or cumulative_prod, in the default integer for small ones."""

    @functools.wraps(function)
    def cumulative(
        x: jax.Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> jax.Array:
        if dtype is None and jnp.issubdtype(x.dtype, jnp.integer):
            default = _default_int() if jnp.issubdtype(x.dtype, jnp.signedinteger) else _default_unsigned()
            dtype = default if np.iinfo(x.dtype).bits < np.iinfo(default).bits else x.dtype
        found: jax.Array = function(x, axis=axis, dtype=_checked(dtype), include_initial=include_initial)
        return found

    return cumulative


def _default_unsigned() -> Any:
    return jnp.uint64 if _has_64_bits() else jnp.uint32


def all(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False) -> jax.Array:
    return jnp.all(_truth(x), axis=axis, keepdims=keepdims)


def any(x: jax.Array, /, *, axis: _Axis = None, keepdims: bool = False) -> jax.Array:
    return jnp.any(_truth(x), axis=axis, keepdims=keepdims)


# JAX takes a complex number for true by its real part alone.
def _truth(x: jax.Array) -> jax.Array:
    return x != 0 if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


def searchsorted(x1: jax.Array, x2: Any, /, *, side: str = "left", sorter: Any = None) -> jax.Array:
    return jnp.searchsorted(x1, x2, side=side, sorter=sorter).astype(_default_int())


def _checking(function: _Function) -> _Function:
    """A function of two arrays that refuses Python integers that the other's type does not hold."""

    @functools.wraps(function)
    def checked(x1: Any, x2: Any, /) -> Any:
        if type(x2) is int:
            check_fits(x2, _LIMITS.get(getattr(x1, "dtype", None)))
        elif type(x1) is int:
            check_fits(x1, _LIMITS.get(getattr(x2, "dtype", None)))
        return function(x1, x2)

    return checked


def take(x: jax.Array, indices: jax.Array, /, *, axis: int | None = None) -> jax.Array:
    check_indices(indices, x.ndim, axis)
    _check_range(indices, x.shape, axis)
    return jnp.take(x, indices, axis=axis)


def take_along_axis(x: jax.Array, indices: jax.Array, /, *, axis: int = -1) -> jax.Array:
    _check_range(indices, x.shape, axis)
    return jnp.take_along_axis(x, indices, axis=axis)


def _check_range(indices: jax.Array, shape: tuple[int, ...], axis: int | None) -> None:
    """JAX gives NaN for what is not there. To look costs nothing on a CPU, and a wait for an accelerator."""
    if isinstance(indices, jax.core.Tracer) or next(iter(indices.devices())).platform != "cpu":
        return
    length = math.prod(shape) if axis is None else shape[axis]
    found = np.asarray(indices)
    if found.size and (found.min() < -length or found.max() >= length):
        wrong = found[(found < -length) | (found >= length)].flat[0]
        raise IndexError(f"index {wrong} is out of range for axis {axis or 0} with {length} elements")


def expand_dims(x: jax.Array, /, axis: int | tuple[int, ...]) -> jax.Array:
    for each in (axis,) if isinstance(axis, int) else axis:
        ndim = x.ndim + (1 if isinstance(axis, int) else len(axis))
        if not -ndim <= each < ndim:
            raise IndexError(f"axis {each} is out of range for a result of {ndim} axes")
    return jnp.expand_dims(x, axis)


def meshgrid(*arrays: jax.Array, indexing: str = "xy") -> tuple[jax.Array, ...]:
    return tuple(jnp.meshgrid(*arrays, indexing=indexing))


def broadcast_arrays(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(jnp.broadcast_arrays(*arrays))


finfo, iinfo = limits_of(np.dtype)


def _devices() -> tuple[Any, ...]:
    found = jax.devices()
    return tuple(found) if found[0].platform == "cpu" else (*found, *jax.devices("cpu"))


def _dtypes() -> dict[str, Any]:
    every = {name: np.dtype(name) for name in DTYPES}
    return every if _has_64_bits() else {name: d for name, d in every.items() if d not in _WIDE}


def _defaults() -> dict[str, Any]:
    integer = np.dtype(_default_int())
    floats = {"real floating": np.dtype(np.float32), "complex floating": np.dtype(np.complex64)}
    return floats | {"integral": integer, "indexing": integer}


_INFO = Info(_dtypes, _defaults, _devices)


def __array_namespace_info__() -> Info:
    return _INFO


_MENDED: tuple[_Function, ...] = (
    *(all, any, arange, asarray, astype, broadcast_arrays, broadcast_shapes, clip, expand_dims, finfo),
    from_dlpack,
    *(full, full_like, iinfo, linspace, meshgrid, pow, searchsorted, sort, std, take, take_along_axis, var),
    __array_namespace_info__,
)
_GUARDED = ("empty_like", "ones_like", "prod", "sum", "zeros_like")


def _fixed() -> dict[str, Any]:
    found = _by_name()
    return found | {name: _checking(found.get(name) or getattr(jnp, name)) for name in of_two_arrays()}


def _by_name() -> dict[str, Any]:
    return {
        **{function.__name__: function for function in _MENDED},
        **{name: _guarded(getattr(jnp, name)) for name in _GUARDED},
        **{name: _of_float32(getattr(jnp, name)) for name in ("empty", "eye", "ones", "zeros")},
        **{name: _upcasting(getattr(jnp, name)) for name in ("cumulative_prod", "cumulative_sum")},
        **VALUES,
        **{name: np.dtype(getattr(jnp, name)) for name in (*DTYPES, *EXTRA_DTYPES)},
        **CONSTANTS,
    }

"""The standard's functions on torch: those of array-api-compat, and corrections where torch or compat is wrong.

Each function below says what upstream does. Beside them:
* `DIRECT` has torch's own functions for calls that need neither promotion nor keywords;
* functions of two arrays raise OverflowError for a Python integer outside of the array's dtype; torch wraps it around.
"""

import math
from collections.abc import Callable
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch
from array_api_compat.torch._info import __array_namespace_info__ as compat_info

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
)
from ..namespaces.namespace import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS, of_two_arrays

_Function = Callable[..., Any]
_TENSOR = torch.Tensor
_LIMITS = {getattr(torch, name): limits(name) for name in DTYPES if name.startswith(("int", "uint"))}
_RENAMED = {"equal": "eq", "bitwise_invert": "bitwise_not", "concat": "cat", "max": "amax", "min": "amin"}


def names(part: str) -> dict[str, Any]:
    """Return the functions, constants and dtypes of one part of the standard by name."""
    source = getattr(compat, part) if part else compat
    functions = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    if part:
        return functions | ({"det": det} if part == "linalg" else {})
    dtypes = {name: getattr(torch, name) for name in (*DTYPES, *EXTRA_DTYPES)}
    pairs = {name: _pair(name) for name in of_two_arrays()}
    info = {"__array_namespace_info__": compat_info}
    return functions | dtypes | CONSTANTS | pairs | info | {function.__name__: function for function in _CORRECTED}


def _raw(name: str) -> Any:
    return getattr(torch, _RENAMED.get(name, name))


def _pair(name: str) -> _Function:
    raw, promoting = _raw(name), getattr(compat, name)

    def function(x1: Any, x2: Any, /) -> Any:
        if isinstance(x1, _TENSOR) and isinstance(x2, _TENSOR) and x1.dtype is x2.dtype:
            return raw(x1, x2)
        check_number(x1, x2, _LIMITS)
        return promoting(x1, x2)

    return function


def _promoted(x1: Any, x2: Any) -> tuple[torch.Tensor, torch.Tensor]:
    check_number(x1, x2, _LIMITS)
    dtype = compat.result_type(x1, x2)
    device = (x1 if isinstance(x1, _TENSOR) else x2).device
    return tuple(torch.as_tensor(x, dtype=dtype, device=device) for x in (x1, x2))  # type: ignore[return-value]


def _has_floats(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _is_differentiated(x: torch.Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


# -- creation ----------------------------------------------------------------------------------------------------------


# torch.asarray reads tensors of one element in lists as numbers and loses their gradients and axes (pytorch#61410),
# wraps integers around, and refuses negative strides.
def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> torch.Tensor:
    if isinstance(obj, _TENSOR):
        x = obj.to(device=device, dtype=dtype)
        if copy is False and x is not obj:
            raise ValueError("asarray(copy=False) cannot convert or move this tensor without a copy")
        return x.clone() if copy and x is obj else x
    if not isinstance(obj, (list, tuple)) and hasattr(obj, "__array__"):
        return torch.asarray(_forward(obj, copy), dtype=dtype, device=device, copy=copy)
    if copy is False:
        raise ValueError(f"asarray(copy=False) takes an array, got {type(obj).__name__}, which has to be copied")
    if contains(obj, (_TENSOR,)):
        parts = [asarray(part, device=device) if contains(part, (_TENSOR,)) else part for part in obj]
        like = compat.result_type(*(part for part in parts if isinstance(part, _TENSOR))) if dtype is None else dtype
        return torch.stack([asarray(part, dtype=like, device=device) for part in parts])
    if dtype is None or not hasattr(np, name := str(dtype).removeprefix("torch.")):
        return torch.asarray(numbers_to_numpy(obj), dtype=dtype, device=device)
    return torch.asarray(numbers_to_numpy(obj, name), device=device)


# torch ends the process if the strides are negative.
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    return torch.utils.dlpack.from_dlpack(_forward(x, copy), device=device, copy=copy)


def _forward(x: Any, copy: bool | None) -> Any:
    """Return x, or a copy if it is an array of NumPy with negative strides."""
    strides = getattr(x, "strides", None)
    if type(strides) is not tuple or not strides or min(strides) >= 0:
        return x
    if copy is False:
        raise ValueError("torch cannot share memory with a negative stride; allow a copy: copy=None")
    return x.copy()


# torch.arange and torch.linspace take the value of a tensor and lose its gradient, as does torch.full.
def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    check_numbers(start, stop, step)
    return compat.arange(start, stop, step, dtype=dtype, device=device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Any:
    check_numbers(start, stop)
    return compat.linspace(start, stop, num, dtype=dtype, device=device, endpoint=endpoint)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if not isinstance(fill_value, _TENSOR):
        if type(fill_value) is int:
            check_fits(fill_value, _LIMITS.get(torch.int64 if dtype is None else dtype))
        return compat.full(shape, fill_value, dtype=dtype, device=device)
    value = asarray(fill_value, dtype=dtype, device=device)
    return value.expand((shape,) if isinstance(shape, int) else tuple(shape)).clone()


def full_like(x: torch.Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return full(tuple(x.shape), fill_value, dtype=dtype or x.dtype, device=device or x.device)


# -- element by element ------------------------------------------------------------------------------------------------


# The result of torch.clamp has the promoted dtype; it wraps bounds around, and ignores a number NaN.
def clip(x: torch.Tensor, /, min: Any = None, max: Any = None) -> torch.Tensor:
    if type(min) is type(max) is float and min <= max and x.is_floating_point():  # no NaN
        return torch.clamp(x, min, max)
    check_bounds(x, (min, max), _LIMITS)
    low, high = (b if b is None else torch.as_tensor(b, dtype=x.dtype, device=x.device) for b in (min, max))
    return x.clone() if low is None and high is None else torch.clamp(x, low, high)


# torch.sign makes NaN 0; compat writes into the result, which vmap refuses.
def sign(x: torch.Tensor, /) -> torch.Tensor:
    if x.dtype.is_complex:
        return torch.sgn(x)
    signs = torch.sign(x)
    return torch.where(torch.isnan(x), x, signs) if x.dtype.is_floating_point else signs


# torch.floor_divide has no derivative (pytorch#43327).
def floor_divide(x1: Any, x2: Any, /) -> torch.Tensor:
    return torch.div(*_promoted(x1, x2), rounding_mode="floor")


# torch.remainder of a number has no derivative, and a zero has another sign than the divisor.
def remainder(x1: Any, x2: Any, /) -> torch.Tensor:
    x1, x2 = _promoted(x1, x2)
    result = torch.remainder(x1, x2)
    if not result.is_floating_point():
        return result
    return torch.where(result == 0, torch.copysign(torch.zeros_like(result), x2), result)


def hypot(x1: Any, x2: Any, /) -> Any:
    x1, x2 = _promoted(x1, x2)
    return arguments.hypot(torch, x1, x2, torch.maximum(x1.abs(), x2.abs()).detach())


# torch has NaN as the second derivative of 0**x2, and drops second derivatives by an exponent of 0.
def pow(x1: Any, x2: Any, /) -> torch.Tensor:
    if not isinstance(x1, _TENSOR) and x1 == 0 and x2.is_floating_point():
        x2 = torch.where(x2 > 0, x2.detach(), x2)  # the derivatives of 0**x2 are 0
    result: torch.Tensor = _pow(x1, x2)
    if isinstance(x1, _TENSOR) and isinstance(x2, _TENSOR) and result.is_floating_point() and _is_differentiated(x2):
        is_smooth = (x2 == 0) & (x1 > 0)
        by_log = torch.exp(torch.where(is_smooth, x2, 0) * torch.log(torch.where(is_smooth, x1, 1)))
        result = torch.where(is_smooth, by_log.to(result.dtype), result)
    return result


_pow = _pair("pow")


# -- reductions and order ----------------------------------------------------------------------------------------------


# torch.mean refuses integers.
def mean(x: torch.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    return compat.mean(x if _has_floats(x) else x.to(torch.float32), axis=axis, keepdims=keepdims)


# torch.var refuses integers, divides by N - correction <= 0, and takes axis=() for all axes.
def var(x: torch.Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> torch.Tensor:
    x = x if _has_floats(x) else x.to(torch.float32)
    if num_reduced(tuple(x.shape), axis) <= correction:
        return compat.sum(x.abs(), axis=axis, keepdims=keepdims) * math.nan
    if axis == ():
        return (x - x).abs()
    return torch.var(x, tuple(range(x.ndim)) if axis is None else axis, correction=correction, keepdim=keepdims)


# The gradient of torch.std is infinite at 0.
def std(x: torch.Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    return root(torch, var(x, axis=axis, correction=correction, keepdims=keepdims))


# torch.index_select refuses negative indices.
def take(x: torch.Tensor, indices: torch.Tensor, /, *, axis: int | None = None) -> torch.Tensor:
    check_indices(indices, x.ndim, axis)
    index: tuple[Any, ...] = (*(slice(None),) * range(x.ndim)[axis or 0], _integers(indices))
    return x[index]


# torch.take_along_dim takes an index out of range modulo the length.
def take_along_axis(x: torch.Tensor, indices: torch.Tensor, /, *, axis: int = -1) -> torch.Tensor:
    length, indices = x.shape[axis], _integers(indices)
    whole = list(np.broadcast_shapes(*((*s[:axis], 1, *s[axis:][1:]) for s in (x.shape, indices.shape))))
    wanted = list(whole)
    whole[axis], wanted[axis] = length, indices.shape[axis]
    return torch.gather(x.expand(whole), axis, torch.where(indices < 0, indices + length, indices).expand(wanted))


def _integers(indices: torch.Tensor) -> torch.Tensor:
    if indices.dtype not in _LIMITS:
        raise TypeError(f"indices must be integers, got an array of {indices.dtype}")
    return indices.to(torch.int64)  # torch takes uint8 for a mask


# torch.can_cast allows narrower types.
def can_cast(from_: Any, to: Any, /) -> bool:
    return bool(compat.result_type(from_, to) == to)


# compat has no unique_all.
def unique_all(x: torch.Tensor, /) -> Any:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    places = torch.arange(x.numel(), device=x.device)
    indices = torch.full_like(counts, x.numel()).scatter_reduce(0, inverse.reshape(-1), places, "amin")
    return compat.UniqueAllResult(values, indices, inverse, counts)


# torch returns 0 as the gradient where the determinant is 0 or underflows, and NaN as the second derivative.
def det(x: torch.Tensor, /) -> torch.Tensor:
    result: torch.Tensor = torch.linalg.det(x)
    if _is_differentiated(x) and bool((result == 0).any()):
        raise ValueError(
            "torch has wrong derivatives of det where the determinant is 0 or underflows; "
            "use slogdet, or scale the matrix"
        )
    return result


_CORRECTED: tuple[_Function, ...] = (
    *(arange, asarray, can_cast, clip, floor_divide, from_dlpack, full, full_like, hypot, linspace, mean, pow),
    *(remainder, sign, std, take, take_along_axis, unique_all, var),
)
DIRECT = {
    name: _raw(name)
    for name in (*of_two_arrays(), "concat", "empty", "max", "min", "ones", "reshape", "stack", "sum", "where", "zeros")
    if name not in {function.__name__ for function in _CORRECTED}
}

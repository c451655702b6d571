"""The standard's functions on torch: array-api-compat's, with what is missing or slow there mended here.

What is mended, and why:
* functions of two arrays: when both have the same dtype they go straight to torch; compat's promotion costs
  0.5 us, in matmul 2.8 us;
* asarray, from_dlpack: memory with negative strides is copied; torch refuses it, or ends the process;
* asarray: lists of tensors are stacked; Python integers that the dtype does not hold are an OverflowError;
* functions of two arrays: so they are beside an array of integers;
* mean, std, var: of integers too, as floats of the default dtype;
* finfo, iinfo: `dtype` is a torch.dtype, not a string;
* unique_*: compat has no unique_all, and torch.unique miscounts NaN and knows no complex numbers;
* std, var: NaN, not inf, if N - correction <= 0; axis=(); the gradient of std is 0, not NaN, where it is 0;
* hypot: the gradient at 0 is 0, not NaN; floor_divide, remainder of a number: have a derivative;
* pow: second derivatives by an exponent of 0, and of 0**x; linalg.det: derivatives at singular matrices;
* arange: refuses arrays, through which no gradient would flow;
* full, full_like, linspace: gradients flow through array arguments;
* sign: torch's makes NaN 0, and compat's way around it writes in place, which vmap refuses;
* remainder: a zero has the sign of the divisor;
* clip: the result has the dtype of x, whatever the bounds are, and numbers as bounds cost less;
* broadcast_shapes: ValueError, not RuntimeError;
* can_cast: what promotion does, not what an assignment would let pass;
* repeat: repeats of any integer dtype;
* searchsorted: any two real dtypes, any layout, any integer dtype for `sorter`;
* stack: torch takes 0.3 us to read `axis` by name;
* take, take_along_axis: IndexError for an index that is out of range; torch's take_along_dim takes it modulo the
  length, and says nothing.
"""

import math
from collections.abc import Callable
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch

from ..dtype_names import limits
from ..namespaces.infos import Info, limits_of
from ..namespaces.shared import broadcast_shapes, check_fits, check_indices, contains, num_reduced, numbers_to_numpy
from ..namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS, of_two_arrays
from ..namespaces.unique import unique_all, unique_counts, unique_inverse, unique_values

_Function = Callable[..., Any]  # Any, here and below: arguments that torch's own functions check
_NUMBERS = (int, float, type(None))


def names(part: str) -> dict[str, Any]:
    """Every name of that part of the standard, and what it is on torch."""
    source = getattr(compat, part) if part else compat
    found = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    if part == "linalg":
        found["det"] = _det
    return found if part else found | _fixed()


def _straight(raw: _Function, otherwise: _Function) -> _Function:
    """`otherwise`, and `raw` where nothing is to be promoted: two tensors of one dtype."""

    def function(x1: Any, x2: Any, /) -> Any:
        if isinstance(x1, _TENSOR) and isinstance(x2, _TENSOR) and x1.dtype is x2.dtype:
            return raw(x1, x2)
        if type(x2) is int:
            check_fits(x2, _LIMITS.get(getattr(x1, "dtype", None)))
        elif type(x1) is int:
            check_fits(x1, _LIMITS.get(getattr(x2, "dtype", None)))
        return otherwise(x1, x2)

    function.__name__ = function.__qualname__ = otherwise.__name__
    function.__doc__ = otherwise.__doc__
    return function


_TENSOR = torch.Tensor
_LIMITS = {getattr(torch, name): limits(name) for name in DTYPES if name.startswith(("int", "uint"))}
matmul = _straight(torch.matmul, compat.matmul)


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
    # Not torch.asarray: it reads tensors of one element as numbers, and loses their gradients and axes (pytorch#61410).
    if contains(obj, (_TENSOR,)):
        parts = [asarray(part, device=device) if contains(part, (_TENSOR,)) else part for part in obj]
        like = compat.result_type(*(part for part in parts if isinstance(part, _TENSOR))) if dtype is None else dtype
        return torch.stack([asarray(part, dtype=like, device=device) for part in parts])
    if dtype is None or not hasattr(np, name := str(dtype).removeprefix("torch.")):
        return torch.asarray(numbers_to_numpy(obj), dtype=dtype, device=device)
    return torch.asarray(numbers_to_numpy(obj, name), device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
    found: torch.Tensor = torch.utils.dlpack.from_dlpack(_forward(x, copy), device=device, copy=copy)
    return found


def _forward(x: Any, copy: bool | None) -> Any:
    """x, or a copy of it when it is an array of numpy that runs backwards through its memory."""
    strides = getattr(x, "strides", None)
    if type(strides) is not tuple or not strides or min(strides) >= 0:
        return x
    if copy is False:
        raise ValueError("torch shares no memory that runs backwards (a negative stride); let it copy: copy=None")
    return x.copy()


def clip(x: torch.Tensor, /, min: Any = None, max: Any = None) -> torch.Tensor:
    if min is None and max is None:
        return x.clone()
    if not x.dtype.is_floating_point:
        limits = torch.iinfo(x.dtype)
        min, max = _within(min, limits), _within(max, limits)
    if isinstance(min, _NUMBERS) and isinstance(max, _NUMBERS) and min == min and max == max:
        return torch.clamp(x, min, max)
    return torch.clamp(x, _bound(min, x), _bound(max, x))


# A bound that the type cannot hold is replaced by the nearest that it can: it bounds the same.
def _within(bound: Any, limits: torch.iinfo) -> Any:
    if isinstance(bound, _TENSOR):
        own = limits if bound.dtype.is_floating_point else torch.iinfo(bound.dtype)
        least, most = sorted((limits.min, own.min, limits.max, own.max))[1:3]
        return torch.clamp(bound, least, most)
    return bound if bound is None else int(sorted((limits.min, bound, limits.max))[1])


def _bound(bound: Any, x: torch.Tensor) -> torch.Tensor | None:
    return None if bound is None else torch.as_tensor(bound, dtype=x.dtype, device=x.device)


def sign(x: torch.Tensor, /) -> torch.Tensor:
    if x.dtype.is_complex:
        return torch.sgn(x)
    signs = torch.sign(x)
    return torch.where(torch.isnan(x), x, signs) if x.dtype.is_floating_point else signs


def remainder(x1: Any, x2: Any, /) -> torch.Tensor:
    if not isinstance(x1, _TENSOR):  # torch has no derivative of that
        if type(x1) is int:
            check_fits(x1, _LIMITS.get(x2.dtype))
        x1 = torch.as_tensor(x1, dtype=compat.result_type(x1, x2), device=x2.device)
    found: torch.Tensor = _remainder(x1, x2)
    if not found.dtype.is_floating_point:
        return found
    divisor = x2 if isinstance(x2, _TENSOR) else torch.full_like(found, x2)
    return torch.where(found == 0, torch.copysign(torch.zeros_like(found), divisor.to(found.dtype)), found)


_remainder = _straight(torch.remainder, compat.remainder)


def mean(x: torch.Tensor, /, *, axis: Any = None, keepdims: bool = False) -> torch.Tensor:
    try:
        found: torch.Tensor = compat.mean(x, axis=axis, keepdims=keepdims)
        return found
    except RuntimeError:
        if _is_of_floats(x):
            raise
        return mean(x.to(torch.get_default_dtype()), axis=axis, keepdims=keepdims)


def _is_of_floats(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def std(x: torch.Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> torch.Tensor:
    variance = var(x, axis=axis, correction=correction, keepdims=keepdims)
    is_zero = variance == 0  # there the gradient of the root is infinite
    return torch.where(is_zero, variance, torch.sqrt(torch.where(is_zero, 1, variance)))


def var(x: torch.Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> torch.Tensor:
    if not _is_of_floats(x):
        x = x.to(torch.get_default_dtype())
    if num_reduced(tuple(x.shape), axis) <= correction:  # torch divides by 0
        return compat.sum(x.abs(), axis=axis, keepdims=keepdims) * math.nan
    if axis == ():
        return x.abs() * 0 if correction else (x - x).abs()
    axis = tuple(range(x.ndim)) if axis is None else axis
    return torch.var(x, axis, correction=correction, keepdim=keepdims)


def hypot(x1: Any, x2: Any, /) -> torch.Tensor:
    x1, x2 = _promoted(x1, x2)
    is_zero = (x1 == 0) & (x2 == 0)  # there the gradient of torch.hypot is NaN
    return torch.where(is_zero, 0, torch.hypot(torch.where(is_zero, 1, x1), x2))


def _promoted(x1: Any, x2: Any) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = compat.result_type(x1, x2)
    device = (x1 if isinstance(x1, _TENSOR) else x2).device
    return tuple(torch.as_tensor(x, dtype=dtype, device=device) for x in (x1, x2))  # type: ignore[return-value]


def pow(x1: Any, x2: Any, /) -> torch.Tensor:
    if not isinstance(x1, _TENSOR) and x1 == 0 and x2.is_floating_point():
        x2 = torch.where(x2 > 0, x2.detach(), x2)  # the derivatives of 0**x2 are 0; torch has NaN as the second one
    found: torch.Tensor = _pow(x1, x2)
    if isinstance(x1, _TENSOR) and isinstance(x2, _TENSOR) and found.is_floating_point() and _is_differentiated(x2):
        # torch drops the derivatives by an exponent of 0 beyond the first: there x1**x2 is computed from its logarithm.
        is_smooth = (x2 == 0) & (x1 > 0)
        by_log = torch.exp(torch.where(is_smooth, x2, 0) * torch.log(torch.where(is_smooth, x1, 1)))
        found = torch.where(is_smooth, by_log.to(found.dtype), found)
    return found


_pow = _straight(torch.pow, compat.pow)


def _is_differentiated(x: torch.Tensor) -> bool:
    return x.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(x)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if any(isinstance(each, _TENSOR) and _is_of_floats(each) for each in (start, stop, step)):
        raise TypeError("arange takes numbers, not arrays of floats: no gradient flows through arange")
    found: torch.Tensor = compat.arange(start, stop, step, dtype=dtype, device=device)
    return found


def _det(x: torch.Tensor, /) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.det(x)
    # vmap cannot branch on values, so there the derivatives at singular matrices are those of torch.
    if not _is_differentiated(x) or _is_mapped(x) or not (is_singular := found == 0).any():
        return found
    # torch returns 0 as the gradient at singular matrices, and NaN as the second derivative.
    parts = zip(x.reshape(-1, *x.shape[-2:]), found.reshape(-1), is_singular.reshape(-1), strict=True)
    return torch.stack([_det_of_singular(a) if singular else d for a, d, singular in parts]).reshape(found.shape)


def _is_mapped(x: torch.Tensor) -> bool:
    """Return True inside torch.func.vmap, also below derivatives."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False


def _det_of_singular(x: torch.Tensor) -> torch.Tensor:
    """The determinant of one singular matrix, with derivatives: by the Schur complement of its regular part."""
    plain = x
    while torch._C._functorch.is_functorch_wrapped_tensor(plain):
        plain = torch._C._functorch.get_unwrapped(plain)
    u, s, vh = torch.linalg.svd(plain.detach())
    rank = int((s > s[0] * len(s) * torch.finfo(s.dtype).eps).sum())
    x = u.mH @ x @ vh.mH
    regular, right, below = x[:rank, :rank], x[:rank, rank:], x[rank:, :rank]
    rest = x[rank:, rank:] - below @ torch.linalg.solve(regular, right)
    # The characteristic polynomial by Faddeev and Le Verrier: products and sums alone. `rest` is 0 but for rounding.
    eye = torch.eye(len(s) - rank, dtype=x.dtype, device=x.device)
    matrix, coefficient = eye, x.new_ones(())
    for n in range(1, len(eye) + 1):
        matrix = rest @ matrix
        coefficient = -torch.trace(matrix) / n
        matrix = matrix + coefficient * eye
    determinant: torch.Tensor = torch.det(u) * torch.det(vh) * torch.det(regular) * coefficient * (-1) ** len(eye)
    return determinant


def floor_divide(x1: Any, x2: Any, /) -> torch.Tensor:
    for number, array in ((x1, x2), (x2, x1)):
        if type(number) is int:
            check_fits(number, _LIMITS.get(array.dtype))
    x1, x2 = _promoted(x1, x2)
    return torch.div(x1, x2, rounding_mode="floor")  # torch.floor_divide has no derivative (pytorch#43327)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if not isinstance(fill_value, _TENSOR):
        if type(fill_value) is int:
            check_fits(fill_value, _LIMITS.get(torch.int64 if dtype is None else dtype))
        return compat.full(shape, fill_value, dtype=dtype, device=device)
    value = asarray(fill_value, dtype=dtype, device=device)
    return value.expand((shape,) if isinstance(shape, int) else tuple(shape)).clone()


def full_like(x: torch.Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return full(tuple(x.shape), fill_value, dtype=dtype or x.dtype, device=x.device if device is None else device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> torch.Tensor:
    if not contains([start, stop], (_TENSOR,)):
        return compat.linspace(start, stop, num, dtype=dtype, device=device, endpoint=endpoint)
    like = start if isinstance(start, _TENSOR) else stop  # torch.linspace takes the number and loses the gradient
    steps = torch.arange(num, dtype=like.dtype, device=like.device) / max(num - 1 if endpoint else num, 1)
    return asarray(start * (1 - steps) + stop * steps, dtype=dtype, device=device)


def searchsorted(x1: torch.Tensor, x2: Any, /, *, side: Any = "left", sorter: Any = None) -> torch.Tensor:
    dtype = compat.result_type(x1, x2)
    wanted = torch.as_tensor(x2, device=x1.device).to(dtype).contiguous()
    if sorter is not None:
        sorter = sorter.to(torch.int64).contiguous()
    found: torch.Tensor = torch.searchsorted(x1.to(dtype).contiguous(), wanted, side=side, sorter=sorter)
    return found


def repeat(x: torch.Tensor, repeats: Any, /, *, axis: int | None = None) -> torch.Tensor:
    counts = repeats.to(torch.int64) if isinstance(repeats, _TENSOR) else repeats
    return torch.repeat_interleave(x, counts, axis)


def stack(arrays: Any, /, *, axis: int = 0) -> torch.Tensor:
    return torch.stack(arrays, axis)


def take(x: torch.Tensor, indices: torch.Tensor, /, *, axis: int | None = None) -> torch.Tensor:
    check_indices(indices, x.ndim, axis)
    axis = axis or 0
    return _in_range(torch.index_select, x, axis, _from_front(indices, x.shape[axis]))


def take_along_axis(x: torch.Tensor, indices: torch.Tensor, /, *, axis: int = -1) -> torch.Tensor:
    length = x.shape[axis]
    here = list(x.shape)
    here[axis] = 1
    there = list(indices.shape)
    there[axis] = 1
    outer = list(broadcast_shapes(tuple(here), tuple(there)))
    whole, wanted = [*outer], [*outer]
    whole[axis], wanted[axis] = length, indices.shape[axis]
    return _in_range(torch.gather, x.expand(whole), axis, _from_front(indices, length).expand(wanted))


def _from_front(indices: torch.Tensor, length: int) -> torch.Tensor:
    if indices.dtype.is_floating_point or indices.dtype.is_complex or indices.dtype is torch.bool:
        raise TypeError(f"indices must be integers, got an array of {indices.dtype}")
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + length, indices)


def _in_range(select: _Function, x: torch.Tensor, axis: int, places: torch.Tensor) -> torch.Tensor:
    try:
        found: torch.Tensor = select(x, axis, places)
        return found
    except (RuntimeError, IndexError) as error:  # torch has three texts for it; on a GPU it does not come here
        if "out of range" in str(error) or "out of bounds" in str(error) or "out of DATA bounds" in str(error):
            raise IndexError(f"an index is out of range for axis {axis} with {x.shape[axis]} elements") from error
        raise


def can_cast(from_: Any, to: Any, /) -> bool:
    return bool(compat.result_type(from_, to) == to)


finfo, iinfo = limits_of(lambda name: getattr(torch, name))


def _devices() -> tuple[torch.device, ...]:
    found = [torch.device("cpu")]
    found += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return (*found, torch.device("mps")) if torch.backends.mps.is_available() else tuple(found)


def _dtypes() -> dict[str, Any]:
    # torch stores the larger unsigned integers, and computes hardly anything with them.
    return {name: getattr(torch, name) for name in DTYPES if name not in ("uint16", "uint32", "uint64")}


def _defaults() -> dict[str, Any]:
    real = torch.get_default_dtype()
    kinds = {"real floating": real, "complex floating": torch.complex128 if real == torch.float64 else torch.complex64}
    return kinds | {"integral": torch.int64, "indexing": torch.int64}


_INFO = Info(_dtypes, _defaults, _devices)


def __array_namespace_info__() -> Info:
    return _INFO


_MENDED: tuple[_Function, ...] = (
    *(
        arange,
        asarray,
        broadcast_shapes,
        can_cast,
        clip,
        finfo,
        floor_divide,
        from_dlpack,
        full,
        full_like,
        hypot,
        linspace,
        iinfo,
        matmul,
        mean,
        pow,
        remainder,
        repeat,
        searchsorted,
        sign,
        stack,
        std,
        take,
        take_along_axis,
    ),
    *(unique_all, unique_counts, unique_inverse, unique_values, var, __array_namespace_info__),
)


def _fixed() -> dict[str, Any]:
    same: dict[str, _Function] = {"equal": torch.eq, "bitwise_invert": torch.bitwise_not}
    return {
        **{name: _straight(same.get(name) or getattr(torch, name), getattr(compat, name)) for name in of_two_arrays()},
        **{function.__name__: function for function in _MENDED},
        **{name: getattr(torch, name) for name in (*DTYPES, *EXTRA_DTYPES)},
        **CONSTANTS,
    }

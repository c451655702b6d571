"""torch tensors in the exchange.

torch has no read-only tensors: memory that must not change comes in as a copy, or shared if copy=False asked for it;
read-only NumPy memory always as a copy (it may be a memmap). Types that NumPy lacks are passed as integers of the same
size. On an accelerator memory goes out behind the queued work, and a copy of borrowed memory is waited for.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.utils.dlpack

from ..adapters import Exported, Kind
from ..placement import canonical
from ..with_numpy.exchange import ALIGNMENT, Array, Dtype, cannot_share, in_words, no_such_type, writable_alias

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_COMMON = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
_WITH_ML_DTYPES = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split()
_NATIVE = frozenset(np.dtype(name) for name in _COMMON)
_TORCH_BY_NUMPY: dict[Dtype, torch.dtype] = {
    np.dtype(getattr(ml_dtypes, name)): getattr(torch, name) for name in _WITH_ML_DTYPES
}
_NUMPY_BY_TORCH = {kind: dtype for dtype, kind in _TORCH_BY_NUMPY.items()}
_KNOWN = {getattr(torch, name) for name in _COMMON} | set(_NUMPY_BY_TORCH)
_UNSIGNED = {1: torch.uint8, 2: torch.uint16}
_IS_A_VIEW = "it is a view that conjugates or negates its memory"
# torch has no annotations of these.
_cuda: Any = torch.cuda
_dlpack: Any = torch.utils.dlpack
_active_transform = torch._C._functorch.peek_interpreter_stack  # of torch.func, where tensors have no memory


def export_memory(x: torch.Tensor, copy: bool | None) -> Exported:
    """Return the memory if it is one plain piece on a CPU; otherwise that of a copy."""
    if type(x) in _PLAIN_TYPES and x.dtype not in _NUMPY_BY_TORCH:
        try:
            return x.numpy(), "mutable"
        except (TypeError, RuntimeError):
            pass  # the reason is found below
    bare = _numbers_of(x)
    plain = bare.cpu().resolve_conj().resolve_neg()
    if copy is False and plain is not bare:
        raise cannot_share("This torch tensor", _IS_A_VIEW if bare.is_cpu else f"its memory is on {bare.device}")
    try:
        dtype = _NUMPY_BY_TORCH.get(plain.dtype)
        array = plain.numpy() if dtype is None else plain.view(_UNSIGNED[plain.itemsize]).numpy().view(dtype)
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"The memory of a torch tensor of type {x.dtype} and shape {tuple(x.shape)} is not available: {error}. "
            f"Inside torch.func or torch.vmap convert outside the transformed function."
        ) from error
    return array, "mutable" if plain is bare else "private"


def reason_to_copy(array: Array, kind: Kind, copy: bool | None) -> str:
    if not array.flags.writeable and (copy is None or kind == "mutable"):
        return "it is read-only, and torch has no read-only tensors"
    if not array.flags.aligned:
        return f"its memory does not begin at a multiple of the {array.itemsize} bytes of an element"
    if array.ndim and min(array.strides) < 0:
        return f"torch has no negative strides (they are {array.strides} bytes)"
    if any(step % array.itemsize for step in array.strides):
        return f"torch has no strides of broken elements (they are {array.strides} bytes)"
    return ""


def share(array: Array) -> torch.Tensor:
    dtype = array.dtype
    if dtype not in _NATIVE:
        if dtype not in _TORCH_BY_NUMPY:
            narrow = {"f": "float64", "c": "complex128"}.get(dtype.kind, "float32")
            raise no_such_type("torch", dtype.name, f"x.astype({narrow!r})")
        return torch.from_numpy(writable_alias(in_words(array))).view(_TORCH_BY_NUMPY[dtype])
    # torch knows one of two equal types of 64 bits: C's long, not its long long.
    return torch.from_numpy(writable_alias(array if dtype.char not in "qQ" else array.view(dtype.name)))


def adopt(array: Array) -> torch.Tensor:
    """Return a tensor over private memory, on torch's default device."""
    device = torch.empty(()).device  # ten times faster than torch.get_default_device
    return share(array) if device.type == "cpu" else share(array).to(device)


def devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{number}" for number in range(torch.accelerator.device_count()))]


def device_of(x: torch.Tensor) -> str:
    return "cpu" if x.is_cpu else canonical(str(x.device))


def move(x: torch.Tensor, device: str) -> torch.Tensor:
    return x.to(device)


def accelerator_of(x: torch.Tensor) -> str | None:
    return None if x.is_cpu else device_of(x)


def to_dlpack(x: torch.Tensor, copy: bool | None) -> "_Source":
    """Return the memory if it is in C order and aligned; otherwise that of a copy."""
    bare, reason = _numbers_of(x), ""
    if bare.is_conj() or bare.is_neg():
        reason = _IS_A_VIEW
    elif not bare.is_contiguous():
        reason = f"it is not C-contiguous (strides {bare.stride()} for shape {tuple(bare.shape)})"
    elif _active_transform() is None and (offset := bare.data_ptr() % ALIGNMENT):
        reason = f"its memory begins {offset} bytes past a multiple of {ALIGNMENT}"
    if copy is False and reason:
        raise cannot_share("This torch tensor", reason)
    return _Source(bare.clone(memory_format=torch.contiguous_format) if reason else bare)


def from_dlpack(source: Any, copy: bool | None) -> torch.Tensor | None:
    """Return a tensor over that memory, or a copy; None if torch or DLPack lacks the type."""
    try:
        shared: torch.Tensor = _dlpack.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if copy is False:
            raise cannot_share("This array", f"torch refused its memory: {error}") from error
        return None
    if copy is False:
        return shared
    copy_of_it = shared.clone(memory_format=torch.contiguous_format)
    if copy_of_it.is_cuda:  # the owner of the memory does not know torch's stream, and may reuse it after this
        torch.cuda.current_stream(copy_of_it.device).synchronize()
    return copy_of_it


def copied(x: torch.Tensor) -> torch.Tensor:
    """Return a clone, which keeps its history."""
    return x.clone()


class _Source:
    """A tensor for another engine, behind the work queued on the current stream of its device."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x: Any = x  # torch has no annotations of the two methods

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        with _cuda.device_of(self._x):  # torch refuses a tensor of another device than the current one
            return self._x.__dlpack__(**arguments)


def _numbers_of(x: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor on the same memory. Raise TypeError if there is none that other engines understand."""
    kind = type(x)
    if torch.nn.parameter.is_lazy(x):
        raise TypeError(f"{kind.__name__} has no data yet: run the module once on an input")
    if x.requires_grad:
        raise TypeError(
            f"{described(x)} requires grad, and its history cannot follow it into another engine. "
            f"Convert x.detach() (or fanwise.tensor.stop_gradient(x)) if you do not need it there"
        )
    if x.is_meta or (reason := why_not_plain(x)):
        raise TypeError(f"{described(x)} {'has no data' if x.is_meta else reason}")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and kind not in _PLAIN_TYPES:
        raise TypeError(
            f"The memory of a {kind.__module__}.{kind.__qualname__} does not hold its meaning, because it changes "
            f"operations. Convert the plain tensor it is made of"
        )
    if x.dtype not in _KNOWN:
        raise no_such_type("numpy", str(x.dtype), "x.to(torch.complex64), x.to(torch.float32) or x.view(torch.uint8)")
    return x if kind in _PLAIN_TYPES else x.as_subclass(torch.Tensor)


def described(x: torch.Tensor) -> str:
    """Return a description for messages, without the elements: printing them may fetch them from a device, or fail."""
    return f"A torch tensor of type {x.dtype}, layout {x.layout} on {x.device}"


def why_not_plain(x: torch.Tensor) -> str:
    """Return the reason why x is not one piece of memory that holds its elements, and a remedy; empty if it is."""
    if x.is_nested:
        return "is nested and has no one piece of memory. Take its parts, x.unbind()"
    if x.is_quantized:
        return "is quantized. Take x.dequantize(), or x.int_repr() and its scale"
    if x.layout is not torch.strided:
        return "is not dense. Take x.to_dense(), or its indices and values"
    return ""

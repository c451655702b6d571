"""torch tensors in the exchange.

torch has no read-only tensors: memory that must not change comes in only as a copy, or where copy=False asked for it;
read-only numpy memory not even then, for it may be a file that this process may not write to (a memmap).
Types that numpy lacks go as words of the same size and are viewed again.

On an accelerator torch only queues its work, on a stream, and frees memory in the order of its own streams. So memory
goes out behind what is queued, and a copy of borrowed memory is waited for.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.utils.dlpack

from ..adapters import Exported, Layout
from ..exchange.refusals import cannot_share, no_such_type
from ..with_numpy.exchange import ALIGNMENT, Array, Dtype, aligned_copy, in_words, writable_alias
from .devices import device_of

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
_COMMON = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
_WITH_ML_DTYPES = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split()
_NATIVE = frozenset(np.dtype(name) for name in _COMMON)
_TORCH_BY_NUMPY: dict[Dtype, torch.dtype] = {
    np.dtype(getattr(ml_dtypes, name)): getattr(torch, name) for name in _WITH_ML_DTYPES
}
_NUMPY_BY_TORCH = {kind: dtype for dtype, kind in _TORCH_BY_NUMPY.items()}
_KNOWN = {getattr(torch, name) for name in _COMMON} | set(_NUMPY_BY_TORCH)
_TORCH_WORDS = {1: torch.uint8, 2: torch.uint16}
_AS_A_VIEW = "it is a view that conjugates or negates what is in its memory"
_cuda: Any = torch.cuda  # Any: torch has not annotated what is used of them
_dlpack: Any = torch.utils.dlpack


def export_memory(x: torch.Tensor, copy: bool | None) -> Exported:
    """The tensor's memory, when it is one plain piece on a CPU; else a copy that is."""
    if type(x) in _PLAIN_TYPES and x.dtype not in _NUMPY_BY_TORCH:
        try:
            return x.numpy(), "mutable"
        except (TypeError, RuntimeError):
            pass  # why is found out below
    bare = _numbers_of(x)
    plain = bare.cpu().resolve_conj().resolve_neg()
    if copy is False and plain is not bare:
        raise cannot_share("This torch tensor", f"its memory is on {bare.device}" if not bare.is_cpu else _AS_A_VIEW)
    try:
        return _in_numpy(plain), "mutable" if plain is bare else "private"
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"A torch tensor of type {x.dtype} and shape {tuple(x.shape)} does not give out its memory: {error}. "
            f"Inside torch.func or torch.vmap convert outside the transformed function."
        ) from error


def import_memory(exported: Exported, copy: bool | None) -> torch.Tensor:
    """A tensor over the array's memory, or over a copy."""
    array, kind = exported
    if array.dtype not in _NATIVE and array.dtype not in _TORCH_BY_NUMPY:
        raise no_such_type("torch", array.dtype.name, _hint(array.dtype))
    if kind == "private":
        return _over(array)
    if copy is False:
        return _over(_shareable(array, kind))
    if copy or not array.flags.writeable or _why_not_torch(array):  # what is immutable says so itself
        return _over(aligned_copy(array))
    return _over(array)


def accelerator_of(x: torch.Tensor) -> str | None:
    """The name of its device, if that is not the CPU."""
    return None if x.is_cpu else device_of(x)


def to_dlpack(x: torch.Tensor, copy: bool | None) -> "_Lent":
    """The tensor's memory, if it is in C order and aligned; else that of a copy which is."""
    bare = _numbers_of(x)
    why = _why_not_lent(bare)
    if copy is False and why:
        raise cannot_share("This torch tensor", why)
    return _Lent(bare.clone(memory_format=torch.contiguous_format) if why else bare)


def from_dlpack(lent: Any, copy: bool | None) -> torch.Tensor | None:  # Any: what another engine's `to_dlpack` made
    """A tensor over that memory, or a copy; None where torch or DLPack has no such type."""
    try:
        shared: torch.Tensor = _dlpack.from_dlpack(lent)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if copy is False:
            raise cannot_share("This array", f"torch does not take its memory: {error}") from error
        return None
    if copy is False:
        return shared
    copy_of_it = shared.clone(memory_format=torch.contiguous_format)
    if copy_of_it.is_cuda:  # who lent the memory does not know torch's stream, and may use it for something else then
        torch.cuda.current_stream(copy_of_it.device).synchronize()
    return copy_of_it


def copied(x: torch.Tensor) -> torch.Tensor:
    """A clone: its history goes on."""
    return x.clone()


def layout_of(x: torch.Tensor) -> Layout:
    """Where its elements lie, on whatever device."""
    bare = _checked(x, may_want_grad=True)
    try:
        address = 0 if bare.is_meta else bare.data_ptr()
    except RuntimeError as error:
        raise TypeError(f"A torch tensor of shape {tuple(x.shape)} has no memory of its own: {error}") from error
    size_bytes = bare.itemsize
    return Layout(address, tuple(bare.shape), tuple(step * size_bytes for step in bare.stride()), size_bytes)


class _Lent:
    """A tensor for another engine, behind what is queued on the current stream of its device."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x: Any = x  # Any: torch has not annotated the two methods

    def __dlpack_device__(self) -> Any:  # Any: a pair of numbers
        return self._x.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:  # Any: the protocol's arguments, and its capsule
        # torch refuses a tensor of another device than the current one.
        with _cuda.device_of(self._x):
            return self._x.__dlpack__(**asked)


def _over(array: Array) -> torch.Tensor:
    kind = _TORCH_BY_NUMPY.get(array.dtype)
    if kind is None:
        # torch knows one of two equal types of 64 bits: C's long, not its long long.
        return torch.from_numpy(array if array.dtype.char not in "qQ" else array.view(array.dtype.name))
    return torch.from_numpy(in_words(array)).view(kind)


def _in_numpy(x: torch.Tensor) -> Array:
    dtype = _NUMPY_BY_TORCH.get(x.dtype)
    if dtype is None:
        return x.numpy()
    words: Array = x.view(_TORCH_WORDS[x.itemsize]).numpy()
    return words.view(dtype)


def _shareable(array: Array, kind: str) -> Array:
    why = _why_not_torch(array)
    if not array.flags.writeable and kind == "mutable":
        why = "it is read-only, and torch has no read-only tensors"
    if why:
        raise cannot_share(f"An array of shape {array.shape} and dtype {array.dtype}", why)
    return writable_alias(in_words(array)).view(array.dtype)


def _why_not_torch(array: Array) -> str:
    """What of its layout torch cannot describe; empty if it can."""
    if not array.flags.aligned:
        return f"its memory begins at no multiple of the {array.itemsize} bytes of an element"
    if array.ndim and min(array.strides) < 0:
        return f"torch has no negative strides (they are {array.strides} bytes)"
    if any(step % array.itemsize for step in array.strides):
        return f"torch has no strides of broken elements (they are {array.strides} bytes)"
    return ""


def _numbers_of(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor on the same memory. Raises TypeError as `_checked`, and for a type that no other engine has."""
    bare = _checked(x)
    if x.dtype not in _KNOWN:
        raise no_such_type("numpy", str(x.dtype), "x.to(torch.complex64), x.to(torch.float32) or x.view(torch.uint8)")
    return bare


def _checked(x: torch.Tensor, *, may_want_grad: bool = False) -> torch.Tensor:
    """A plain tensor on the same memory. Raises TypeError for what has none, or a history that would be lost."""
    if torch.nn.parameter.is_lazy(x):
        raise TypeError(f"{type(x).__name__} has no data yet: run the module once on an input")
    if why := why_not_one_piece(x):
        raise TypeError(f"{described(x)} {why}")
    if x.is_meta and not may_want_grad:
        raise TypeError(f"{described(x)} has no data")
    if type(x) not in _PLAIN_TYPES:
        x = _as_plain(x)
    if x.requires_grad and not may_want_grad:
        raise TypeError(
            f"{described(x)} requires grad, and its history cannot follow it into another engine. "
            f"Convert x.detach() (or fanwise.tensor.stop_gradient(x)) if you do not need it there"
        )
    return x.detach() if may_want_grad else x


def described(x: torch.Tensor) -> str:
    """The tensor, for messages. Not its elements: printing them may fetch them from a device, or fail."""
    return f"A torch tensor of type {x.dtype}, layout {x.layout} on {x.device}"


def why_not_one_piece(x: torch.Tensor) -> str:
    """What x is other than one piece of memory that means its elements, and what to take; empty if it is one."""
    if x.is_nested:
        return "is nested and has no one piece of memory. Take its parts, x.unbind()"
    if x.is_quantized:
        return "is quantized. Take x.dequantize(), or x.int_repr() and its scale"
    if x.layout is not _STRIDED:
        return "is not dense. Take x.to_dense(), or its indices and values"
    return ""


def _as_plain(x: torch.Tensor) -> torch.Tensor:
    kind = type(x)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} gives operations a meaning of its own, which its memory alone "
            f"does not hold. Convert the plain tensor it is made of"
        )
    return x.as_subclass(torch.Tensor)


def _why_not_lent(x: torch.Tensor) -> str:
    """What keeps other engines from its memory on an accelerator; empty if nothing does."""
    if x.is_conj() or x.is_neg():
        return _AS_A_VIEW
    if not x.is_contiguous():
        return f"it is not C-contiguous (strides {x.stride()} for shape {tuple(x.shape)})"
    try:
        past = x.data_ptr() % ALIGNMENT
    except RuntimeError:  # inside of torch.func it has no memory, which DLPack finds out
        past = 0
    return f"its memory begins {past} bytes past a multiple of {ALIGNMENT}" if past else ""


def _hint(dtype: Dtype) -> str:
    narrow = {"f": "float64", "c": "complex128"}.get(dtype.kind, "float32")
    return f"x.astype({narrow!r})"

"""torch tensors on the wire, through NumPy, and in pickles, with parametrized modules.

On the wire, types that NumPy lacks go as integers of the same size. The header keeps the device's name, requires_grad
and whether it was a Parameter. Conjugate and negative views are resolved; history, `.grad`, hooks and forward-mode
tangents are not sent. In pickles (`wire.reducing` lists these reducers in its table):

    dense, in C order           its wire header and its memory
    dense, other strides        the same for its elements in the order of memory, and the strides
    a type without a wire code  as integers of the same size
    sparse                      its dense parts
    quantized, nested, meta     torch's own form, whose parts are tensors
    a subclass, or attributes   the plain tensor, the class and the attributes

torch's own reducers cannot restore float8, uint16, uint32, uint64, complex32 and the bits types (2.13), lose whether a
sparse tensor requires gradients, and refuse parametrized modules.
"""

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _WrappedHook
from torch.nn.utils import parametrize

from ...base.errors import NotSendableError
from ..wire.coding import to_wire
from ..wire.header import DTYPES, ENGINE_CODES, MAX_NDIM, PARAMETER, REQUIRES_GRAD, WireHeader, pack_header
from ..wire.reducing import rebuild_array
from ..with_numpy.wire import array_over, bytes_of
from .exchange import described, why_not_plain

# torch has no annotations of these.
_tensor: Any = torch._tensor
_utils: Any = torch._utils
_STRIDED = torch.strided
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ENGINE_CODE = ENGINE_CODES["torch"]
_DTYPE_BY_CODE: dict[int, torch.dtype] = {
    dtype.code: getattr(torch, dtype.name) for dtype in DTYPES.values() if "torch" in dtype.engines
}
CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}
# The integer types that stand for the types that NumPy lacks.
_INTEGER_BY_DTYPE = {
    kind: _WORDS[DTYPES[code].size_bytes] for kind, code in CODE_BY_DTYPE.items() if not DTYPES[code].in_numpy
}
# The dense parts of a sparse tensor.
SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
# A small part of a large tensor, such as a column, arrives without gaps if they are wider than this.
_GAPS_MAX = 16


def encode(x: torch.Tensor, engine: str) -> tuple[bytes, memoryview]:
    """Return header and memory; a view of it if the tensor is C-contiguous and on a CPU."""
    dtype = x.dtype
    code = CODE_BY_DTYPE.get(dtype)
    if code is None or x.layout is not _STRIDED or x.is_nested or x.is_meta or x.ndim > MAX_NDIM:
        reason = why_not_plain(x) or (
            f"has no data, or has a type without a code, or more than {MAX_NDIM} dimensions ({x.ndim}). Send its shape "
            f"and type, x.view(torch.uint8) or x.flatten()"
        )
        raise NotSendableError(f"{described(x)} {reason}.")
    flags = REQUIRES_GRAD if x.requires_grad else 0
    if type(x) is torch.nn.Parameter:
        flags |= PARAMETER
    device = "" if x.is_cpu else str(x.device)
    header = pack_header(_ENGINE_CODE, code, x.shape, flags, device)
    return header, bytes_of(_in_numpy(x, dtype))


def decode(header: WireHeader, buffer: memoryview, device: Any) -> torch.Tensor:
    """Return the tensor over `buffer`, on `device` if it is not None."""
    x = torch.from_numpy(array_over(header, buffer))
    if not header.dtype.in_numpy:
        x = x.view(_DTYPE_BY_CODE[header.dtype.code])
    if device is not None:
        x = x.to(device)
    if header.is_parameter:
        return torch.nn.Parameter(x, requires_grad=header.requires_grad)
    return x.requires_grad_() if header.requires_grad else x


def _in_numpy(x: torch.Tensor, dtype: torch.dtype) -> Any:
    try:
        if x.requires_grad:
            x = x.detach()
        if not x.is_cpu:
            x = x.cpu()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        integer = _INTEGER_BY_DTYPE.get(dtype)
        return (x if integer is None else x.view(integer)).numpy()
    except (RuntimeError, TypeError) as error:
        raise NotSendableError(
            f"The memory of a tensor of type {dtype} and shape {tuple(x.shape)} is not available: {error}. "
            f"Inside torch.func or torch.vmap send from outside the transformed function; otherwise send x.clone()."
        ) from error


# -- pickles -----------------------------------------------------------------------------------------------------------


def reduce_tensor(x: Any) -> Any:
    """Reduce a Tensor or Parameter, but no subclass."""
    is_plain = x.layout is _STRIDED and x.dtype in CODE_BY_DTYPE and not (x.is_nested or x.is_meta or x.__dict__)
    if type(x) is not Tensor and not (is_plain and x.is_contiguous()):
        return x.__reduce_ex__(5)  # a Parameter: its data, which is reduced here, and its attributes
    if x.__dict__:
        return rebuild_subclass, (Tensor, x.detach(), x.requires_grad, _utils._get_obj_state(x))
    if x.is_nested or x.is_meta or x.is_quantized:
        return x.__reduce_ex__(5)
    if x.layout in SPARSE:
        bare = x.detach()
        is_coalesced = x.layout is torch.sparse_coo and bare.is_coalesced()
        parts = [getattr(bare, part)() for part in SPARSE[x.layout]]
        return rebuild_sparse, (x.layout, parts, tuple(x.shape), is_coalesced, x.requires_grad)
    if x.layout is _STRIDED:
        if x.dtype not in CODE_BY_DTYPE:
            return rebuild_words, (x.view(_WORDS[x.itemsize]), x.dtype)
        if not x.is_contiguous():
            return rebuild_strided, (*in_order_of_memory(x), x.requires_grad)
    header, (memory,) = to_wire(x)  # refuses layouts of other libraries
    return rebuild_array, (header, pickle.PickleBuffer(memory))


def reduce_subclass(x: Tensor) -> Any:
    """Reduce a subclass that is pickled like Tensor, so that all its memory is that of the plain tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        plain = x.detach().as_subclass(Tensor)
        return rebuild_subclass, (type(x), plain, x.requires_grad, _utils._get_obj_state(x))


def rebuild_words(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor over the memory of the integers."""
    return words.view(dtype)


def rebuild_subclass(kind: type[Tensor], plain: Tensor, requires_grad: bool, state: object) -> Tensor:
    """Return the tensor of a subclass, or with attributes, over the memory of the plain one."""
    x: Tensor = _tensor._rebuild_from_type_v2(lambda: plain, kind, (), state)
    return x.requires_grad_() if requires_grad else x


# -- other strides -----------------------------------------------------------------------------------------------------


def in_order_of_memory(x: Tensor) -> tuple[Tensor, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the elements in the order of memory, without repetitions and gaps; shape, strides, and that order of
    dimensions.

    A tensor without gaps, as in channels-last, is not copied.
    """
    bare = x.detach().resolve_conj().resolve_neg()
    for dim, stride in enumerate(bare.stride()):
        if stride == 0:
            bare = bare.narrow(dim, 0, min(1, bare.shape[dim]))
    order = tuple(sorted(range(bare.ndim), key=bare.stride, reverse=True))
    return bare.permute(order).contiguous(), tuple(x.shape), x.stride(), order


def rebuild_strided(
    part: Tensor, shape: Sequence[int], strides: Sequence[int], order: Sequence[int], requires_grad: bool
) -> Tensor:
    """Return the tensor. Strides that only views have, such as overlapping windows, become plain ones."""
    dense = part.permute(sorted(range(len(order)), key=order.__getitem__))  # the inverse permutation
    if (
        dense.stride() != tuple(strides)
        and _is_free_of_overlaps(dense.shape, strides)
        and _size(dense.shape, strides) <= _GAPS_MAX * max(1, dense.numel())
    ):
        spread = torch.empty_strided(dense.shape, strides, dtype=dense.dtype, device=dense.device)
        dense = spread.copy_(dense)
    x = dense.expand(shape)
    return x.requires_grad_() if requires_grad else x


def _is_free_of_overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _size(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum(stride * (size - 1) for stride, size in zip(strides, shape, strict=True))


# -- sparse ------------------------------------------------------------------------------------------------------------


def rebuild_sparse(
    layout: torch.layout, parts: Sequence[Tensor], shape: Sequence[int], is_coalesced: bool, requires_grad: bool
) -> Tensor:
    """Return the tensor. The parts are checked: an index beyond the shape would make torch write elsewhere."""
    make: Any = torch.sparse_coo_tensor  # torch's annotations do not fit
    if layout is torch.sparse_coo:
        x: Tensor = make(*parts, shape, is_coalesced=is_coalesced, check_invariants=True)
    else:
        make = torch.sparse_compressed_tensor
        x = make(*parts, shape, layout=layout, check_invariants=True)
    return x.requires_grad_() if requires_grad else x


# -- parametrized modules ----------------------------------------------------------------------------------------------


def reduce_parametrized(module: nn.Module) -> Any:
    """Reduce a module with a class of its own, which torch refuses: the original class can make it again."""
    original: Any = type(module).__bases__[0]
    if original.__reduce_ex__ is not object.__reduce_ex__ or original.__reduce__ is not object.__reduce__:
        return module.__reduce_ex__(5)
    names = tuple(module.parametrizations)  # type: ignore[arg-type]  # a ModuleDict
    return rebuild_parametrized, (original, names), original.__getstate__(module)


def rebuild_parametrized(original: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return a module without its state, of a class like the one that `register_parametrization` makes."""
    module = original.__new__(original)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def reduce_hook(hook: Any) -> Any:
    """Reduce the hook that `weight_norm` leaves in a module, a local function that pickle cannot find by name."""
    if getattr(hook.hook, "__module__", None) != "torch.nn.utils.parametrizations":
        return hook.__reduce_ex__(5)
    import cloudpickle

    return rebuild_hook, (cloudpickle.dumps(hook.hook),)


def rebuild_hook(function: bytes) -> Any:
    """Return the hook."""
    return _WrappedHook(pickle.loads(function))

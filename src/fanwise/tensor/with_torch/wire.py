"""torch tensors on the wire, by way of numpy, which can see the same memory.

Loaded when the first tensor is sent or received. Types that numpy lacks (bfloat16, the float8 kinds) go as raw
words of the same size. Conjugate and negative views are resolved, GPU tensors fetched to the CPU; the header
keeps the device's name, whether a gradient is wanted and whether it was a Parameter. History, `.grad`, hooks
and forward-mode tangents stay behind: a received tensor is a leaf.
"""

from typing import Any

import numpy as np
import torch

from ...base.errors import NotSendableError
from ..wire import dtypes
from ..wire.header import ENGINE_CODES, MAX_NDIM, PARAMETER, REQUIRES_GRAD, WireHeader, pack_header
from ..with_numpy.wire import array_over, bytes_of
from .exchange import described, why_not_one_piece

_ENGINE_CODE = ENGINE_CODES["torch"]
_STRIDED = torch.strided
_TORCH_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_DTYPE_BY_CODE: dict[int, torch.dtype] = {
    dtype.code: getattr(torch, dtype.name) for dtype in dtypes.BY_CODE.values() if "torch" in dtype.engines
}
CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}
_WORD_BY_DTYPE = {
    _DTYPE_BY_CODE[dtype.code]: _TORCH_WORDS[dtype.size_bytes]
    for dtype in dtypes.BY_CODE.values()
    if not dtype.in_numpy and "torch" in dtype.engines
}


def encode(x: torch.Tensor) -> tuple[bytes, memoryview]:
    """Header and memory of a tensor; a view of it when it is a C-contiguous CPU tensor."""
    dtype = x.dtype
    code = CODE_BY_DTYPE.get(dtype)
    if code is None or x.layout is not _STRIDED or x.is_nested or x.is_meta or x.ndim > MAX_NDIM:
        raise _refused(x)
    flags = REQUIRES_GRAD if x.requires_grad else 0
    if type(x) is torch.nn.Parameter:
        flags |= PARAMETER
    device = "" if x.is_cpu else str(x.device)
    header = pack_header(_ENGINE_CODE, code, x.shape, flags, device)
    return header, bytes_of(_in_numpy(x, dtype))


def decode(header: WireHeader, buffer: memoryview, device: Any) -> torch.Tensor:  # Any: str, torch.device or None
    """The tensor over `buffer`, moved to `device` if one is given."""
    x = torch.from_numpy(array_over(header, buffer))
    if not header.dtype.in_numpy:
        x = x.view(_DTYPE_BY_CODE[header.dtype.code])
    if device is not None:
        x = x.to(device)
    if header.is_parameter:
        return torch.nn.Parameter(x, requires_grad=header.requires_grad)
    return x.requires_grad_() if header.requires_grad else x


def _in_numpy(x: torch.Tensor, dtype: torch.dtype) -> "np.ndarray[Any, Any]":  # Any: known only when it runs
    try:
        if x.requires_grad:
            x = x.detach()
        if not x.is_cpu:
            x = x.cpu()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        word = _WORD_BY_DTYPE.get(dtype)
        return (x if word is None else x.view(word)).numpy()
    except (RuntimeError, TypeError) as error:
        raise NotSendableError(
            f"A tensor of type {dtype} and shape {tuple(x.shape)} does not give out its memory: {error}. "
            f"Inside torch.func or torch.vmap send from outside the transformed function; else send x.clone()."
        ) from error


def _refused(x: torch.Tensor) -> NotSendableError:
    what = described(x)
    if why := why_not_one_piece(x):
        return NotSendableError(f"{what} {why}.")
    if x.is_meta:
        return NotSendableError(f"{what} has no data. Send its shape and type, or a tensor with data.")
    if x.ndim > MAX_NDIM:
        return NotSendableError(f"{what} has {x.ndim} dimensions, at most {MAX_NDIM} travel. Send x.flatten().")
    return NotSendableError(f"{what} has a type with no form on the wire. Convert it, for example to torch.uint8.")

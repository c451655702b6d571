"""Encoding and decoding of torch tensors, through NumPy. Types that it lacks go as integers of the same size.

The header keeps the device's name, requires_grad and whether it was a Parameter. Conjugate and negative views are
resolved; history, `.grad`, hooks and forward-mode tangents are not sent.
"""

from typing import Any

import numpy as np
import torch

from ...base.errors import NotSendableError
from ..wire.header import DTYPES, ENGINE_CODES, MAX_NDIM, PARAMETER, REQUIRES_GRAD, WireHeader, pack_header
from ..with_numpy.wire import array_over, bytes_of
from .exchange import described, why_not_plain

_ENGINE_CODE = ENGINE_CODES["torch"]
_STRIDED = torch.strided
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_DTYPE_BY_CODE: dict[int, torch.dtype] = {
    dtype.code: getattr(torch, dtype.name) for dtype in DTYPES.values() if "torch" in dtype.engines
}
CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}
# The integer types that stand for the types that NumPy lacks.
_INTEGER_BY_DTYPE = {
    kind: _INTEGERS[DTYPES[code].size_bytes] for kind, code in CODE_BY_DTYPE.items() if not DTYPES[code].in_numpy
}


def encode(x: torch.Tensor, engine: str) -> tuple[bytes, memoryview]:
    """Return header and memory; a view of it if the tensor is C-contiguous and on a CPU."""
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


def _in_numpy(x: torch.Tensor, dtype: torch.dtype) -> "np.ndarray[Any, Any]":
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


def _refused(x: torch.Tensor) -> NotSendableError:
    reason = why_not_plain(x) or (
        f"has no data, or has a type without a code, or more than {MAX_NDIM} dimensions ({x.ndim}). Send its shape and "
        f"type, x.view(torch.uint8) or x.flatten()"
    )
    return NotSendableError(f"{described(x)} {reason}.")

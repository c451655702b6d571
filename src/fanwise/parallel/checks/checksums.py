"""Checksums of tensors and batches: small facts that processes compare instead of the values.

    tensor --type, shape, CRC-32 of its bytes--> "float32 (32, 8) with checksum 0f3a99c1"

A batch is looked at in part where it is large: 256 KiB of each of its tensors, evenly spread.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Content, as_tensor, is_array

_LOOKED_AT_BYTES = 1 << 18


def mark(tensor: Tensor) -> str:
    """Type, shape, and a checksum of all values. Waits for an accelerator."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.to_dense()
    return f"{_kind(tensor)} with checksum {_checksum(values):08x}"


def marks_of_modules(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """A mark of each parameter and buffer of modules, by name, and whether it is frozen; "" is the model, not named."""
    return {
        ".".join(filter(None, (prefix, name))): mark(tensor) + _frozen(tensor)
        for prefix, module in modules.items()
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }


def _frozen(tensor: Tensor) -> str:
    return ", frozen" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""


def marks_of_batch(content: Content, called: str) -> dict[str, str]:
    """A mark of each part of a batch, by where it stands in it."""
    return dict(_marks(content, called))


def _marks(content: Content, path: str) -> Iterator[tuple[str, str]]:
    if is_array(content):
        tensor = as_tensor(content).detach()
        yield path, f"{_kind(tensor)} with checksum {_checksum(_some_of(tensor)):08x}"
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _marks(value, f"{path}[{name!r}]")
    elif isinstance(content, list | tuple):
        if all(isinstance(value, str | bytes | int | float) for value in content):
            yield path, f"{len(content)} values with checksum {zlib.crc32(repr(content).encode()):08x}"
        else:
            for place, value in enumerate(content):
                yield from _marks(value, f"{path}[{place}]")
    else:
        yield path, f"a {type(content).__name__}"


def _some_of(tensor: Tensor) -> Tensor:
    """Rows of a tensor, evenly spread, that are not too many to look at."""
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    size = tensor.numel() * tensor.element_size()
    if size <= _LOOKED_AT_BYTES or tensor.ndim == 0:
        return tensor
    row_bytes = size // len(tensor)
    rows = max(1, min(len(tensor), _LOOKED_AT_BYTES // max(1, row_bytes)))
    some = tensor[torch.arange(rows, device=tensor.device) * len(tensor) // rows]
    return some.reshape(-1)[: max(1, _LOOKED_AT_BYTES // tensor.element_size())]


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _checksum(tensor: Tensor) -> int:
    values = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(values.data)


def marks_of_settings(groups: Sequence[Mapping[str, Any]]) -> dict[str, object]:  # Any: of an optimizer
    """What each group of an optimizer is set to, besides its parameters."""
    return {
        f"{name} of parameter group {number}": mark(value) if isinstance(value, Tensor) else value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name != "params" and isinstance(value, Tensor | int | float | str | tuple | list | None)
    }

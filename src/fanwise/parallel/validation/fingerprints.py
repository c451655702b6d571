"""Fingerprints: short strings that are compared instead of tensors, batches and modules.

    tensor -> "float32 (32, 8) with checksum 0f3a99c1"          the checksum is the CRC-32 of the bytes

Only 256 KiB of a large tensor in a batch are read, evenly spread over its rows.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Content, as_tensor, is_array

_SAMPLED_BYTES = 1 << 18
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes

Facts = Mapping[str, object]  # reported by one process, by name


def first_difference(facts: Sequence[Facts]) -> tuple[str, str] | None:
    """Return the name of the first fact that differs between processes, and its values with their processes.

    Values are compared as text, so that NaN equals NaN.
    """
    for name in dict.fromkeys(chain.from_iterable(facts)):
        owners: dict[str, list[str]] = {}
        for place, own_facts in enumerate(facts):
            value = own_facts.get(name, "missing")
            owners.setdefault(value if isinstance(value, str) else repr(value), []).append(str(place))
        if len(owners) > 1:
            return name, ", ".join(f"{value} in {_processes(places)}" for value, places in owners.items())
    return None


def _processes(places: list[str]) -> str:
    return f"process {places[0]}" if len(places) == 1 else f"processes {', '.join(places[:-1])} and {places[-1]}"


def have_same_bits(left: Tensor, right: Tensor) -> bool:
    """As torch.equal, but NaN equals NaN, and 0.0 differs from -0.0."""
    if left.dtype != right.dtype or left.device != right.device:
        return False
    return torch.equal(as_integers(left), as_integers(right))


def as_integers(tensor: Tensor) -> Tensor:
    """View the bits of floating-point and complex numbers as integers."""
    if tensor.dtype.is_floating_point:
        return tensor.resolve_neg().view(_INTEGERS[tensor.dtype.itemsize])
    if tensor.dtype.is_complex:
        return as_integers(torch.view_as_real(tensor.resolve_conj()))
    return tensor


def fingerprint(tensor: Tensor, *, is_sampled: bool = False) -> str:
    """Return type, shape and checksum. Waits for an accelerator."""
    values = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    size = values.numel() * values.element_size()
    if is_sampled and size > _SAMPLED_BYTES and values.ndim > 0:
        rows = max(1, min(len(values), _SAMPLED_BYTES * len(values) // size))
        values = values[torch.arange(rows, device=values.device) * len(values) // rows]
        values = values.reshape(-1)[: max(1, _SAMPLED_BYTES // values.element_size())]
    checksum = zlib.crc32(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} with checksum {checksum:08x}"


def module_fingerprints(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Fingerprints of parameters and buffers by name. `modules`: by prefix of these names."""
    return {
        name: fingerprint(tensor) + ("" if tensor.requires_grad or name not in params else ", frozen")
        for prefix, module in modules.items()
        for params in [dict(module.named_parameters(prefix))]
        for name, tensor in (*params.items(), *module.named_buffers(prefix))
    }


def optimizer_settings(groups: Sequence[Mapping[str, Any]]) -> dict[str, object]:  # Any: settings
    return {
        f"{name} of parameter group {number}": fingerprint(value) if isinstance(value, Tensor) else value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name != "params" and isinstance(value, Tensor | int | float | str | tuple | list | None)
    }


def batch_fingerprints(content: Content, name: str) -> Iterator[tuple[str, str]]:
    """Fingerprints of all parts of a batch by their path, such as "batch['x'][0]"."""
    if is_array(content):
        yield name, fingerprint(as_tensor(content), is_sampled=True)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from batch_fingerprints(value, f"{name}[{key!r}]")
    elif not isinstance(content, list | tuple):
        yield name, f"a {type(content).__name__}"
    elif all(isinstance(value, str | bytes | int | float) for value in content):
        yield name, f"{len(content)} values with checksum {zlib.crc32(repr(content).encode()):08x}"
    else:
        for index, value in enumerate(content):
            yield from batch_fingerprints(value, f"{name}[{index}]")

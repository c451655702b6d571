"""Fingerprints: short strings that processes compare instead of tensors, batches and modules.

tensor -> "float32 (32, 8) with checksum 0f3a99c1"          the checksum is the CRC-32 of the bytes
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Content, as_tensor, is_array, is_column

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes

Facts = Mapping[str, object]  # values that one process reports, by name


def first_difference(facts: Sequence[Facts]) -> tuple[str, str] | None:
    """Return the name of the first fact that differs between processes, and a text with its values and their processes.

    Return None if all facts are equal. Values are compared as text, so that NaN equals NaN.
    """
    for name in dict.fromkeys(chain.from_iterable(facts)):
        ranks_of: dict[str, list[str]] = {}
        for rank, own_facts in enumerate(facts):
            value = own_facts.get(name, "missing")
            ranks_of.setdefault(value if isinstance(value, str) else repr(value), []).append(str(rank))
        if len(ranks_of) > 1:
            return name, ", ".join(f"{value} in {_processes(ranks)}" for value, ranks in ranks_of.items())
    return None


def _processes(ranks: list[str]) -> str:
    return f"process {ranks[0]}" if len(ranks) == 1 else f"processes {', '.join(ranks[:-1])} and {ranks[-1]}"


def have_same_bits(left: Tensor, right: Tensor) -> bool:
    """Like torch.equal, but NaN equals NaN with the same bits, and 0.0 differs from -0.0."""
    if left.dtype != right.dtype or left.device != right.device:
        return False
    return torch.equal(as_integers(left), as_integers(right))


def as_integers(tensor: Tensor) -> Tensor:
    """Return a view of floating-point and complex numbers as integers with the same bits."""
    if tensor.dtype.is_floating_point:
        return tensor.resolve_neg().view(_INTEGERS[tensor.dtype.itemsize])
    if tensor.dtype.is_complex:
        return as_integers(torch.view_as_real(tensor.resolve_conj()))
    return tensor


def fingerprint(tensor: Tensor) -> str:
    """Return type, shape and checksum as text. Waits for an accelerator."""
    values = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    checksum = zlib.crc32(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} with checksum {checksum:08x}"


def module_fingerprints(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the fingerprints of parameters and buffers by name. `modules`: modules by the prefix of these names."""
    return {
        name: fingerprint(tensor) + ("" if tensor.requires_grad or name not in params else ", frozen")
        for prefix, module in modules.items()
        for params in [dict(module.named_parameters(prefix))]
        for name, tensor in (*params.items(), *module.named_buffers(prefix))
    }


def optimizer_settings(groups: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    return {
        f"{name} of parameter group {number}": fingerprint(value) if isinstance(value, Tensor) else value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name != "params" and isinstance(value, Tensor | int | float | str | tuple | list | None)
    }


def batch_fingerprints(content: Content, name: str) -> Iterator[tuple[str, str]]:
    """Yield path and fingerprint of each part of a batch. A path is, for example, "batch['x'][0]"."""
    if is_array(content):
        yield name, fingerprint(as_tensor(content))
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from batch_fingerprints(value, f"{name}[{key!r}]")
    elif not isinstance(content, list | tuple):
        yield name, f"a {type(content).__name__}"
    elif is_column(content):
        yield name, f"{len(content)} values with checksum {zlib.crc32(repr(content).encode()):08x}"
    else:
        for index, value in enumerate(content):
            yield from batch_fingerprints(value, f"{name}[{index}]")

"""Trees of torch tensors in one buffer, by one concatenation; what is taken out are views."""

from collections.abc import Iterator
from typing import Any

import torch

from ..dtype_names import dtype_name
from .layout import PackedLeaf, PackSpec, as_python, gaps


def gathered(leaves: list[Any], spec: PackSpec, out: torch.Tensor | None) -> torch.Tensor:  # Any: tensors and numbers
    dtype = getattr(torch, spec.dtype)
    device = next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
    padding = torch.zeros(spec.align_elements - 1, dtype=dtype, device=device)
    parts = list(_parts(leaves, spec, padding))
    if out is None:
        return torch.cat(parts) if parts else padding[:0]
    with torch.no_grad():
        if parts:
            torch.cat(parts, out=out)
    return out


def taken_out(buffer: torch.Tensor, leaves: tuple[PackedLeaf, ...]) -> list[Any]:
    padding = gaps(leaves, len(buffer))
    sizes = [size for leaf, gap in zip(leaves, padding, strict=True) for size in (leaf.size, gap)]
    parts = buffer.split_with_sizes(sizes)[::2] if sizes else ()
    own = dtype_name(buffer.dtype)
    return [
        part.view(leaf.shape) if leaf.dtype == own else _converted(part, leaf)
        for part, leaf in zip(parts, leaves, strict=True)
    ]


def _parts(leaves: list[Any], spec: PackSpec, padding: torch.Tensor) -> Iterator[torch.Tensor]:
    """What lies side by side: every leaf, flat, and the padding after it."""
    fillings: dict[int, torch.Tensor] = {}
    for leaf, gap in zip(leaves, gaps(spec.leaves, spec.size), strict=True):
        if isinstance(leaf, torch.Tensor):
            flat = leaf.reshape(-1)
            yield flat if flat.dtype == padding.dtype else flat.to(padding.dtype)
        else:
            yield torch.tensor([leaf], dtype=padding.dtype, device=padding.device)
        if gap:
            if gap not in fillings:
                fillings[gap] = padding[:gap]
            yield fillings[gap]


def _converted(part: torch.Tensor, leaf: PackedLeaf) -> Any:
    if leaf.number:
        return as_python(part.item(), leaf.number)
    return part.view(leaf.shape).to(getattr(torch, leaf.dtype))

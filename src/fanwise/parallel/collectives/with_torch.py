"""torch tensors in the collectives: written to in place, outside of autograd.

Copies between two accelerators need not wait for the host: torch orders them after what the current streams of both
devices were given before, and what comes after on either stream after them. A copy to the CPU must wait, because
the next addition reads it at once; a copy from the CPU must, because the next write could overtake it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, is_lazy

from ...tensor.dtype_names import dtype_name
from .engines import Span


def refusal(x: Tensor) -> str:
    if is_lazy(x):
        return "has no shape yet: run the module once on a batch"
    if x.is_nested or x.layout is not torch.strided:
        return f"is not dense (layout {x.layout}): give x.to_dense(), or its values"
    if x.is_quantized:
        return "is quantized: give x.dequantize()"
    return ""


def why_fixed(x: Tensor) -> str:
    if any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True)):
        return "shows one element at many places (expand): give x.contiguous()"
    return ""


def span(x: Tensor) -> Span | None:
    start = x.data_ptr()
    if not start or not x.numel():
        return None
    return Span(x.device, start, start + (x.nbytes if x.is_contiguous() else 1))


def dtype(x: Tensor) -> str:
    return dtype_name(x.dtype)


def near(x: Tensor, like: Tensor) -> Tensor:
    return x if x.device == like.device else copied(x, like)


def copied(x: Tensor, like: Tensor) -> Tensor:
    return x.detach().to(like.device, non_blocking=need_not_wait(x.device, like.device), copy=True)


@torch.no_grad()
def added(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y)


@torch.no_grad()
def stored(x: Tensor, value: Tensor) -> Tensor:
    if value is not x:
        x.copy_(value, non_blocking=need_not_wait(value.device, x.device))
    return x


def slices(x: Tensor, ranges: Sequence[range]) -> list[Tensor]:
    # reshape copies where elements lie spread out; `rebuilt` then brings them back.
    return list(x.detach().reshape(-1).split_with_sizes([len(part) for part in ranges]))


@torch.no_grad()
def rebuilt(x: Tensor, slices: list[Tensor]) -> Tensor:
    if not x.is_contiguous():
        x.copy_(torch.cat(slices).view(x.shape))
    return x


def rows(x: Tensor, ranges: Sequence[range]) -> list[Tensor]:
    return [x[part.start : part.stop] for part in ranges]


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach() for part in parts])


def replica(x: Tensor, device: str) -> Tensor:
    made = x.detach().to(device, copy=True)
    if isinstance(x, Parameter):
        return Parameter(made, requires_grad=x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def placed(x: Tensor, device: str) -> Tensor:
    # As torch's own scatter: only a pinned batch can still be read when this returns. `split_batch` says so.
    return x.to(device, non_blocking=device != "cpu")


def need_not_wait(source: torch.device, target: torch.device) -> bool:
    """Whether the host may go on before a copy is done."""
    return source.type != "cpu" and target.type != "cpu"

"""The result of a shard, and the addition of two results.

Lists run over the parameters, or over the buffers, of the model. None stands for a parameter that the loss did not use,
or for a buffer that the forward pass did not change. Neither is the same as zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..validation.fingerprints import have_same_bits
from .tree import Node, total

# The value of a buffer after a step: the mean over the samples; that of the first shard; equal in all shards.
Rule = Literal["mean", "first", "same"]


class Changed(NamedTuple):
    """A buffer that shards have changed.

    Attributes:
        value: with the rule "mean" the sum over the samples.
        samples: number of samples of these shards.
        is_same: all of these shards have given it the same value.
    """

    value: Tensor
    samples: int
    rule: Rule = "mean"
    is_same: bool = True


@dataclass(slots=True)
class Partial:
    """Sums over some shards.

    Attributes:
        grads: gradients of the summed losses. Sparse ones are in `sparse` instead, by the index of the parameter.
        loss: the summed losses, without axes.
        count: the divisor of `loss`: the number of losses, or the sum of their weights. A tensor if it is known only to
            the device.
        samples: number of samples.
        buffers: the changed buffers, by index.
        executed: number of shards.
    """

    grads: list[Tensor | None]
    loss: Tensor
    count: float | Tensor
    samples: int
    buffers: dict[int, Changed]
    executed: int = 1
    sparse: dict[int, Tensor] = field(default_factory=dict)


def add(left: Partial, right: Partial) -> Partial:
    """Return the sum in the memory of `left`. `right` must not be used afterwards."""
    add_grads(left.grads, right.grads)
    left.loss = left.loss + right.loss
    left.count = left.count + right.count
    left.samples += right.samples
    left.executed += right.executed
    for place, changed in right.buffers.items():
        left.buffers[place] = _added(left.buffers[place], changed) if place in left.buffers else changed
    for place, grad in right.sparse.items():
        left.sparse[place] = left.sparse[place] + grad if place in left.sparse else grad
    return left


def add_grads(left: list[Tensor | None], right: Sequence[Tensor | None]) -> None:
    """Add `right` to `left`, in place."""
    both_left, both_right = [], []
    for place, (mine, other) in enumerate(zip(left, right, strict=True)):
        if mine is None:
            left[place] = other
        elif other is not None:
            both_left.append(mine)
            both_right.append(other)
    if both_left:
        torch._foreach_add_(both_left, both_right)


def divided(value: Tensor, count: float | Tensor) -> Tensor:
    """Return `value / count` in the type of `value`. A tensor gives the bits of the number that it holds."""
    if not isinstance(count, Tensor):
        return value / count
    wide = torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype
    return (value.to(wide) / count.to(value.device, wide)).to(value.dtype)


def check_apart(grads: Sequence[Tensor | None], others: Sequence[Sequence[Tensor | None]]) -> None:
    """Raise ValueError if two passes wrote a gradient to the same memory, so that the first one is lost."""
    held = {
        each.data_ptr()
        for other in others
        for each in other
        if each is not None and not each.is_sparse and each.numel()
    }
    if any(grad is not None and not grad.is_sparse and grad.numel() and grad.data_ptr() in held for grad in grads):
        raise ValueError(
            "two passes of the model wrote a gradient to the same memory, so the first one is lost. CUDA graphs of a "
            "model do that.\n"
            "  wrong:  model = torch.cuda.make_graphed_callables(model, samples)   # and several shards in a process\n"
            "  right:  run.step(model, ..., capture=True)\n"
            "  right:  fanwise.run(..., shards='devices'), accumulate=1"
        )


def total_into(
    sums: Sequence[Tensor], nodes: Sequence[Node[list[Tensor | None]]], shards: int, *, changes: bool
) -> list[Tensor | None]:
    """Add the gradients of all nodes along the tree over `shards`. Return `sums`, with None where no node has one.

    Args:
        sums: memory for the result.
        changes: the operands may be changed. Otherwise intermediate sums get memory of their own.
    """
    operands = sum(node.value is not None for node in nodes)
    additions = 0

    def plus(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
        nonlocal additions
        additions += 1
        if additions == operands - 1:
            return list(map(_put, sums, left, right))
        if not changes:
            left = [None if each is None else each.clone() for each in left]
        add_grads(left, right)
        return left

    result = total(nodes, shards, plus)
    return result if operands > 1 else list(map(_put, sums, result, [None] * len(result)))


def _put(out: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is not None and right is not None:
        return torch.add(left, right, out=out)
    only = left if right is None else right
    return None if only is None else out.copy_(only)


def _added(left: Changed, right: Changed) -> Changed:
    samples = left.samples + right.samples
    if left.rule == "mean":
        return Changed(left.value + right.value, samples)
    if left.rule == "first":
        return Changed(left.value, samples, "first")
    is_same = left.is_same and right.is_same and have_same_bits(left.value, right.value)
    return Changed(left.value, samples, "same", is_same)

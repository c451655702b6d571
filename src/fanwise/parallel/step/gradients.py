"""The result of a shard, and the addition of two results.

A list of gradients has one entry per parameter of the model. The entry is None if the loss did not use the parameter,
which is not the same as a gradient of zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..validation.fingerprints import have_same_bits
from .tree import Node, tree_reduce

# Rule for combining the values of a buffer: mean over the samples, value of the first shard, or all must be equal.
Rule = Literal["mean", "first", "same"]


class BufferUpdate(NamedTuple):
    """The combined value of a buffer after some shards that have changed it."""

    value: Tensor  # with the rule "mean", the sum over the samples instead of their mean
    samples: int
    rule: Rule = "mean"
    is_same: bool = True  # with the rule "same", whether the value is the same after all of these shards


@dataclass(slots=True)
class Partial:
    """Sums over some shards.

    `count` is the divisor of `loss`: the number of losses, or the sum of their weights. It is a tensor on an
    accelerator if the program computed it there.
    """

    grads: list[Tensor | None]  # dense gradients of the summed losses
    loss: Tensor
    count: float | Tensor
    samples: int
    buffers: dict[int, BufferUpdate]  # the changed buffers, by index
    executed: int = 1  # number of executed shards
    sparse: dict[int, Tensor] = field(default_factory=dict)  # sparse gradients, by the index of the parameter


def add(left: Partial, right: Partial) -> Partial:
    """Return the sum in the memory of `left`. `right` must not be used afterwards."""
    add_grads(left.grads, right.grads)
    left.loss = left.loss + right.loss
    left.count = left.count + right.count
    left.samples += right.samples
    left.executed += right.executed
    for index, update in right.buffers.items():
        left.buffers[index] = _add_updates(left.buffers[index], update) if index in left.buffers else update
    for index, grad in right.sparse.items():
        left.sparse[index] = left.sparse[index] + grad if index in left.sparse else grad
    return left


def add_grads(left: list[Tensor | None], right: Sequence[Tensor | None]) -> None:
    """Add `right` to `left`, in place. Raise ValueError if both share memory, so that the first gradients are lost."""
    both_left, both_right = [], []
    for index, (left_grad, right_grad) in enumerate(zip(left, right, strict=True)):
        if left_grad is None:
            left[index] = right_grad
        elif right_grad is not None:
            both_left.append(left_grad)
            both_right.append(right_grad)
    if not both_left:
        return
    one, other = both_left[0], both_right[0]
    is_dense = one.layout is other.layout is torch.strided
    if is_dense and one.numel() and one.data_ptr() == other.data_ptr():
        raise ValueError(
            "two passes of the model wrote a gradient to the same memory, so the first one is lost. CUDA graphs of a "
            "model do that.\n"
            "  wrong:  model = torch.cuda.make_graphed_callables(model, samples)   # and several shards in a process\n"
            "  right:  run.step(model, ..., capture=True)\n"
            "  right:  fanwise.run(..., shards='devices')"
        )
    torch._foreach_add_(both_left, both_right)


def divided(value: Tensor, count: float | Tensor) -> Tensor:
    """Return `value / count` in the type of `value`, with the same bits for a number and for a tensor of it."""
    if not isinstance(count, Tensor):
        return value / count
    wide = torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype
    return (value.to(wide) / count.to(value.device, wide)).to(value.dtype)


def total_into(
    sums: Sequence[Tensor], nodes: Sequence[Node[list[Tensor | None]]], shards: int, *, changes: bool
) -> list[Tensor | None]:
    """Add the gradients of all nodes along the tree over `shards`. Return `sums`, with None where no node has one.

    `changes`: True if the operands may be changed. Otherwise intermediate sums get their own memory.
    """
    operands = sum(node.value is not None for node in nodes)
    additions = 0

    def plus(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
        nonlocal additions
        additions += 1
        if additions == operands - 1:
            return list(map(_store_sum, sums, left, right))
        if not changes:
            left = [None if grad is None else grad.clone() for grad in left]
        add_grads(left, right)
        return left

    result = tree_reduce(nodes, shards, plus)
    return result if operands > 1 else list(map(_store_sum, sums, result, [None] * len(result)))


def _store_sum(out: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is not None and right is not None:
        return torch.add(left, right, out=out)
    only = left if right is None else right
    return None if only is None else out.copy_(only)


def _add_updates(left: BufferUpdate, right: BufferUpdate) -> BufferUpdate:
    samples = left.samples + right.samples
    if left.rule == "mean":
        return BufferUpdate(left.value + right.value, samples)
    if left.rule == "first":
        return BufferUpdate(left.value, samples, "first")
    is_same = left.is_same and right.is_same and have_same_bits(left.value, right.value)
    return BufferUpdate(left.value, samples, "same", is_same)

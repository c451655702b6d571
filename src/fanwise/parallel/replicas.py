"""A device at work: it executes shards of a step on its replica of the model.

    ShardWork (index, content, samples) --forward, loss, backward--> Partial --tree--> nodes for the shards it executed

`Device` is all that a step knows of devices. `LocalDevice` is a device of this process. Devices that share a memory, as
all CPU devices of one process do, share the model too and take turns: a copy would hold the same numbers. What must
not be shared - gradients, buffers that change, the stream of random numbers - begins anew with each shard.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..tensor.random.keys import Key
from .buffers import Buffers
from .chance import stream
from .gradients import Partial, add
from .losses import LossReader
from .shards import Node, TreeSum
from .splitting import Content, arguments

LossFn = Callable[..., Any]  # Any: called with the model and the members of a batch; see losses.py for the result


@dataclass(frozen=True, slots=True)
class ShardWork:
    """One shard of a step. Without samples it is not executed.

    `read` gives its content. `alone`: no other shard of the batch has samples, so what the model's buffers become is
    the result.
    """

    index: int
    read: Callable[[int], Content | None]
    samples: int
    alone: bool


class Device(Protocol):
    """Executes shards."""

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        """The nodes of the tree over `shards` that cover `work`, which are consecutive shards.

        Args:
            key: of this step; each shard draws from the key that its index gives.
        """
        ...


@dataclass(slots=True)
class Replica:
    """The model of one memory, and what is needed to differentiate its loss."""

    model: nn.Module
    params: list[nn.Parameter]
    loss_fn: LossFn
    autocast: torch.dtype | None
    buffers: Buffers
    reader: LossReader

    def differentiate(self, work: ShardWork, key: Key) -> Partial:
        """Forward and backward of one shard. The gradients are moved out of the parameters."""
        content = work.read(work.index)
        assert content is not None, "a shard without samples is not executed"
        with stream(key.fold_in(work.index)):
            with self._precision():
                result = self.loss_fn(self.model, *arguments(content))
            loss, count = self.reader.read(result, work.samples)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        grads: list[Tensor | None] = []
        for param in self.params:
            grads.append(param.grad)
            param.grad = None
        changed = {} if work.alone else self.buffers.take(work.samples)
        return Partial(grads, loss.detach(), count, work.samples, changed)

    def _precision(self) -> "torch.autocast | nullcontext[None]":
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.params[0].device.type, self.autocast)


class LocalDevice:
    """A device of this process."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        tree: TreeSum[Partial] = TreeSum(shards, add)
        for each in work:
            value = self._differentiate(each, key, shards) if each.samples else None
            tree.put(Node(each.index, each.index + 1, value))
        return tree.nodes

    def _differentiate(self, work: ShardWork, key: Key, shards: int) -> Partial:
        try:
            return self._replica.differentiate(work, key)
        except Exception as error:
            error.add_note(f"in shard {work.index} of {shards}, which has {work.samples} samples of the batch")
            raise

"""What a process tells the others about a node of the tree: all but its gradients, which travel by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from .gradients import Partial
from .shards import Node
from .splitting import moved


@dataclass(frozen=True, slots=True)
class Brought:
    """What a node over the shards from `start` to before `stop` holds besides its gradients.

    `reached`: of which parameters it has a gradient; empty: none of its shards had samples.
    """

    start: int
    stop: int
    reached: bytes = b""
    loss: float = 0.0
    loss_type: torch.dtype = torch.float32
    count: float = 0
    samples: int = 0
    buffers: dict[int, tuple[npt.NDArray[Any], int]] = field(default_factory=dict)
    executed: int = 0

    def node(self) -> Node[Partial]:
        """The node, without gradients."""
        if not self.reached:
            return Node(self.start, self.stop, None)
        loss = torch.tensor(self.loss, dtype=self.loss_type)
        buffers = {place: (torch.from_numpy(buffer), samples) for place, (buffer, samples) in self.buffers.items()}
        value = Partial([], loss, self.count, self.samples, buffers, self.executed)
        return Node(self.start, self.stop, value)


def brought(node: Node[Partial]) -> Brought:
    """What `node` holds besides its gradients; tensors in main memory."""
    value = node.value
    if value is None:
        return Brought(node.start, node.stop)
    reached = bytes(grad is not None for grad in value.grads)
    values = in_main_memory([buffer for buffer, _ in value.buffers.values()])
    both = zip(value.buffers.items(), values, strict=True)
    buffers = {place: (buffer.numpy(), samples) for (place, (_, samples)), buffer in both}
    loss, samples = value.loss, value.samples
    return Brought(
        node.start, node.stop, reached, loss.item(), loss.dtype, value.count, samples, buffers, value.executed
    )


def to_device(done: Partial, device: torch.device) -> Partial:
    """What was gathered goes back to the device; gradients are there."""
    if device.type != "cpu":
        done.loss = moved(done.loss, device)
        done.buffers = {place: (moved(value, device), samples) for place, (value, samples) in done.buffers.items()}
    return done


def in_main_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same values there; those that are elsewhere come in one copy for each type, as each copy waits."""
    elsewhere: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            elsewhere.setdefault(tensor.dtype, []).append(place)
    found = list(tensors)
    for places in elsewhere.values():
        flat = torch.cat([tensors[place].reshape(-1) for place in places]).cpu()
        parts = torch.split(flat, [tensors[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            found[place] = part.view(tensors[place].shape)
    return found

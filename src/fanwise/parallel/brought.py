"""What a process tells the others about a node of the tree: all but its gradients, which travel by themselves."""

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch

from .gradients import Partial
from .shards import Node


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
    buffers = {place: (buffer.cpu().numpy(), samples) for place, (buffer, samples) in value.buffers.items()}
    loss, samples = value.loss, value.samples
    return Brought(
        node.start, node.stop, reached, loss.item(), loss.dtype, value.count, samples, buffers, value.executed
    )

"""What a process tells the others about a node of the tree: all but its gradients, which travel by themselves."""

from dataclasses import dataclass, field

from torch import Tensor

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
    loss: Tensor | None = None
    count: float = 0
    samples: int = 0
    buffers: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    executed: int = 0

    def node(self) -> Node[Partial]:
        """The node, without gradients."""
        if not self.reached:
            return Node(self.start, self.stop, None)
        assert self.loss is not None, "it has samples"
        value = Partial([], self.loss, self.count, self.samples, self.buffers, self.executed)
        return Node(self.start, self.stop, value)


def brought(node: Node[Partial]) -> Brought:
    """What `node` holds besides its gradients; tensors in main memory."""
    value = node.value
    if value is None:
        return Brought(node.start, node.stop)
    reached = bytes(grad is not None for grad in value.grads)
    buffers = {place: (buffer.cpu(), samples) for place, (buffer, samples) in value.buffers.items()}
    return Brought(
        node.start, node.stop, reached, value.loss.cpu(), value.count, value.samples, buffers, value.executed
    )

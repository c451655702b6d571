"""The parts of a node besides its gradients, as one process sends them to the others.

Every process sends them in each step, so `NodeInfo` consists of types that are pickled quickly.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from ..data.batch import copy_to_device
from ..step.gradients import BufferUpdate, Partial, Rule
from ..step.tree import Node


class NodeInfo(NamedTuple):
    """A node over the shards `start` to `stop - 1`, without its gradients. Other fields as of `Partial`."""

    start: int
    stop: int
    has_grad: bytes = b""  # for each parameter, 1 if the node has a gradient of it, else 0. Empty: no samples
    loss: float = 0.0
    loss_type: str = "float32"
    loss_count: float = 0  # `Partial.count`
    samples: int = 0
    buffers: Sequence[tuple[int, npt.NDArray[Any], int, Rule, bool]] = ()  # index, and fields of `BufferUpdate`
    executed: int = 0
    sparse: Sequence[tuple[int, Tensor]] = ()

    def node(self) -> Node[Partial]:
        """Return the node, with an empty list of gradients."""
        if not self.has_grad:
            return Node(self.start, self.stop, None)
        loss = torch.tensor(self.loss, dtype=getattr(torch, self.loss_type))
        buffers = {
            index: BufferUpdate(torch.from_numpy(value), samples, rule, is_same)
            for index, value, samples, rule, is_same in self.buffers
        }
        partial = Partial([], loss, self.loss_count, self.samples, buffers, self.executed, dict(self.sparse))
        return Node(self.start, self.stop, partial)


def infos_of(nodes: Sequence[Node[Partial]]) -> list[NodeInfo]:
    """Return the infos of these nodes. Waits for the device once for each type of tensor."""
    values = [node.value for node in nodes if node.value is not None]
    tensors = [value.loss for value in values]
    tensors += [update.value for value in values for update in value.buffers.values()]
    on_host = in_main_memory(tensors)
    losses, buffers = iter(on_host[: len(values)]), iter(on_host[len(values) :])
    return [
        NodeInfo(node.start, node.stop)
        if node.value is None
        else _info(node.start, node.stop, node.value, next(losses), buffers)
        for node in nodes
    ]


def _info(start: int, stop: int, value: Partial, loss: Tensor, host_buffers: Iterator[Tensor]) -> NodeInfo:
    return NodeInfo(
        start,
        stop,
        bytes([grad is not None for grad in value.grads]),
        loss.item(),
        str(loss.dtype).removeprefix("torch."),
        value.count.item() if isinstance(value.count, Tensor) else value.count,
        value.samples,
        [(index, next(host_buffers).numpy(), *update[1:]) for index, update in value.buffers.items()],
        value.executed,
        [(index, grad.cpu()) for index, grad in value.sparse.items()],
    )


def to_device(result: Partial, device: torch.device) -> Partial:
    """Copy all values but the gradients to the device, in place. Return `result`."""
    if device.type != "cpu":
        result.loss = copy_to_device(result.loss, device)
        result.buffers = {
            index: update._replace(value=copy_to_device(update.value, device))
            for index, update in result.buffers.items()
        }
        result.sparse = {index: copy_to_device(grad, device) for index, grad in result.sparse.items()}
    return result


def in_main_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors in main memory, by one copy for each type, because a copy waits for the device."""
    indices_by_type: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if not tensor.is_cpu:
            indices_by_type.setdefault(tensor.dtype, []).append(index)
    on_host = list(tensors)
    for indices in indices_by_type.values():
        flat = torch.cat([tensors[index].reshape(-1) for index in indices]).cpu()
        parts = torch.split(flat, [tensors[index].numel() for index in indices])
        for index, part in zip(indices, parts, strict=True):
            on_host[index] = part.view(tensors[index].shape)
    return on_host

"""The data of a process's nodes of the tree besides the gradients, as it is sent to the others.

    nodes --encode_nodes--> plain tuples --pickle, another process--> decode_nodes --> a NodeInfo for each

Every process sends this once in each step, so it consists of types that are pickled quickly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ..data.batch import copy_to_device
from ..step.gradients import BufferUpdate, Partial, Rule
from ..step.tree import Node

Plain = list[tuple[Any, ...]]  # Any: the fields of a NodeInfo


@dataclass(slots=True)
class NodeInfo:
    """A node over the shards from `start` to before `stop`, without its gradients.

    Attributes:
        has_grad: which parameters have a gradient; empty: none of the shards had samples.
        loss_type: the name of its torch.dtype.
        buffers: index, value, and the other fields of a `BufferUpdate`.
        sparse: the parts of sparse gradients.
    """

    start: int
    stop: int
    has_grad: bytes = b""
    loss: float = 0.0
    loss_type: str = "float32"
    count: float = 0
    samples: int = 0
    buffers: Sequence[tuple[int, npt.NDArray[Any], int, Rule, bool]] = ()
    executed: int = 0
    sparse: Sequence[tuple[int, Tensor, Tensor, tuple[int, ...], bool]] = ()

    def node(self) -> Node[Partial]:
        if not self.has_grad:
            return Node(self.start, self.stop, None)
        loss = torch.tensor(self.loss, dtype=getattr(torch, self.loss_type))
        buffers = {
            index: BufferUpdate(torch.from_numpy(buffer), samples, rule, is_same)
            for index, buffer, samples, rule, is_same in self.buffers
        }
        sparse = dict(map(_sparse_gradient, self.sparse))
        return Node(self.start, self.stop, Partial([], loss, self.count, self.samples, buffers, self.executed, sparse))


def encode_nodes(nodes: Sequence[Node[Partial]]) -> Plain:
    """Return these nodes without gradients, in main memory. Waits for the device once for each type of tensor."""
    values = [node.value for node in nodes if node.value is not None]
    tensors = [value.loss for value in values]
    tensors += [update.value for value in values for update in value.buffers.values()]
    on_host = in_main_memory(tensors)
    losses, buffers = iter(on_host[: len(values)]), iter(on_host[len(values) :])
    return [
        (node.start, node.stop)
        if node.value is None
        else (node.start, node.stop, *_encode(node.value, next(losses), buffers))
        for node in nodes
    ]


def _encode(value: Partial, loss: Tensor, host_buffers: Iterator[Tensor]) -> tuple[Any, ...]:  # Any: of a NodeInfo
    has_grad = bytes([grad is not None for grad in value.grads])
    buffers = [(index, next(host_buffers).numpy(), *update[1:]) for index, update in value.buffers.items()]
    loss_type = str(loss.dtype).removeprefix("torch.")
    count = value.count.item() if isinstance(value.count, Tensor) else value.count
    fields = has_grad, loss.item(), loss_type, count, value.samples, buffers, value.executed
    return (*fields, [_parts(index, grad.cpu()) for index, grad in value.sparse.items()]) if value.sparse else fields


def _parts(index: int, grad: Tensor) -> tuple[int, Tensor, Tensor, tuple[int, ...], bool]:
    """The parts of a sparse gradient. Entries for the same element are not added yet."""
    return index, grad._indices(), grad._values(), tuple(grad.shape), grad.is_coalesced()


def _sparse_gradient(parts: tuple[int, Tensor, Tensor, tuple[int, ...], bool]) -> tuple[int, Tensor]:
    index, indices, values, shape, is_coalesced = parts
    grad = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)
    return index, grad


def decode_nodes(nodes: Plain) -> list[NodeInfo]:
    return [NodeInfo(*fields) for fields in nodes]


def to_device(result: Partial, device: torch.device) -> Partial:
    """Copy all values but the gradients back to the device."""
    if device.type != "cpu":
        result.loss = copy_to_device(result.loss, device)
        result.buffers = {
            index: update._replace(value=copy_to_device(update.value, device))
            for index, update in result.buffers.items()
        }
        result.sparse = {index: copy_to_device(grad, device) for index, grad in result.sparse.items()}
    return result


def in_main_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same values in main memory, by one copy for each type, because each copy waits for the device."""
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

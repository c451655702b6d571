"""What a process tells the others about its nodes of the tree: all but the gradients, which travel by themselves.

    nodes --tell--> plain tuples --pickle, the other process--> hear --> what each of them holds

Told once a step by every process, so it is made of what is pickled quickly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ..data.batch import copy_to_device
from ..replica.gradients import Changed, Partial, Rule
from ..shards import Node

Plain = list[tuple[Any, ...]]  # Any: what a NodeInfo consists of


@dataclass(slots=True)
class NodeInfo:
    """What a node over the shards from `start` to before `stop` holds besides its gradients.

    `reached`: of which parameters it has a gradient; empty: none of its shards had samples. `loss_type`: of torch, by
    its name. `buffers`: by their place, with what else a `Changed` holds. `sparse`: gradients in their parts.
    """

    start: int
    stop: int
    reached: bytes = b""
    loss: float = 0.0
    loss_type: str = "float32"
    count: float = 0
    samples: int = 0
    buffers: Sequence[tuple[int, npt.NDArray[Any], int, Rule, bool]] = ()
    executed: int = 0
    sparse: Sequence[tuple[int, Tensor, Tensor, tuple[int, ...], bool]] = ()

    def node(self) -> Node[Partial]:
        """The node, without gradients."""
        if not self.reached:
            return Node(self.start, self.stop, None)
        loss = torch.tensor(self.loss, dtype=getattr(torch, self.loss_type))
        buffers = {
            place: Changed(torch.from_numpy(buffer), samples, rule, is_same)
            for place, buffer, samples, rule, is_same in self.buffers
        }
        sparse = dict(map(_sparse, self.sparse))
        return Node(self.start, self.stop, Partial([], loss, self.count, self.samples, buffers, self.executed, sparse))


def tell(nodes: Iterable[Node[Partial]]) -> Plain:
    """What these nodes hold besides their gradients, for another process; tensors in main memory."""
    return [_told(node.start, node.stop, node.value) for node in nodes]


def _told(start: int, stop: int, value: Partial | None) -> tuple[Any, ...]:  # Any: of a NodeInfo
    if value is None:
        return start, stop
    reached = bytes([grad is not None for grad in value.grads])
    values = in_main_memory([changed.value for changed in value.buffers.values()]) if value.buffers else []
    both = zip(value.buffers.items(), values, strict=True)
    buffers = [(place, buffer.numpy(), *changed[1:]) for (place, changed), buffer in both]
    loss_type = str(value.loss.dtype).removeprefix("torch.")
    loss = value.loss.item()
    count = value.count.item() if isinstance(value.count, Tensor) else value.count
    told = start, stop, reached, loss, loss_type, count, value.samples, buffers, value.executed
    if not value.sparse:
        return told
    return *told, [_parts(place, grad.cpu()) for place, grad in value.sparse.items()]


def _parts(place: int, grad: Tensor) -> tuple[int, Tensor, Tensor, tuple[int, ...], bool]:
    """Of a sparse gradient, as it is: entries that stand for the same place of it are not added yet."""
    return place, grad._indices(), grad._values(), tuple(grad.shape), grad.is_coalesced()


def _sparse(parts: tuple[int, Tensor, Tensor, tuple[int, ...], bool]) -> tuple[int, Tensor]:
    place, indices, values, shape, is_coalesced = parts
    made = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)
    return place, made


def hear(told: Plain) -> list[NodeInfo]:
    """What `tell` made."""
    return [NodeInfo(*each) for each in told]


def to_device(done: Partial, device: torch.device) -> Partial:
    """What was gathered goes back to the device; gradients are there."""
    if device.type != "cpu":
        done.loss = copy_to_device(done.loss, device)
        done.buffers = {
            place: changed._replace(value=copy_to_device(changed.value, device))
            for place, changed in done.buffers.items()
        }
        done.sparse = {place: copy_to_device(grad, device) for place, grad in done.sparse.items()}
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

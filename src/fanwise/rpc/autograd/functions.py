"""The two autograd functions that stand where a graph crosses from one worker to another.

    sender:    t.grad_fn <-- Send                 made when a message is closed; its inputs are the tensors sent
    receiver:            Recv <-- t' <-- ...      made when it is opened; its outputs are the tensors received

They carry the names of torch's C++ nodes, because people look for these in graphs. A Send is never run: what arrives
for it goes straight to the functions behind it. A Recv runs as any node does, so all hooks on received tensors fire,
and keeps what it was given until it is fetched; in a backward pass of torch's own it raises. Knows no context and no
message.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch.autograd import Function
from torch.autograd.graph import Node

Grads = tuple[torch.Tensor | None, ...]


class RecvNode(Protocol):
    """The node of a Recv, as far as we use it."""

    arrived: Grads | None
    is_expected: bool


class _Send(Function):
    @staticmethod
    def forward(_ctx: Any, devices: list[torch.device], *tensors: torch.Tensor) -> torch.Tensor:
        devices.extend(tensor.device for tensor in tensors)
        return torch.empty(0)

    @staticmethod
    def backward(_ctx: Any, *_grads: Any) -> Any:
        raise AssertionError("a Send is passed over")


class _Recv(Function):
    @staticmethod
    def forward(ctx: Any, _anchor: torch.Tensor, tensors: list[torch.Tensor]) -> Grads:
        ctx.set_materialize_grads(False)
        ctx.is_expected = False
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, None]:
        if not ctx.is_expected:
            raise RuntimeError(
                "loss.backward() reached a tensor that another worker sent in a context of distributed autograd, and "
                "the gradients behind it would be lost.\n"
                "Call fanwise.rpc.autograd.backward(context_id, [loss]) instead; or detach() the tensor, if no "
                "gradient shall flow through it."
            )
        ctx.arrived = grads
        return None, None


# A node has the name of its Function with "Backward" behind it; only `type` makes a class with such a name.
_NAMED_SEND: Any = type("torch::distributed::autograd::SendRpc", (_Send,), {})
_NAMED_RECV: Any = type("torch::distributed::autograd::RecvRpc", (_Recv,), {})


class Sent:
    """What one message has sent: the node of its Send, and where each of its tensors lies."""

    __slots__ = ("_token", "devices", "node", "to")

    def __init__(self, to: int, tensors: Sequence[torch.Tensor]) -> None:
        self.to = to
        self.devices: list[torch.device] = []
        with torch.enable_grad():
            # A node made in Python lives as long as its output: the object of the node alone does not keep it.
            self._token = _NAMED_SEND.apply(self.devices, *tensors)
        self.node: Node = self._token.grad_fn

    def edges(self) -> list[tuple[Node, int]]:
        """For each tensor the function that made it, and which of its outputs it is."""
        return [(node, number) for node, number in self.node.next_functions if node is not None]


def receive(tensors: list[torch.Tensor]) -> tuple[Node | None, list[torch.Tensor]]:
    """Give those of the tensors that require grad a history: one Recv. None when there are none of these."""
    wanted = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
    if not wanted:
        return None, tensors
    # Detached, they are new to autograd and become the function's own outputs: no views, free to be changed in place.
    bare = [tensors[index].detach() for index in wanted]
    with torch.enable_grad():
        # An anchor each: through a common one, whoever reaches one Recv would seem to reach all.
        outputs = _NAMED_RECV.apply(torch.empty(0, requires_grad=True), bare)
    received = list(tensors)
    for index, output in zip(wanted, outputs, strict=True):
        received[index] = output
    node: Node = outputs[0].grad_fn
    cast(RecvNode, node).arrived = None
    return node, received


def expect(node: Node) -> None:
    """A Recv is about to run in a distributed backward pass. `take_arrived` ends that."""
    cast(RecvNode, node).is_expected = True


def take_arrived(node: Node) -> Grads | None:
    """What a Recv was given when it ran, and forget it. None: it has not run."""
    recv = cast(RecvNode, node)
    recv.is_expected = False
    arrived, recv.arrived = recv.arrived, None
    return arrived

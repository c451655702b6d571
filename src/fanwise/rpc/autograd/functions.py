"""The autograd functions at the edges of a worker's graph, under the names of torch's C++ nodes.

    sender:    t.grad_fn <-- Send                 created when a message is serialized; its inputs are the tensors sent
    receiver:            Recv <-- t' <-- ...      created when it is deserialized; its outputs are the tensors received

A Send never runs: gradients that arrive for it go straight to the functions behind it. A Recv runs as any node, so
the hooks of received tensors fire, and keeps its gradients until they are fetched; in a backward pass of torch's own
it raises.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch.autograd import Function
from torch.autograd.graph import Node

from .messages import Grads


class _RecvNode(Protocol):
    """The attributes of a Recv's node that are set here."""

    grads: Grads | None
    is_expected: bool


class _Send(Function):
    @staticmethod
    def forward(_ctx: Any, devices: list[torch.device], *tensors: torch.Tensor) -> torch.Tensor:
        devices.extend(tensor.device for tensor in tensors)
        return torch.empty(0)

    @staticmethod
    def backward(_ctx: Any, *_grads: Any) -> Any:
        raise AssertionError("a Send never runs")


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
        ctx.grads = grads
        return None, None


# A node has the name of its Function with "Backward" appended; only `type` creates a class with such a name.
_NAMED_SEND: Any = type("torch::distributed::autograd::SendRpc", (_Send,), {})
_NAMED_RECV: Any = type("torch::distributed::autograd::RecvRpc", (_Recv,), {})


class Sent:
    """The tensors that one message sent to worker `to`: the node of its Send, and their devices."""

    __slots__ = ("_output", "devices", "node", "to")

    def __init__(self, to: int, tensors: Sequence[torch.Tensor]) -> None:
        self.to = to
        self.devices: list[torch.device] = []
        with torch.enable_grad():
            # A node created in Python lives as long as its output; the node object alone does not keep it alive.
            self._output = _NAMED_SEND.apply(self.devices, *tensors)
        self.node: Node = self._output.grad_fn

    def edges(self) -> list[tuple[Node, int]]:
        """Return for each tensor the function that computed it, and which of its outputs it is."""
        return [(node, number) for node, number in self.node.next_functions if node is not None]


def receive(tensors: list[torch.Tensor]) -> tuple[Node | None, list[torch.Tensor]]:
    """Attach the tensors that require grad to one Recv. Return its node, or None, and the tensors."""
    indices = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
    if not indices:
        return None, tensors
    # Detached tensors become the function's own outputs: no views, so they may be changed in place.
    detached = [tensors[index].detach() for index in indices]
    with torch.enable_grad():
        # Each Recv has its own anchor; with a shared one, every path to one Recv would seem to lead to all.
        outputs = _NAMED_RECV.apply(torch.empty(0, requires_grad=True), detached)
    received = list(tensors)
    for index, output in zip(indices, outputs, strict=True):
        received[index] = output
    node: Node = outputs[0].grad_fn
    cast(_RecvNode, node).grads = None
    return node, received


def expect(node: Node) -> None:
    """Allow a Recv to run, until `take_grads`."""
    cast(_RecvNode, node).is_expected = True


def take_grads(node: Node) -> Grads | None:
    """Remove and return the gradients of a Recv; None if it has not run."""
    recv = cast(_RecvNode, node)
    recv.is_expected = False
    grads, recv.grads = recv.grads, None
    return grads

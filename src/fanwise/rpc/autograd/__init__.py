"""autograd: backward through remote calls. A drop-in for `torch.distributed.autograd`.

    with autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", forward, args=(x,)).sum()
        autograd.backward(context_id, [loss])
        grads = autograd.get_gradients(context_id)      # {leaf: gradient}; `.grad` stays as it is

Where this differs from torch: what was sent and not used gets no gradient, where torch waits for ever; a leaf that
gets no gradient is not in the answer, where torch may have zeros; a worker's death ends in `WorkerLostError`.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from .contexts import WORKER_SHIFT
from .contexts import Context as DistAutogradContext
from .service import Service

if TYPE_CHECKING:
    from ..agent import Agent

__all__ = ["DistAutogradContext", "backward", "context", "get_gradients", "is_available"]

# The autograd of the worker that this process is.
_service: Service | None = None


def attach(agent: "Agent") -> Service:
    """Distributed autograd for this agent, from now on that of this process. Called by `init_rpc`."""
    global _service
    service = Service(agent)
    serializer = getattr(agent, "serializer", None)
    if serializer is not None:
        serializer.autograd = service
        if serializer.allowed is not None:
            service.load_error = None
    _service = service
    return service


def detach() -> None:
    """This process is no worker any more. Called by `shutdown`."""
    global _service
    _service = None


def _serving() -> Service:
    if _service is None:
        raise RuntimeError("Need to initialize distributed autograd first: call fanwise.rpc.init_rpc.")
    return _service


def is_available() -> bool:
    """Whether this package can be used; torch's programs ask."""
    return True


class context:
    """Distributed backward passes and their gradients, from `with context() as context_id` to its end.

    Calls made inside carry the context along. Leaving it releases it on all workers; they are told, not waited for.

    Raises:
        RuntimeError: this thread is in a context already, or this process is no worker.

    Example::

        with autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", torch.add, args=(t1, t2)).sum()
            autograd.backward(context_id, [loss])
    """

    def __enter__(self) -> int:
        self.autograd_context = _new_context()
        return self.autograd_context._context_id()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _service is not None:
            _service.leave(self.autograd_context.id)


def backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """Run backward from `roots` through all workers that took part; gradients of leaves go into the context.

    Blocks until the pass is over on all of them. Gradients of several passes in a context add up.

    Args:
        context_id: what `context()` gave.
        roots: scalars with history, made in this context.
        retain_graph: keep what is needed to run backward again.

    Raises:
        RuntimeError: the context is not known, a root is not a scalar or has no history, or the user's code on some
            worker failed ("Error on Node 2: ..."; also caught as the type that was raised there).
        WorkerLostError: a worker through which gradients flow is lost.
    """
    if not isinstance(context_id, int) or not isinstance(roots, (list, tuple)):
        raise TypeError(
            f"backward(): incompatible function arguments: expected (context_id: int, roots: list of tensors, "
            f"retain_graph: bool = False), got ({type(context_id).__name__}, {type(roots).__name__})"
        )
    service = _serving()
    service.contexts.get(context_id)
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for root in roots:
        _check_root(root)
    service.backward(context_id, list(roots), retain_graph)


def _check_root(root: torch.Tensor) -> None:
    if not isinstance(root, torch.Tensor):
        raise TypeError(f"backward(): incompatible function arguments: a root is a {type(root).__name__}, not a tensor")
    if not root.requires_grad:
        raise RuntimeError("requires_grad not set on root")
    if root.numel() != 1:
        raise RuntimeError(f"root of shape {tuple(root.shape)} is not a scalar, all roots need to be scalar")
    if root.grad_fn is None:
        raise RuntimeError("root does not have a valid gradient function.")


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients that passes in this context have brought to leaves of this worker, by leaf.

    Raises:
        RuntimeError: the context is not known here.
    """
    return _serving().contexts.get(context_id).gradients()


def backward_from(value: object, context_id: int, retain_graph: bool) -> None:
    """What `RRef.backward` does on the owner: a pass from the value in the context, plain backward for id -1.

    Raises:
        RuntimeError: the value is no tensor, and as `backward`.
    """
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(f"RRef should contain a tensor for .backward(), it holds a {type(value).__name__}")
    if context_id == -1:
        value.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]  # torch's
    else:
        backward(context_id, [value], retain_graph)


# -- private in torch, and used all the same -----------------------------------------------------------------------


def _new_context() -> DistAutogradContext:
    return _serving().new_context()


def _release_context(context_id: int) -> None:
    service = _serving()
    service.contexts.get(context_id)
    service.leave(context_id)


def _current_context() -> DistAutogradContext:
    return _serving().current_context()


def _has_valid_context() -> bool:
    return _service is not None and _service.has_current


def _retrieve_context(context_id: int) -> DistAutogradContext:
    return _serving().contexts.get(context_id)


def _is_valid_context(context_id: int) -> None:
    _serving().contexts.get(context_id)


def _get_max_id() -> int:
    return _serving().worker_id << WORKER_SHIFT | (1 << WORKER_SHIFT) - 1


def _get_debug_info() -> dict[str, str]:
    service = _serving()
    return {
        "num_current_backward_passes": str(service.num_passes()),
        "num_autograd_contexts": str(len(service.contexts.all())),
    }


def _init(_worker_id: int) -> None:
    """Does nothing: `init_rpc` has done it."""

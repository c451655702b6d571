"""autograd: backward through remote calls. A drop-in for `torch.distributed.autograd`.

    with autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", forward, args=(x,)).sum()
        autograd.backward(context_id, [loss])
        grads = autograd.get_gradients(context_id)      # {leaf: gradient}; `.grad` is unchanged

Differences from torch: tensors that were sent and not used get no gradient, where torch waits for ever; a leaf without
a gradient is not in `get_gradients`, where torch may have zeros; the loss of a worker raises `WorkerLostError`.
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

# The distributed autograd of this process, while it is a worker.
_service: Service | None = None


def attach(agent: "Agent") -> Service:
    """Start distributed autograd of this process. Called by `init_rpc`."""
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
    """End distributed autograd of this process. Called by `shutdown`."""
    global _service
    _service = None


def _get_service() -> Service:
    if _service is None:
        raise RuntimeError("Need to initialize distributed autograd first: call fanwise.rpc.init_rpc.")
    return _service


def is_available() -> bool:
    """Return True: distributed autograd can be used. Programs written for torch ask."""
    return True


class context:
    """A context of distributed autograd: `with context() as context_id`. It collects the gradients of its passes.

    Calls made inside carry the context along. Leaving it releases it on all workers, without waiting for them.

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
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _service is not None:
            _service.leave(self.autograd_context.id)


def backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """Run backward from `roots` through all workers of the context, and add the gradients of leaves to the context.

    Blocks until the pass has ended on all workers.

    Args:
        context_id: id of the context in which `roots` were computed.
        roots: scalars with history.
        retain_graph: keep the graph, to run backward again.

    Raises:
        RuntimeError: the context is unknown, a root is not a scalar or has no history, or the user's code failed on a
            worker ("Error on Node 2: ..."; it can also be caught by its original type).
        WorkerLostError: a worker through which gradients flow is lost.
    """
    if not isinstance(context_id, int) or not isinstance(roots, (list, tuple)):
        raise TypeError(
            f"backward(): incompatible function arguments: expected (context_id: int, roots: list of tensors, "
            f"retain_graph: bool = False), got ({type(context_id).__name__}, {type(roots).__name__})"
        )
    service = _get_service()
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
    """Return the gradients of the leaves of this worker in a context.

    Raises:
        RuntimeError: the context is unknown on this worker.
    """
    return _retrieve_context(context_id).gradients()


def backward_from(value: object, context_id: int, retain_graph: bool) -> None:
    """Run `RRef.backward` on the owner: from `value`, in the context, or as `value.backward()` for id -1.

    Raises:
        RuntimeError: the value is no tensor, and as `backward`.
    """
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(f"RRef should contain a tensor for .backward(), it holds a {type(value).__name__}")
    if context_id == -1:
        value.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]  # torch's
    else:
        backward(context_id, [value], retain_graph)


# -- private names of torch that programs use --------------------------------------------------------------------------


def _new_context() -> DistAutogradContext:
    return _get_service().new_context()


def _release_context(context_id: int) -> None:
    _is_valid_context(context_id)
    _get_service().leave(context_id)


def _current_context() -> DistAutogradContext:
    return _get_service().current_context()


def _has_valid_context() -> bool:
    return _service is not None and _service.has_current


def _retrieve_context(context_id: int) -> DistAutogradContext:
    return _get_service().contexts.get(context_id)


def _is_valid_context(context_id: int) -> None:
    _retrieve_context(context_id)


def _get_max_id() -> int:
    return _get_service().worker_id << WORKER_SHIFT | (1 << WORKER_SHIFT) - 1


def _get_debug_info() -> dict[str, str]:
    service = _get_service()
    return {
        "num_current_backward_passes": str(service.num_passes()),
        "num_autograd_contexts": str(len(service.contexts.all())),
    }


def _init(_worker_id: int) -> None:
    """Do nothing: `init_rpc` has initialized autograd."""

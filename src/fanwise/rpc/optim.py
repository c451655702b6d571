"""DistributedOptimizer: steps parameters on several workers with the gradients of an autograd context.

    DistributedOptimizer --one optimizer per owner--> there: torch.optim, on the parameters of that owner
    step(context_id)     --all owners at once-->      gradients of the context --> optimizer.step()

A drop-in for `torch.distributed.optim.DistributedOptimizer`. An owner uses the plain optimizer of `torch.optim`,
without TorchScript. Gradients come from the context; `.grad` of the parameters is restored afterwards.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.futures import Future

from . import agent as _agent
from . import autograd
from .calls import rpc_async
from .references.rref import RRef
from .worker_info import WorkerInfo

# Optimizers of several trainers may share parameters, which only one may step at a time.
_step_lock = threading.Lock()


class DistributedOptimizer:
    """An optimizer of parameters that live on several workers.

    Args:
        optimizer_class: class of `torch.optim`, or one with the same interface.
        params_rref: references to the parameters.
        args, kwargs: arguments of the optimizers.

    Attributes:
        remote_optimizers: references to the optimizers, one per owner.

    Raises:
        The error of the optimizer's constructor on a worker. Blocks until all optimizers are created.

    Example::

        with autograd.context() as context_id:
            loss = model(x).sum()
            autograd.backward(context_id, [loss])
            optimizer = DistributedOptimizer(torch.optim.SGD, params, lr=0.05)
            optimizer.step(context_id)
    """

    is_functional_optim = False

    def __init__(
        self, optimizer_class: Any, params_rref: Sequence[RRef[torch.Tensor]], *args: Any, **kwargs: Any
    ) -> None:
        by_owner: dict[WorkerInfo, list[RRef[torch.Tensor]]] = {}
        for param in params_rref:
            by_owner.setdefault(param.owner(), []).append(param)
        futures = [
            rpc_async(owner, _new_local_optimizer, args=(optimizer_class, params, *args), kwargs=kwargs)
            for owner, params in by_owner.items()
        ]
        self.remote_optimizers: list[RRef[_LocalOptimizer]] = _wait_for_all(futures)

    def step(self, context_id: int) -> None:
        """Step all parameters with the gradients of an autograd context. Blocks until all workers have done so.

        Parameters without a gradient in the context are unchanged. Steps of several trainers on the same parameters
        run one at a time, in any order.

        Raises:
            RuntimeError: the context is unknown. The first error of an optimizer; further errors are added as notes.
        """
        autograd._is_valid_context(context_id)
        _wait_for_all([
            rpc_async(optimizer.owner(), _local_optimizer_step, args=(optimizer, context_id))
            for optimizer in self.remote_optimizers
        ])  # fmt: skip


class _LocalOptimizer:
    """The optimizer of the parameters of this worker."""

    def __init__(self, optimizer_class: Any, params_rref: Sequence[RRef[Any]], *args: Any, **kwargs: Any) -> None:
        self._params: list[torch.Tensor] = [rref.local_value() for rref in params_rref]
        self.optim = optimizer_class(self._params, *args, **kwargs)

    def step(self, context_id: int) -> None:
        grads = autograd.get_gradients(context_id)
        with _exclusive_step(), self._use_grads([grads.get(param) for param in self._params]):
            self.optim.step()

    @contextmanager
    def _use_grads(self, grads: Sequence[torch.Tensor | None]) -> Iterator[None]:
        previous = [param.grad for param in self._params]
        try:
            self._set_grads(grads)
            yield
        finally:
            self._set_grads(previous)

    def _set_grads(self, grads: Sequence[torch.Tensor | None]) -> None:
        for param, grad in zip(self._params, grads, strict=True):
            param.grad = grad


@contextmanager
def _exclusive_step() -> Iterator[None]:
    if not _step_lock.acquire(blocking=False):
        with _agent.current().waiting():
            _step_lock.acquire()
    try:
        yield
    finally:
        _step_lock.release()


def _new_local_optimizer(
    optimizer_class: Any, params_rref: Sequence[RRef[Any]], *args: Any, **kwargs: Any
) -> RRef[_LocalOptimizer]:
    return RRef(_LocalOptimizer(optimizer_class, params_rref, *args, **kwargs))


def _local_optimizer_step(optimizer: RRef[_LocalOptimizer], context_id: int) -> None:
    value = optimizer.local_value()
    if type(value) is not _LocalOptimizer:
        raise TypeError(f"cannot step a {type(value).__name__}: it is not an optimizer of this worker.")
    value.step(context_id)


def _wait_for_all(futures: Sequence["Future[Any]"]) -> list[Any]:
    """Wait for all futures. Return the results, or raise the first error with the others as notes."""
    results, errors = [], []
    for future in futures:
        try:
            results.append(future.wait())
        except Exception as error:
            errors.append(error)
    if errors:
        for further_error in errors[1:]:
            errors[0].add_note(f"Another worker: {type(further_error).__name__}: {further_error}")
        raise errors[0]
    return results

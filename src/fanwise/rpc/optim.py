"""DistributedOptimizer: steps the parameters of all workers that have some, by the gradients of an autograd context.

    DistributedOptimizer --one optimizer for each owner of parameters--> there: torch.optim, on that owner's parameters
    step(context_id)     --all owners at once-->  gradients of the context --> optimizer.step()

A drop-in for `torch.distributed.optim.DistributedOptimizer`. The optimizer on an owner is the plain one of
`torch.optim`: nothing is scripted. Gradients come from the context; `.grad` of the parameters is as before afterwards.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.futures import Future

from . import agent as _agent
from . import autograd, uncompiled
from .calls import rpc_async
from .references.rref import RRef
from .worker_info import WorkerInfo

# Optimizers of several trainers may have the same parameters, which only one can step at a time.
_one_at_a_time = threading.Lock()


class DistributedOptimizer:
    """An optimizer of parameters that live on several workers.

    Args:
        optimizer_class: of `torch.optim`, or one like these.
        params_rref: references to the parameters.
        args, kwargs: for the optimizers.

    Attributes:
        remote_optimizers: references to the optimizers, one for each owner of parameters.

    Raises:
        What the constructor of the optimizer raises on a worker. Blocks until all are made.

    Example::

        with autograd.context() as context_id:
            loss = model(x).sum()
            autograd.backward(context_id, [loss])
            optimizer = DistributedOptimizer(torch.optim.SGD, params, lr=0.05)
            optimizer.step(context_id)
    """

    is_functional_optim = False

    def __init__(
        self,
        optimizer_class: Any,
        params_rref: Sequence[RRef[torch.Tensor]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        by_owner: dict[WorkerInfo, list[RRef[torch.Tensor]]] = {}
        for param in params_rref:
            by_owner.setdefault(param.owner(), []).append(param)
        made = [
            rpc_async(owner, _new_local_optimizer, args=(optimizer_class, params, *args), kwargs=kwargs)
            for owner, params in by_owner.items()
        ]
        self.remote_optimizers: list[RRef[_LocalOptimizer]] = _wait_for_all(made)

    def step(self, context_id: int) -> None:
        """Step all parameters by the gradients of this autograd context. Blocks until all workers have.

        A parameter without a gradient in the context stays as it is. Steps of several trainers at the same parameters
        are taken one after another, in any order.

        Raises:
            RuntimeError: the context is not known. What an optimizer raised; what others raised is added as notes.
        """
        autograd._is_valid_context(context_id)
        _wait_for_all([
            rpc_async(optimizer.owner(), _local_optimizer_step, args=(optimizer, context_id))
            for optimizer in self.remote_optimizers
        ])  # fmt: skip


class _LocalOptimizer:
    """The optimizer of the parameters that this worker owns."""

    def __init__(self, optimizer_class: Any, params_rref: Sequence[RRef[Any]], *args: Any, **kwargs: Any) -> None:
        self._params: list[torch.Tensor] = [rref.local_value() for rref in params_rref]
        self.optim = uncompiled.make(optimizer_class, self._params, *args, **kwargs)

    def step(self, context_id: int) -> None:
        grads = autograd.get_gradients(context_id)
        with _alone(), self._grads_set([grads.get(param) for param in self._params]):
            uncompiled.step(self.optim)

    @contextmanager
    def _grads_set(self, grads: Sequence[torch.Tensor | None]) -> Iterator[None]:
        before = [param.grad for param in self._params]
        try:
            self._set_grads(grads)
            yield
        finally:
            self._set_grads(before)

    def _set_grads(self, grads: Sequence[torch.Tensor | None]) -> None:
        for param, grad in zip(self._params, grads, strict=True):
            param.grad = grad


@contextmanager
def _alone() -> Iterator[None]:
    if not _one_at_a_time.acquire(blocking=False):
        with _agent.current().waiting():
            _one_at_a_time.acquire()
    try:
        yield
    finally:
        _one_at_a_time.release()


def _new_local_optimizer(
    optimizer_class: Any,
    params_rref: Sequence[RRef[Any]],
    *args: Any,
    **kwargs: Any,
) -> RRef[_LocalOptimizer]:
    return RRef(_LocalOptimizer(optimizer_class, params_rref, *args, **kwargs))


def _local_optimizer_step(optimizer: RRef[_LocalOptimizer], context_id: int) -> None:
    value = optimizer.local_value()
    if type(value) is not _LocalOptimizer:
        raise TypeError(f"a step was asked of a {type(value).__name__}, which is no optimizer of this worker.")
    value.step(context_id)


def _wait_for_all(futures: Sequence["Future[Any]"]) -> list[Any]:
    """All results, when all are done; else the first error, with the others as its notes."""
    results, errors = [], []
    for future in futures:
        try:
            results.append(future.wait())
        except Exception as error:
            errors.append(error)
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"Another worker: {type(other).__name__}: {other}")
        raise errors[0]
    return results

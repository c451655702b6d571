"""Create and step optimizers of `torch.optim` without importing torch's compiler.

    create(SGD, params, lr=0.1)  -->  optimizer          step(optimizer)

Two decorators in `torch.optim` import `torch._dynamo` to hide code from the compiler: those of
`Optimizer.add_param_group` and of most `step` methods. The import takes a second of CPU time in each worker that owns
parameters. As long as the compiler is not imported, the decorators are not needed, and the undecorated functions are
called. torch's own DistributedOptimizer uses scripted copies of eight optimizers instead.

Written for torch 2.11 to 2.13. For other versions, and for steps with hooks, the decorated functions are called.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

_COMPILER = "torch._dynamo"
_DISABLED_ATTRIBUTE = "__dynamo_disable"  # where `torch._disable_dynamo` caches its result
_lock = threading.Lock()
_num_active = 0


def create(optimizer_class: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """`optimizer_class(params, *args, **kwargs)`."""
    with _undecorated_add_param_group():
        return optimizer_class(params, *args, **kwargs)


def step(optimizer: Any) -> None:
    """`optimizer.step()`."""
    undecorated = _undecorated_step(optimizer)
    if undecorated is None:
        optimizer.step()
        return
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        undecorated(optimizer)


@contextmanager
def _undecorated_add_param_group() -> Iterator[None]:
    """Bypass `torch._disable_dynamo` of `add_param_group` while the context is active."""
    global _num_active
    undecorated = getattr(torch_optimizer.Optimizer.add_param_group, "__wrapped__", None)
    if (
        undecorated is None
        or _COMPILER in sys.modules
        or (not _num_active and hasattr(undecorated, _DISABLED_ATTRIBUTE))
    ):
        yield
        return
    with _lock:
        _num_active += 1
        setattr(undecorated, _DISABLED_ATTRIBUTE, undecorated)
    try:
        yield
    finally:
        with _lock:
            _num_active -= 1
            if not _num_active:
                delattr(undecorated, _DISABLED_ATTRIBUTE)


def _undecorated_step(optimizer: Any) -> Callable[[Any], object] | None:
    """Return the undecorated step, or None to use torch's."""
    optimizer_type: Any = type(optimizer)
    if not issubclass(optimizer_type, torch_optimizer.Optimizer):  # a class of the user
        return None
    if _COMPILER in sys.modules or "step" in vars(optimizer) or _has_hooks(optimizer):
        return None
    hooked = optimizer_type.step
    decorated = hooked.__wrapped__ if getattr(hooked, "hooked", False) else hooked
    wrap = getattr(torch_optimizer, "_use_grad_for_differentiable", None)
    if wrap is None or getattr(decorated, "__code__", None) is not wrap(_undecorated_step).__code__:
        return None
    undecorated: Callable[[Any], object] = decorated.__wrapped__
    return undecorated


def _has_hooks(optimizer: torch_optimizer.Optimizer) -> bool:
    return bool(
        torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
    )

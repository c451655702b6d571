"""Optimizers of `torch.optim`, made and stepped without loading torch's compiler.

    make(SGD, params, lr=0.1)  -->  optimizer          step(optimizer)

Two places in `torch.optim` import `torch._dynamo`, to hide what they do from a compiler: `Optimizer.add_param_group`,
and what most `step` methods are wrapped in. That import takes a second of processor time in each worker that owns
parameters. While nobody has loaded it nobody compiles, so there is nobody to hide from: then the two are passed by, and
the same functions run as with it. torch's own DistributedOptimizer avoids it by scripted copies of eight optimizers.

Knows torch 2.11 to 2.13; where a torch looks otherwise, and where a step has hooks, all goes torch's way.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torchs

_COMPILER = "torch._dynamo"
_KEPT_OUT = "__dynamo_disable"  # what `torch._disable_dynamo` keeps of the function that it made, once it has
_lock = threading.Lock()
_num_making = 0


def make(optimizer_class: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """`optimizer_class(params, *args, **kwargs)`."""
    with _plain_groups():
        return optimizer_class(params, *args, **kwargs)


def step(optimizer: Any) -> None:
    """`optimizer.step()`."""
    plain = _plain_step(optimizer)
    if plain is None:
        optimizer.step()
        return
    with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
        plain(optimizer)


@contextmanager
def _plain_groups() -> Iterator[None]:
    """Meanwhile `add_param_group` is what it is below `torch._disable_dynamo`."""
    global _num_making
    inner = getattr(torchs.Optimizer.add_param_group, "__wrapped__", None)
    if inner is None or _COMPILER in sys.modules or (not _num_making and hasattr(inner, _KEPT_OUT)):
        yield
        return
    with _lock:
        _num_making += 1
        setattr(inner, _KEPT_OUT, inner)
    try:
        yield
    finally:
        with _lock:
            _num_making -= 1
            if not _num_making:
                delattr(inner, _KEPT_OUT)


def _plain_step(optimizer: Any) -> Callable[[Any], object] | None:
    """The step below what torch has wrapped it in; None: torch's way."""
    kind: Any = type(optimizer)
    if not issubclass(kind, torchs.Optimizer):  # one of the user's, like those of torch
        return None
    if _COMPILER in sys.modules or "step" in vars(optimizer) or _has_hooks(optimizer):
        return None
    hooked = kind.step
    wrapped = hooked.__wrapped__ if getattr(hooked, "hooked", False) else hooked
    wrap = getattr(torchs, "_use_grad_for_differentiable", None)
    if wrap is None or getattr(wrapped, "__code__", None) is not wrap(_plain_step).__code__:
        return None
    plain: Callable[[Any], object] = wrapped.__wrapped__
    return plain


def _has_hooks(optimizer: torchs.Optimizer) -> bool:
    return bool(
        torchs._global_optimizer_pre_hooks
        or torchs._global_optimizer_post_hooks
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
    )

"""Refuse `optimizer.step()` in the training function for an optimizer of a `run.step`; warn once about others.

torch calls a hook before the step of every optimizer while a run is in progress in this process.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watch:
    """`owns`: whether an optimizer belongs to a step of the run of this thread."""

    owns: Callable[[torch.optim.Optimizer], bool]
    is_library_update: bool = False
    has_warned: bool = False


_watch: ContextVar[_Watch | None] = ContextVar("_watch", default=None)
_lock = threading.Lock()
_runs = 0  # in progress in this process
_hook: Any = None  # Any: a handle of torch


@contextmanager
def watched(owns: Callable[[torch.optim.Optimizer], bool]) -> Iterator[None]:
    """Watch the updates of this thread during the block. `owns`: whether an optimizer belongs to a step of the run."""
    _count_runs(1)
    token = _watch.set(_Watch(owns))
    try:
        yield
    finally:
        _watch.reset(token)
        _count_runs(-1)


@contextmanager
def library_update() -> Iterator[None]:
    """Allow the update that a step makes in this block."""
    watch = _watch.get() or _Watch(lambda _: False)
    before, watch.is_library_update = watch.is_library_update, True
    try:
        yield
    finally:
        watch.is_library_update = before


def hooks() -> int:
    """Return how many of the hooks that torch calls before every step are from this module."""
    return int(_hook is not None)


def _count_runs(change: int) -> None:
    global _runs, _hook
    with _lock:
        _runs += change
        if _runs and _hook is None:
            _hook = register_optimizer_step_pre_hook(_before_step)
        elif not _runs:
            _hook.remove()
            _hook = None


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    watch = _watch.get()
    if watch is None or watch.is_library_update:
        return
    if watch.owns(optimizer):
        raise ValueError(
            "optimizer.step() was called for an optimizer that belongs to a run.step: a step makes forward and "
            "backward passes and the update itself.\n"
            "  wrong:  step(batch); optimizer.step()\n"
            "  right:  step(batch)\n"
            "  right:  optimizer.register_step_pre_hook(fn)   # fn sees the gradients of the batch, to log or clip\n"
            "  right:  step.update()                          # after a loop over step.shards(batch) of your own"
        )
    if not watch.has_warned:
        watch.has_warned = True
        _log.warning(
            "the training function calls %s.step() itself: every process makes this update on its own, with its own "
            "gradients, and the work is not spread over the devices. Gradients that the loss of a run.step leaves in "
            "modules besides its model are dropped.\n"
            "  wrong:  loss.backward(); optimizer.step()\n"
            "  right:  step = run.step(model, optimizer, loss_fn); step(batch)",
            type(optimizer).__name__,
        )

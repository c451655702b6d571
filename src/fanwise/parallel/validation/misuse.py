"""Refuse `optimizer.step()` in the training function for an optimizer of a `run.step`; warn once about others.

torch calls a hook before the step of every optimizer while a run is in progress in this process.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_log = logging.getLogger(__name__)


class _ThreadState(threading.local):
    """`owns`: tells whether an optimizer belongs to the run of this thread; None: there is no run."""

    owns: Callable[[torch.optim.Optimizer], bool] | None = None
    is_library_update = False
    has_warned = False


_thread_state = _ThreadState()
_lock = threading.Lock()
_runs = 0  # in progress in this process
_hook: Any = None  # Any: a handle of torch


@contextmanager
def watched(owns: Callable[[torch.optim.Optimizer], bool]) -> Iterator[None]:
    """Watch the updates of this thread during the block. `owns`: whether an optimizer belongs to a step of the run."""
    state = _thread_state
    before = state.owns, state.is_library_update, state.has_warned
    _count_runs(1)
    state.owns, state.is_library_update, state.has_warned = owns, False, False
    try:
        yield
    finally:
        state.owns, state.is_library_update, state.has_warned = before
        _count_runs(-1)


@contextmanager
def library_update() -> Iterator[None]:
    """Allow the update that a step makes in this block."""
    before, _thread_state.is_library_update = _thread_state.is_library_update, True
    try:
        yield
    finally:
        _thread_state.is_library_update = before


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
    state = _thread_state
    if state.owns is None or state.is_library_update:
        return
    if state.owns(optimizer):
        raise ValueError(
            "optimizer.step() was called for an optimizer that belongs to a run.step: a step makes forward and "
            "backward passes and the update itself.\n"
            "  wrong:  step(batch); optimizer.step()\n"
            "  right:  step(batch)\n"
            "  right:  optimizer.register_step_pre_hook(fn)   # fn sees the gradients of the batch, to log or clip\n"
            "  right:  step.update()                          # after a loop over step.shards(batch) of your own"
        )
    if not state.has_warned:
        state.has_warned = True
        _log.warning(
            "the training function calls %s.step() itself: every process makes this update on its own, with its own "
            "gradients, and the work is not spread over the devices. Gradients that the loss of a run.step leaves in "
            "modules besides its model are dropped.\n"
            "  wrong:  loss.backward(); optimizer.step()\n"
            "  right:  step = run.step(model, optimizer, loss_fn); step(batch)",
            type(optimizer).__name__,
        )

"""Refuse `optimizer.step()` in the training function for an optimizer of a `run.step`. Warn once about others."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

_log = logging.getLogger(__name__)
_is_library_update: ContextVar[bool] = ContextVar("_is_library_update", default=False)


@contextmanager
def library_update() -> Iterator[None]:
    """Allow the update that a step makes in this block."""
    token = _is_library_update.set(True)
    try:
        yield
    finally:
        _is_library_update.reset(token)


@contextmanager
def watch_updates(owns: Callable[[Optimizer], bool]) -> Iterator[None]:
    """Watch the updates of this thread during the block. `owns`: whether an optimizer belongs to a step of the run."""
    thread, has_warned = threading.get_ident(), False

    def before_step(optimizer: Optimizer, *_: object) -> None:
        nonlocal has_warned
        if threading.get_ident() != thread or _is_library_update.get():
            return
        if owns(optimizer):
            raise ValueError(
                "optimizer.step() was called for an optimizer that belongs to a run.step, which makes the forward and "
                "backward passes and the update itself.\n"
                "  wrong:  step(batch); optimizer.step()\n"
                "  right:  step(batch)                        # optimizer.register_step_pre_hook(fn) sees gradients\n"
                "  right:  step.update()                      # after your own loop over step.shards(batch)"
            )
        if not has_warned:
            has_warned = True
            _log.warning(
                "the training function calls %s.step() itself: every process makes this update on its own, and the "
                "work is not divided among the devices. A step drops the gradients of modules other than its model.\n"
                "  wrong:  loss.backward(); optimizer.step()\n"
                "  right:  step = run.step(model, optimizer, loss_fn); step(batch)",
                type(optimizer).__name__,
            )

    hook = register_optimizer_step_pre_hook(before_step)
    try:
        yield
    finally:
        hook.remove()


def is_watch_hook(hook: object) -> bool:
    """Return True for a hook that `watch_updates` has registered."""
    return getattr(hook, "__module__", None) == __name__

"""Refuse updates of optimizers that would make a run silently wrong.

    optimizer.step()    of an optimizer that run.step updates: refused
                        of parameters that shards use which are being executed: refused
                        of parameters whose gradients a step has dropped: refused
                        of others: a warning, once

torch calls a hook before every optimizer's step while at least one run is under way in this process. Threads that are
in no run are left alone.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

_log = logging.getLogger(__name__)


class _InRun(threading.local):
    """Of this thread. `owns`: whether an optimizer is one of the run's; None: no run. `updates`: a step updates now.

    `has_dropped`: whether a step has dropped gradients of some parameters.
    """

    owns: Callable[[torch.optim.Optimizer], bool] | None = None
    has_dropped: Callable[[Sequence[Tensor]], bool] | None = None
    updates = False
    has_said = False


_here = _InRun()
_lock = threading.Lock()
_runs = 0
# Of passes of shards that are under way, in any thread, since a backward pass may have threads of its own: the ids of
# all parameters that are not to be updated meanwhile.
_passes: list[frozenset[int]] = []
_leaving: list[Callable[[], None]] = []


@contextmanager
def watched(
    owns: Callable[[torch.optim.Optimizer], bool], has_dropped: Callable[[Sequence[Tensor]], bool]
) -> Iterator[None]:
    """A training function runs in this block and thread.

    Args:
        owns: knows the optimizers that its steps update. has_dropped: knows whether a step has dropped the gradient of
            any of these parameters.
    """
    before = _here.owns, _here.has_dropped, _here.updates, _here.has_said
    _enter()
    _here.owns, _here.has_dropped, _here.updates, _here.has_said = owns, has_dropped, False, False
    try:
        yield
    finally:
        _here.owns, _here.has_dropped, _here.updates, _here.has_said = before
        _leave()


@contextmanager
def updating() -> Iterator[None]:
    """What optimizers do in this block is the library's doing."""
    before, _here.updates = _here.updates, True
    try:
        yield
    finally:
        _here.updates = before


@contextmanager
def passing(looked_after: frozenset[int]) -> Iterator[None]:
    """Shards are executed in this block; these are the ids of the parameters of all modules of the step."""
    _passes.append(looked_after)
    try:
        yield
    finally:
        _passes.remove(looked_after)


def hooks() -> int:
    """How many of the hooks that torch calls before every step are from here."""
    return 1 if _leaving else 0


def _enter() -> None:
    global _runs
    with _lock:
        _runs += 1
        if _runs == 1:
            _leaving.append(register_optimizer_step_pre_hook(_before_step).remove)


def _leave() -> None:
    global _runs
    with _lock:
        _runs -= 1
        if _runs == 0:
            for leave in _leaving:
                leave()
            _leaving.clear()


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if _passes and (_here.owns is None or not _here.owns(optimizer)):
        _check_pass(optimizer)
    if _here.owns is None or _here.updates:
        return
    if _here.owns(optimizer):
        raise ValueError(
            "optimizer.step() was called by the training function, of an optimizer that belongs to a run.step: a step "
            "makes forward and backward passes and the update itself.\n"
            "  wrong:  step(batch); optimizer.step()\n"
            "  right:  step(batch)\n"
            "  right:  optimizer.register_step_pre_hook(fn)   # fn sees the gradients of the batch, to log or clip\n"
            "  right:  step.update()                          # after a loop over step.shards(batch) of your own"
        )
    if _here.has_dropped is not None:
        params = _params(optimizer)
        if all(param.grad is None for param in params) and _here.has_dropped(params):
            raise ValueError(
                f"{type(optimizer).__name__}.step() was called by the training function, and its parameters have no "
                f"gradients: the loss of a run.step leads to them, and a step keeps no gradients but those of its own "
                f"model, on any number of devices.\n"
                f"  wrong:  step = run.step(model, optimizer, loss_fn)      # loss_fn calls head as well\n"
                f"          step(batch); optimizer_of_head.step()\n"
                f"  right:  both = nn.ModuleDict({{'model': model, 'head': head}})\n"
                f"          step = run.step(both, optimizer, loss_fn)       # optimizer of both.parameters()"
            )
    if not _here.has_said:
        _here.has_said = True
        _log.warning(
            "the training function calls %s.step() itself: every process of the run makes this update by itself, on "
            "the data that it has itself, and nothing of it is spread over devices.\n"
            "  wrong:  loss.backward(); optimizer.step()\n"
            "  right:  step = run.step(model, optimizer, loss_fn); step(batch)",
            type(optimizer).__name__,
        )


def _check_pass(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError for an update of what the shards that are under way use."""
    held = {id(param) for param in _params(optimizer)}
    if any(not held.isdisjoint(looked_after) for looked_after in list(_passes)):
        raise ValueError(
            f"{type(optimizer).__name__}.step() was called in a forward or backward pass of a run.step, of parameters "
            f"that the shards of the batch use: each would find them changed by those that its process has executed "
            f"before, and the gradient of a batch is not there before all shards are.\n"
            f"  wrong:  param.register_post_accumulate_grad_hook(lambda _: optimizer.step())\n"
            f"  right:  run.step(model, optimizer, loss_fn)           # updates once a batch\n"
            f"  right:  step.update()                                 # after the loop over step.shards(batch)\n"
            f"  right:  optimizer.register_step_pre_hook(fn)          # fn sees the gradients of the batch"
        )


def _params(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]

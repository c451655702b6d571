"""Habits of other ways to train that a run would not notice, in the thread of a training function.

    optimizer.step()            of an optimizer that run.step updates: refused; of another one: said once
    DistributedSampler          refused by name: it would leave out samples
    another sampler by rank     refused too, where a DataLoader begins with it: it has a rank, and a number of ranks

torch tells of every optimizer's step, and samplers and loaders ask here before they begin, while at least one run is
under way in this process. Threads that are in no run are left alone.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler

_log = logging.getLogger(__name__)


class _InRun(threading.local):
    """Of this thread. `owns`: whether an optimizer is one of the run's; None: no run. `updates`: a step updates now."""

    owns: Callable[[torch.optim.Optimizer], bool] | None = None
    updates = False
    has_said = False


_here = _InRun()
_lock = threading.Lock()
_runs = 0
_leaving: list[Callable[[], None]] = []
# Their methods are replaced for a while.
_samplers: Any = DistributedSampler  # Any: a class
_loaders: Any = DataLoader  # Any: a class


@contextmanager
def watched(owns: Callable[[torch.optim.Optimizer], bool]) -> Iterator[None]:
    """A training function runs in this block and thread; `owns` knows the optimizers that its steps update."""
    before = _here.owns, _here.updates, _here.has_said
    _enter()
    _here.owns, _here.updates, _here.has_said = owns, False, False
    try:
        yield
    finally:
        _here.owns, _here.updates, _here.has_said = before
        _leave()


@contextmanager
def updating() -> Iterator[None]:
    """What optimizers do in this block is the library's doing."""
    before, _here.updates = _here.updates, True
    try:
        yield
    finally:
        _here.updates = before


def hooks() -> int:
    """How many of the hooks that torch calls before every step are from here."""
    return 1 if _leaving else 0


def _enter() -> None:
    global _runs
    with _lock:
        _runs += 1
        if _runs == 1:
            handle = register_optimizer_step_pre_hook(_before_step)
            _leaving.extend([handle.remove, _asking(_samplers, _check_sampler), _asking(_loaders, _check_loader)])


def _asking(kind: Any, check: Callable[[Any], None]) -> Callable[[], None]:  # Any: a class, and its objects
    """Before one of them begins it is checked; how to undo that."""
    begin = kind.__iter__

    def ask_first(each: Any) -> Any:  # Any: one of them, and its iterator
        check(each)
        return begin(each)

    kind.__iter__ = ask_first
    return lambda: setattr(kind, "__iter__", begin)


def _leave() -> None:
    global _runs
    with _lock:
        _runs -= 1
        if _runs == 0:
            for leave in _leaving:
                leave()
            _leaving.clear()


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if _here.owns is None or _here.updates:
        return
    if _here.owns(optimizer):
        raise ValueError(
            "optimizer.step() was called by the training function, of an optimizer that belongs to a run.step: a step "
            "makes forward and backward passes and the update itself.\n"
            "  wrong:  step(batch); optimizer.step()\n"
            "  right:  step(batch)\n"
            "  right:  optimizer.register_step_pre_hook(fn)   # fn sees the gradients of the batch, to log or clip"
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


def _check_loader(loader: Any) -> None:  # Any: a DataLoader
    for part in (loader.sampler, loader.batch_sampler, loader.dataset):
        known = getattr(part, "__dict__", {})
        if "rank" in known and ("num_replicas" in known or "world_size" in known):
            _check_sampler(part)


def _check_sampler(sampler: object) -> None:
    if _here.owns is not None:
        raise ValueError(
            f"a {type(sampler).__name__} gives each process samples of its own, and in a run every process calls the "
            f"step with the whole batch and executes its own shards of it: samples would be left out.\n"
            f"  wrong:  for batch in DataLoader(data, 32, sampler={type(sampler).__name__}(data)): step(batch)\n"
            f"  right:  for batch in run.batches(data, 32): step(batch)"
        )

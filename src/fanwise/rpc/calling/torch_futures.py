"""Changes to torch's own futures while this process is a worker.

* `torch.futures.wait_all` raises the first error at once, as with torch's own calls. For torch's C++ code an error set
  by Python is a value, so the original waits for all futures before it looks. Without errors both are the same.
* Ctrl-C and cancellation of the running call interrupt every wait, including futures of `then` and `collect_all`.
  torch's `wait` sleeps in C++ regardless of signals, so the main thread, which alone gets signals, sleeps in Python.
* A called function that waits for any future releases its thread slot to another call. `then` and `collect_all` return
  C++ objects, so `wait` of the common base class of all futures is replaced.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.futures import Future

from ...base.errors import CancelledError
from ..current import waiting
from .cancellation import check, current_scope
from .futures import error_of, raise_copy, wait_for, wait_for_event

_torch_wait_all = torch.futures.wait_all
_torch_wait = torch._C.Future.wait


class _Progress:
    """Counts completed futures and keeps the first error."""

    def __init__(self, count: int) -> None:
        self._num_pending = count
        self._lock = threading.Lock()
        self.finished = threading.Event()
        self.error: Exception | None = None
        if not count:
            self.finished.set()

    def on_done(self, future: "Future[Any]") -> None:
        error = error_of(future)
        with self._lock:
            self._num_pending -= 1
            self.error = self.error or error
            if error is not None or not self._num_pending:
                self.finished.set()


def wait_all(futures: "Sequence[Future[Any]]") -> list[Any]:
    """Block until all are done and return their results, or raise the first error at once."""
    if len(futures) == 1:
        return [futures[0].wait()]  # this thread reads the reply itself
    progress = _Progress(len(futures))
    for future in futures:
        future.add_done_callback(progress.on_done)
    with waiting():
        wait_for_event(progress.finished)
    if progress.error is not None:
        raise_copy(progress.error)
    return [future.wait() for future in futures]


def _wait(future: Any) -> Any:
    if not future.done():
        with waiting():
            if threading.current_thread() is threading.main_thread() or current_scope() is not None:
                wait_for(future)
            else:
                return _torch_wait(future)
    try:
        return _torch_wait(future)
    except CancelledError:
        check()  # canceled with the running call: raise CallCancelled instead
        raise


def install() -> None:
    """Replace torch's functions."""
    torch.futures.wait_all = wait_all
    torch._C.Future.wait = _wait  # type: ignore[method-assign,assignment]


def uninstall() -> None:
    """Restore torch's functions."""
    if torch.futures.wait_all is wait_all:
        torch.futures.wait_all = _torch_wait_all
    if torch._C.Future.wait is _wait:
        torch._C.Future.wait = _torch_wait  # type: ignore[method-assign]

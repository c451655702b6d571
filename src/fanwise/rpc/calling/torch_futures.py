"""What torch's own futures do otherwise while this process is a worker.

* `torch.futures.wait_all` leaves at the first error, as it does with torch's own calls. To torch's C++ code an error
  that Python sets on a future is a value: its `wait_all` waits for all futures before it looks. The one here looks as
  each future is done. For futures without errors the two are the same.
* Ctrl-C ends the wait for any future, also for what `then` and `collect_all` made; so does the end of the call that
  waits. Torch's own `wait` sleeps in C++ until the future is done, whatever signals come; so the main thread, which
  alone gets signals, sleeps in Python.
* Whoever waits for any future inside a called function gives its place to another call: also for what `then` and
  `collect_all` made, which are objects of C++, and for a future that the program made itself. So `wait` of the class
  that all of them have in common is the one here.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.futures import Future

from ...base.errors import CancelledError
from ..current import waiting
from .cancelling import check, here
from .outcomes import error_of, raise_afresh, wait_for, wait_for_event

_torchs = torch.futures.wait_all
_torchs_wait = torch._C.Future.wait


class _Progress:
    """What is known of some futures; callbacks tell it."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self.over = threading.Event()
        self.error: Exception | None = None
        if not count:
            self.over.set()

    def tell(self, future: "Future[Any]") -> None:
        error = error_of(future)
        with self._lock:
            self._left -= 1
            self.error = self.error or error
            if error is not None or not self._left:
                self.over.set()


def wait_all(futures: "Sequence[Future[Any]]") -> list[Any]:
    """The results of all; blocks until all are done, or until one has failed, and raises its error."""
    if len(futures) == 1:
        return [futures[0].wait()]  # this thread reads the answer itself
    progress = _Progress(len(futures))
    for future in futures:
        future.add_done_callback(progress.tell)
    with waiting():
        wait_for_event(progress.over)
    if progress.error is not None:
        raise_afresh(progress.error)
    return [future.wait() for future in futures]


def _wait(future: Any) -> Any:
    if not future.done():
        with waiting():
            if threading.current_thread() is threading.main_thread() or here() is not None:
                wait_for(future)
            else:
                return _torchs_wait(future)
    try:
        return _torchs_wait(future)
    except CancelledError:
        check()  # as `raise_afresh`
        raise


def install() -> None:
    """From now on, torch's are ours."""
    torch.futures.wait_all = wait_all
    torch._C.Future.wait = _wait  # type: ignore[method-assign,assignment]


def remove() -> None:
    """As they were."""
    if torch.futures.wait_all is wait_all:
        torch.futures.wait_all = _torchs
    if torch._C.Future.wait is _wait:
        torch._C.Future.wait = _torchs_wait  # type: ignore[method-assign]

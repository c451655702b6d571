"""Displays a running search in the calling thread, and forwards Ctrl-C to the search.

The search runs on the thread of the hub, the pool's event loop. The first Ctrl-C stops the trials and keeps all
results. The second kills the trials. The third raises KeyboardInterrupt at once.

After a failure or the second Ctrl-C, the search has 3 s to end. If it takes longer, for example because a process
cannot be killed or an import hangs, `watch` returns, and closing the pool ends the remaining processes.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from ...base.errors import ClosedError
from ...links.hub import Hub
from ..core.events import Interrupt
from ..runtime.runner import SearchRunner
from .screen import Screen

T = TypeVar("T")

_END_TIMEOUT_S = 3.0
_CHECK_INTERVAL_S = 0.25  # between checks that the hub is still running
_HINTS = (
    "Ctrl-C: stopping the trials; all results are kept. Ctrl-C again kills them.",
    "Ctrl-C: the trials are killed.",
)


class Interrupts:
    """Counts Ctrl-C. The third one raises KeyboardInterrupt in the main thread."""

    def __init__(self) -> None:
        self.count = 0

    def on_sigint(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal. Must not call the hub, because the interrupted thread may hold one of the hub's locks."""
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt


@contextmanager
def counting_interrupts() -> Iterator[Interrupts]:
    """Count Ctrl-C during the block.

    Counts nothing outside the main thread, or if SIGINT is ignored or handled by C code.
    """
    interrupts = Interrupts()
    previous_handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or previous_handler is None or previous_handler is signal.SIG_IGN:  # None: C code handles it
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.on_sigint)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def watch(
    hub: Hub, search: SearchRunner, screen: Screen, interrupts: Interrupts, *, end_timeout_s: float = _END_TIMEOUT_S
) -> None:
    """Display the search and forward Ctrl-C to it. Block until the search is over.

    Return early if the search does not end within `end_timeout_s` after a failure or the second Ctrl-C. The caller must
    therefore call `abandon_unless_finished`.

    Raises:
        ClosedError: the pool was closed during the search.
        KeyboardInterrupt: the third Ctrl-C.
    """
    num_sent = 0
    deadline_s: float | None = None
    while True:
        while num_sent < min(interrupts.count, len(_HINTS)):
            hub.call_soon(lambda: search.apply_command(Interrupt))
            screen.print_lines(_HINTS[num_sent])
            num_sent += 1
        if search.finished.wait(screen.pause_s):
            return
        if deadline_s is None and (num_sent > 1 or search.failure is not None):
            deadline_s = time.monotonic() + end_timeout_s
        if deadline_s is not None and time.monotonic() > deadline_s:
            return
        if screen.is_blank:
            hub.check_usable()
        else:
            screen.show(call_on(hub, search.take_news), lambda: call_on(hub, search.take_snapshot))


def call_on(hub: Hub, function: Callable[[], T]) -> T:
    """Call a function on the hub's thread, block until it has ended, and return its result or raise its exception.

    Raises ClosedError if the hub's thread has ended.
    """
    if hub.is_loop_thread:
        return function()
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    hub.check_usable()
    hub.call_soon(call)
    while not wait([future], _CHECK_INTERVAL_S).done:
        hub.check_usable()
    return future.result()


def abandon_unless_finished(hub: Hub, search: SearchRunner) -> None:
    """Abandon the search if it is not over, so that its record can be closed. Blocks until the hub has done so."""
    if search.finished.is_set():
        return
    try:
        call_on(hub, search.abandon)
    except ClosedError:
        search.abandon()  # the hub's thread has ended, so this thread may call it

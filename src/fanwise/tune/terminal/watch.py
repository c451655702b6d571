"""The caller's thread beside a running search: shows it, counts Ctrl-C, and never waits for what cannot come.

    hub's thread:     Search ------------------------------------> finished
                        ^ interrupt      | look
    caller's thread:  Ctrl-C ---------> watch() --> Screen          leave(): the record is let go of, whatever happened

The first Ctrl-C stops the trials and keeps everything, the second kills them, the third breaks out at once with
KeyboardInterrupt. When a search is to end and does not within a few seconds - a process that cannot be killed, an
import that hangs - nobody waits longer: closing the pool ends what is left.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from ...base.errors import ClosedError
from ...links import Hub
from ..decisions.facts import Interrupt
from ..record.snapshot import SearchSnapshot
from ..runner import Search
from .screen import Screen

T = TypeVar("T")
Look = tuple[list[str], SearchSnapshot]

# How long a search that was killed, or has failed, may take to end.
_LAST_WAIT_S = 3.0
# How often it is looked whether the hub still runs.
_CHECK_S = 0.25

_HINTS = (
    "Ctrl-C: the trials are stopped and everything is kept; once more kills them.",
    "Ctrl-C: the trials are killed.",
)


class Interrupts:
    """How often Ctrl-C was pressed. The third one raises KeyboardInterrupt wherever the main thread is."""

    def __init__(self) -> None:
        self.count = 0

    def press(self, _number: int, _frame: FrameType | None) -> None:
        """The signal handler. It only counts: it may run while this thread holds a lock that a hub's calls need."""
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt


@contextmanager
def counting_interrupts() -> Iterator[Interrupts]:
    """Count Ctrl-C inside the block. Only in the main thread, where signals arrive, and only if nobody ignores it."""
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or before is None or before is signal.SIG_IGN:  # None: C code handles it
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.press)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def watch(
    hub: Hub, search: Search, screen: Screen, interrupts: Interrupts, *, last_wait_s: float = _LAST_WAIT_S
) -> None:
    """Block until the search is over, show it meanwhile, and tell it of Ctrl-C.

    Returns also when it should be over and does not end, see the module; `leave` it then.

    Raises:
        ClosedError: the pool was closed under the search.
        KeyboardInterrupt: the third Ctrl-C.
    """
    told = 0
    until_s: float | None = None
    while True:
        while told < min(interrupts.count, len(_HINTS)):
            hub.call_soon(lambda: search.command(Interrupt))
            screen.say(_HINTS[told])
            told += 1
        if search.finished.wait(screen.pause_s):
            return
        if until_s is None and (told > 1 or search.failure is not None):
            until_s = time.monotonic() + last_wait_s
        if until_s is not None and time.monotonic() > until_s:
            return
        if screen.is_blank:
            hub.check_usable()
        else:
            screen.show(*look(hub, search))


def look(hub: Hub, search: Search) -> Look:
    """The news since the last look, and a snapshot, taken on the hub's thread.

    Raises:
        ClosedError: the hub's thread has ended.
    """
    return call_on(hub, search.look)


def call_on(hub: Hub, function: Callable[[], T]) -> T:
    """Call a function on the hub's thread. Block until it has ended, and return or raise what it did.

    Raises:
        ClosedError: the hub's thread has ended.
    """
    if hub.is_loop_thread:
        return function()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        done.set()

    _run_on(hub, call, done)
    if errors:
        raise errors[0]
    return results[0]


def leave(hub: Hub, search: Search) -> None:
    """Make sure that the search lets go of its record, also when it is not over. Blocks for one turn of the hub."""
    if search.finished.is_set():
        return
    try:
        _run_on(hub, search.abandon, search.finished)
    except ClosedError:
        search.abandon()  # the hub's thread has ended, so this one may


def _run_on(hub: Hub, call: Callable[[], None], done: threading.Event) -> None:
    hub.check_usable()
    hub.call_soon(call)
    while not done.wait(_CHECK_S):
        hub.check_usable()

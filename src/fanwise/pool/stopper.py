"""How a job is stopped from outside, and how it waits without being deaf to that.

A stop order comes as SIGTERM and raises `TrialStopped` in the main thread, once; while a message is on its way it is
held back, because what is half sent or half read would spoil the link. In a process that user code forked from the
job, SIGTERM means what it means everywhere.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from ..base.errors import TrialStopped
from ..links.hub import Hub
from ..links.link import Reply

# How long a thread other than the main one drives the hub before it lets another have it.
_SLICE_S = 0.05


class Stopper:
    """Turns SIGTERM into `TrialStopped`, but never in the middle of a message, and only once."""

    def __init__(self) -> None:
        self.stopped_in_report = False
        self._pid = os.getpid()
        self._shielded = 1  # until `begin`: a stop that comes before the function does
        self._pending = False
        self._ignoring = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler; Python runs it in the main thread."""
        if os.getpid() != self._pid:  # a child that user code forked: the signal is meant for it, as for any process
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._shielded:
            self._pending = True
        elif not self._ignoring:
            self._raise()

    def begin(self) -> None:
        """The function begins: from now on a stop raises; one that came before does so at once."""
        self._shielded -= 1
        self._raise_pending()

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Hold the stop back until the block is left. For the main thread; others are never interrupted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._shielded += 1
        try:
            yield
        finally:
            self._shielded -= 1
            self._raise_pending()

    @property
    def pending(self) -> bool:
        """Whether a stop was held back and has not been raised yet."""
        return self._pending and not self._ignoring

    def ignore(self) -> None:
        """The function has ended, or is about to; a stop has nothing to stop any more."""
        self._ignoring = True

    def _raise_pending(self) -> None:
        if self.pending and not self._shielded:
            self._raise()

    def _raise(self) -> None:
        self._ignoring = True
        raise TrialStopped("this trial was told to stop")


_handling = False


@contextlib.contextmanager
def stop_by_signal() -> Iterator[Stopper]:
    """Handle SIGTERM by a `Stopper` inside the block."""
    global _handling
    stopper = Stopper()
    before = signal.signal(signal.SIGTERM, stopper.handle)
    _handling = True
    try:
        yield stopper
    finally:
        stopper.ignore()
        signal.signal(signal.SIGTERM, before)
        _handling = False


# A child that user code forks gets the usual meaning of SIGTERM before anybody can send it one. Without the mask a
# signal that comes at once would be lost: Python forgets in a forked child what its handler was still to be called for.


def _before_fork() -> None:
    if _handling:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    if _handling:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _after_fork_in_child() -> None:
    global _handling
    if _handling:
        _handling = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _nothing() -> None:
    """Only to wake the hub."""


class Waiter:
    """Waits for answers, by driving the hub of this process; threads take turns at it."""

    def __init__(self, hub: Hub, stopper: Stopper) -> None:
        self._hub = hub
        self._stopper = stopper
        self._driving = threading.Lock()

    def wait(self, reply: Reply, within_s: float | None) -> None:
        """Block until `reply` is there, at most `within_s` seconds. Raises `TrialStopped` when a stop order came."""
        self._hub.check_usable()
        # Another thread, which asks something itself, may be the one who reads it: then this one must be woken.
        reply.add_done_callback(lambda reply: self._hub.call_soon(_nothing))
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        if threading.current_thread() is threading.main_thread():
            with self._woken_by_signals(), self._stopper.shield():
                self._drive(lambda: reply.done() or self._stopper.pending, until_s, None)
        else:
            self._drive(reply.done, until_s, _SLICE_S)

    def _drive(self, fact: Callable[[], bool], until_s: float | None, slice_s: float | None) -> None:
        while not fact():
            left_s = None if until_s is None else until_s - self._hub.clock.now_s()
            if left_s is not None and left_s <= 0:
                return
            if self._driving.acquire(timeout=_SLICE_S):
                try:
                    # Look again: what woke the hub for this thread may have been consumed by the last one who drove.
                    if not fact():
                        self._hub.turn(min((s for s in (left_s, slice_s) if s is not None), default=None))
                finally:
                    self._driving.release()

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """A signal ends a turn of the hub, which otherwise goes on waiting after the handler has run."""
        noted, note = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._hub.watch(noted, lambda _events: None)
        before = signal.set_wakeup_fd(note, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            self._hub.forget(noted)
            os.close(noted)
            os.close(note)

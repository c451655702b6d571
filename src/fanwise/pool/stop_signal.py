"""Stop requests to a job: SIGTERM raises `TrialStopped` in the main thread, also while the job waits for a reply.

The exception is raised once. While a message is being sent or read, it is deferred, because a partial message would
break the link. In processes that user code forks from the job, SIGTERM has its usual meaning.
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

# Time for which a thread other than the main one runs the event loop before another may.
_SLICE_S = 0.05


class StopSignal:
    """Raises `TrialStopped` on SIGTERM, once, and never inside `shield`.

    Attributes:
        stopped_in_report: the job learned of the stop from the reply to a report.
    """

    def __init__(self) -> None:
        self.stopped_in_report = False
        self._pid = os.getpid()
        self._shielded = 1  # until `begin`
        self._pending = False
        self._ignoring = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle the signal. Python calls this in the main thread."""
        if os.getpid() != self._pid:  # in a child that user code forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._shielded:
            self._pending = True
        elif not self._ignoring:
            self._raise()

    def begin(self) -> None:
        """Start raising, when the function is called. Raise at once if a stop is pending."""
        self._shielded -= 1
        self._raise_pending()

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Defer the exception until the block is left. Has no effect in other threads than the main one."""
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
        """Whether a stop was deferred and not raised yet."""
        return self._pending and not self._ignoring

    def ignore(self) -> None:
        """Stop raising, because the function has ended or is about to."""
        self._ignoring = True

    def _raise_pending(self) -> None:
        if self.pending and not self._shielded:
            self._raise()

    def _raise(self) -> None:
        self._ignoring = True
        raise TrialStopped("this trial was told to stop")


_handling = False


@contextlib.contextmanager
def stop_by_signal() -> Iterator[StopSignal]:
    """Handle SIGTERM by a `StopSignal` inside the block."""
    global _handling
    stop_signal = StopSignal()
    previous = signal.signal(signal.SIGTERM, stop_signal.handle)
    _handling = True
    try:
        yield stop_signal
    finally:
        stop_signal.ignore()
        signal.signal(signal.SIGTERM, previous)
        _handling = False


# In a child that user code forks, SIGTERM gets its default action before it can arrive. It is blocked meanwhile,
# because Python discards pending handlers in a forked child.


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


def _wake() -> None:
    """Do nothing: an iteration of the loop wakes its waiters."""


class InterruptibleWaiter:
    """Waits for replies by running this process's event loop. Threads take turns."""

    def __init__(self, hub: Hub, stop_signal: StopSignal) -> None:
        self._hub = hub
        self._stop_signal = stop_signal
        self._running = threading.Lock()

    def wait(self, reply: Reply, within_s: float | None) -> None:
        """Block until the reply arrives, at most `within_s` seconds. Raises `TrialStopped` after a stop request."""
        self._hub.check_usable()
        # Another thread may run the loop and read the reply; it must wake this one.
        reply.add_done_callback(lambda reply: self._hub.call_soon(_wake))
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        if threading.current_thread() is threading.main_thread():
            with self._woken_by_signals(), self._stop_signal.shield():
                self._run_loop(lambda: reply.done() or self._stop_signal.pending, until_s, None)
        else:
            self._run_loop(reply.done, until_s, _SLICE_S)

    def _run_loop(self, is_over: Callable[[], bool], until_s: float | None, slice_s: float | None) -> None:
        while not is_over():
            left_s = None if until_s is None else until_s - self._hub.clock.now_s()
            if left_s is not None and left_s <= 0:
                return
            if self._running.acquire(timeout=_SLICE_S):
                try:
                    # Check again: the previous thread may have handled the event that this one waits for.
                    if not is_over():
                        self._hub.turn(min((s for s in (left_s, slice_s) if s is not None), default=None))
                finally:
                    self._running.release()

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """Let signals end an iteration of the loop, which would otherwise continue after the handler."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._hub.watch(reading, lambda _events: None)
        previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            self._hub.forget(reading)
            os.close(reading)
            os.close(writing)

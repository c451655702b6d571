"""The hub: one loop that polls all links of a process, fires timers, and runs what other threads hand in.

    one turn:   poll -> callbacks of what is ready -> timers that are due -> handed-in calls -> end-of-turn hooks

A hub is driven by a thread of its own (`start`), or by the caller (`run`, `turn`) in a process that must have one thread
only, or not at all: then a caller that waits for an answer reads its link itself. Callbacks run one after another, on
the thread that drives, and must not block. End-of-turn hooks see all that one poll brought together: the place for a
group commit.

After a fork by user code everything here is inert in the child: descriptors are closed, use raises `ClosedError`.
Knows no link, frame or key.
"""

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..base.clocks import Clock, SystemClock
from ..base.errors import ClosedError

READ, WRITE = select.EPOLLIN, select.EPOLLOUT

_log = logging.getLogger(__name__)
_hubs: "weakref.WeakSet[Hub]" = weakref.WeakSet()


class ClosedInFork(Protocol):
    """What holds descriptors that a forked child must not keep."""

    def close_fork(self) -> None:
        """Close the descriptors and do nothing else: locks may be held by threads that are not in the child."""


class Timer:
    """Something that will be called at `when_s`, unless it is cancelled first."""

    __slots__ = ("call", "when_s")

    def __init__(self, when_s: float, call: Callable[[], None]) -> None:
        self.when_s = when_s
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Hub:
    """See the module. `close()` must be called by its owner; it joins the thread."""

    def __init__(self, *, clock: Clock | None = None, name: str = "hub") -> None:
        self.clock = clock or SystemClock()
        self.name = name
        self.driven = False
        self._pid = os.getpid()
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callbacks: dict[int, Callable[[int], None]] = {self._wake: self._woken}
        self._poll.register(self._wake, READ)
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._turn_end: list[Callable[[], None]] = []
        self._inherited: "weakref.WeakSet[ClosedInFork]" = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._loop_thread_id: int | None = None
        self._closing = False
        self._closed = False
        _hubs.add(self)

    # -- driving ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Drive this hub by a daemon thread of its own."""
        self.check_usable()
        self.driven = True
        self._thread = threading.Thread(target=self._drive, name=f"fanwise-{self.name}", daemon=True)
        self._thread.start()

    def run(self, until: Callable[[], bool]) -> None:
        """Drive this hub on this thread until `until()` holds at the end of a turn."""
        self.driven = True
        while not until():
            self.turn(None)

    def turn(self, timeout_s: float | None = 0.0) -> None:
        """One turn; waits at most `timeout_s` for something to do (None: as long as it takes)."""
        self._loop_thread_id = threading.get_ident()
        for fd, events in self._poll.poll(self._timeout_s(timeout_s)):
            callback = self._callbacks.get(fd)
            if callback is not None:
                self._guard(callback, events)
        if self._timers:
            self._fire(self.clock.now_s())
        for _ in range(len(self._soon)):
            self._guard(self._soon.popleft())
        for hook in self._turn_end:
            self._guard(hook)

    @property
    def is_loop_thread(self) -> bool:
        """Whether the caller is on the thread that drives this hub, and so must not wait for it."""
        return self.driven and self._loop_thread_id == threading.get_ident()

    def _drive(self) -> None:
        while not self._closing:
            self.turn(None)

    def _timeout_s(self, timeout_s: float | None) -> float:
        if self._soon:
            return 0.0
        if self._timers:
            until_next = max(0.0, self._timers[0][0] - self.clock.now_s())
            timeout_s = until_next if timeout_s is None else min(timeout_s, until_next)
        return -1 if timeout_s is None else timeout_s

    def _fire(self, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._guard(call)

    def _guard(self, callback: Callable[..., None], *args: int) -> None:
        """One broken callback must not stop the loop that all others live on."""
        try:
            callback(*args)
        except Exception:
            _log.exception("%s: a callback failed; the hub goes on. Please report this with the traceback.", self.name)

    # -- what may be asked of it -----------------------------------------------------------------------------------

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in this or the next turn. May be called by any thread."""
        self._soon.append(call)
        if not self.is_loop_thread:
            with contextlib.suppress(OSError, BlockingIOError):
                os.eventfd_write(self._wake, 1)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Run `call` when the clock shows `when_s`. From the loop's thread, or before the loop runs."""
        timer = Timer(when_s, call)
        heapq.heappush(self._timers, (when_s, next(self._count), timer))
        return timer

    def at_turn_end(self, hook: Callable[[], None]) -> None:
        """Run `hook` at the end of every turn, in the order of registration."""
        self._turn_end.append(hook)

    def not_at_turn_end(self, hook: Callable[[], None]) -> None:
        """Undo `at_turn_end`."""
        self._turn_end.remove(hook)

    def watch(self, fd: int, callback: Callable[[int], None], events: int = READ) -> None:
        """Call `callback(events)` whenever `fd` is ready. Thread-safe."""
        self._callbacks[fd] = callback
        self._poll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Watch `fd` for other events; 0 pauses it. Thread-safe; works while another thread polls."""
        with contextlib.suppress(OSError, ValueError):
            self._poll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Undo `watch`. Must come before `fd` is closed."""
        if self._callbacks.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(fd)

    def close_in_fork(self, thing: ClosedInFork) -> None:
        """In a forked child, `thing.close_fork()` is called: it closes its descriptors and does nothing else."""
        self._inherited.add(thing)

    def check_usable(self) -> None:
        """Raises `ClosedError` in a fork of the process this hub belongs to, and after `close`."""
        if self._pid != os.getpid():
            raise ClosedError(
                f"the links of process {self._pid} cannot be used in process {os.getpid()}, which was forked from it.\n"
                f"Report and call from the process that was started by fanwise, not from its DataLoader workers."
            )
        if self._closed:
            raise ClosedError(f"the hub {self.name!r} of process {self._pid} is closed.")

    def close(self) -> None:
        """End the loop, join its thread, close the descriptors. What was handed in before is still run."""
        if self._closed or self._pid != os.getpid():
            return
        self._closing = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self.call_soon(lambda: None)
            self._thread.join()
        self._closed = True
        self.driven = False
        self._poll.close()
        os.close(self._wake)

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _go_inert(self) -> None:
        """In a forked child: the descriptors are copies; closing them changes nothing for the parent."""
        self.driven = False
        for thing in list(self._inherited):
            thing.close_fork()
        if not self._closed:
            self._closed = True
            self._poll.close()
            os.close(self._wake)


def _after_fork() -> None:
    for hub in list(_hubs):
        hub._go_inert()


os.register_at_fork(after_in_child=_after_fork)

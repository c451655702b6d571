"""The hub: one event loop that polls all links of a process, fires timers, and runs calls of other threads.

    one turn:   poll -> callbacks of ready descriptors -> due timers -> calls of other threads -> end-of-turn hooks

A hub is driven by its own thread (`start`), by the caller (`run`, `turn`) in a process that must have only one thread,
or not at all: then a caller that waits for an answer reads its link itself. Callbacks run one after another, on the
driving thread, and must not block. End-of-turn hooks run after all events of one poll, for example for a group commit.

Hubs are inert in a child that user code has forked: descriptors are closed, use raises `ClosedError`. Links and frames
are unknown here.

`Spinning` decides whether a thread that waits for bytes polls actively before it sleeps. Waking up on an idle core
costs 20 to 30 us, as much as the rest of a short call, and sleeping and waking cost as much processor time as a spin.
So a thread that waits for a reply, or has just served a call, first polls for SPIN_S at most and yields to every other
runnable thread. SPIN_S is the duration of a call with a small tensor on a full machine with cold caches.
"""

import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..base.clocks import Clock, SystemClock
from ..base.errors import ClosedError

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
SPIN_S = 200e-6
WAITS_SKIPPED_MAX = 255

_log = logging.getLogger(__name__)
_hubs: "weakref.WeakSet[Hub]" = weakref.WeakSet()


class ClosedInFork(Protocol):
    """An owner of descriptors that a forked child must not keep."""

    def close_fork(self) -> None:
        """Close the descriptors and do nothing else: locks may be held by threads that are not in the child."""

    def close(self) -> None:
        """Called when the hub closes, perhaps not for the first time."""


class Timer:
    """A call at `when_s`, unless it is canceled first."""

    __slots__ = ("call", "when_s")

    def __init__(self, when_s: float, call: Callable[[], None]) -> None:
        self.when_s = when_s
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Alarm:
    """Calls `ring` on the loop's thread at the earliest time that was set: one timer for many deadlines."""

    def __init__(self, hub: "Hub", ring: Callable[[], None]) -> None:
        self._hub = hub
        self._ring = ring
        self._lock = threading.Lock()
        self._due_s: float | None = None
        self._timer: Timer | None = None

    def set(self, due_s: float) -> None:
        """Ring at `due_s` or before. Thread-safe, as `cancel`."""
        with self._lock:
            if self._due_s is not None and self._due_s <= due_s:
                return
            self._due_s = due_s
        try:
            self._hub.call_soon(self._move)
        except BaseException:  # an interrupt: later calls must set the timer
            with self._lock:
                self._due_s = None
            raise

    def cancel(self) -> None:
        with self._lock:
            self._due_s = None
            if self._timer is not None:
                self._timer.cancel()

    def _move(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._due_s is not None:
                self._timer = self._hub.call_at(self._due_s, self._fire)

    def _fire(self) -> None:
        with self._lock:
            self._due_s = None
        self._ring()


class Spinning:
    """The history of the spins of one waiter. Used by one thread at a time.

    After a spin without success the next waits sleep at once: 1, then 3, 7, ... up to WAITS_SKIPPED_MAX of them. So
    long calls, and full machines, pay for one spin in 255 waits, and idle workers never spin.
    """

    __slots__ = ("_penalty", "_to_skip")

    def __init__(self) -> None:
        self._penalty = 0
        self._to_skip = 0

    def is_due(self) -> bool:
        """Return True if the wait that begins now should spin first. Call `ended` afterwards if so."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        return True

    def ended(self, *, seen: bool) -> None:
        """`seen`: whether bytes arrived during the spin."""
        self._penalty = 0 if seen else min(2 * self._penalty + 1, WAITS_SKIPPED_MAX)
        self._to_skip = self._penalty


# The kernel's limit is 2**31 ms. Longer waits check the clock once a day.
_LONGEST_S = 86_400.0


class Hub:
    """See the module. `close()` must be called by its owner; it joins the thread."""

    def __init__(self, *, clock: Clock | None = None, name: str = "hub") -> None:
        self.clock = clock or SystemClock()
        self.now_s = self.clock.now_s
        self.name = name
        self.driven = False
        self._pid = os.getpid()
        self._poll = select.epoll()
        # Reentrant, because a garbage collection in the thread that holds it may call `call_soon`.
        self._waking = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callbacks: dict[int, Callable[[int], None]] = {self._wake: self._woken}
        self._poll.register(self._wake, READ)
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._turn_end: tuple[Callable[[], None], ...] = ()
        self._fresh: set[int] = set()
        self._inherited: weakref.WeakSet[ClosedInFork] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self.loop_thread_id: int | None = None
        self._closing = False
        self.is_closed = False
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
        self.check_usable()
        self.loop_thread_id = threading.get_ident()
        self.driven = True
        try:
            while not until() and not self.is_closed:
                self._turn(None)
        finally:
            self.driven = False
            self.loop_thread_id = None

    def turn(self, timeout_s: float | None = 0.0, *, spin_s: float = 0.0) -> bool:
        """Run one turn, and wait at most `timeout_s` for events (None: without limit).

        `spin_s`: polls actively this long before it sleeps. Return True if events came meanwhile.
        """
        outer, self.loop_thread_id = self.loop_thread_id, threading.get_ident()
        try:
            return self._turn(timeout_s, spin_s)
        finally:
            self.loop_thread_id = outer

    def _turn(self, timeout_s: float | None, spin_s: float = 0.0) -> bool:
        fresh = self._fresh
        fresh.clear()
        ready = self._spin(spin_s) if spin_s else []
        has_events = bool(ready or (spin_s and self._soon))
        for fd, events in ready or self._poll.poll(self._timeout_s(timeout_s)):
            # A number that a callback of this turn closed may be in use again; the event was for the old one.
            callback = None if fd in fresh else self._callbacks.get(fd)
            if callback is not None:
                try:  # as `_guard`, inline for speed
                    callback(events)
                except BaseException as error:
                    if not self._is_logged(error):
                        raise
        if self._timers:
            now_s = self.clock.now_s()
            if self._timers[0][0] <= now_s:
                self._fire(now_s)
        if self._soon:
            for _ in range(len(self._soon)):
                if self._soon:  # a callback may have closed this hub
                    self._guard(self._soon.popleft())
        for hook in self._turn_end:
            try:  # as `_guard`
                hook()
            except BaseException as error:
                if not self._is_logged(error):
                    raise
        return has_events

    def _spin(self, for_s: float) -> list[tuple[int, int]]:
        """Poll actively until there are events, at most for this time."""
        poll, yield_cpu, now_s = self._poll.poll, os.sched_yield, time.perf_counter
        until_s, ready = now_s() + for_s, []
        while not (self._soon or (ready := poll(0))) and now_s() < until_s:
            yield_cpu()
        return ready

    @property
    def is_loop_thread(self) -> bool:
        """Return True on the thread that drives this hub, which must not wait for it."""
        return self.loop_thread_id == threading.get_ident()

    def _drive(self) -> None:
        self.loop_thread_id = threading.get_ident()
        while not self._closing:
            self._turn(None)
        if not self.is_closed:
            self._turn(0.0)  # calls from just before `close`

    def _timeout_s(self, timeout_s: float | None) -> float:
        if self._soon:
            return 0.0
        if self._timers:
            until_next = max(0.0, self._timers[0][0] - self.clock.now_s())
            timeout_s = until_next if timeout_s is None else min(timeout_s, until_next)
        return -1 if timeout_s is None else min(timeout_s, _LONGEST_S)

    def _fire(self, now_s: float) -> None:
        number = next(self._count)  # timers that callbacks set from now on wait for the next turn
        while self._timers and self._timers[0][0] <= now_s and self._timers[0][1] < number:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._guard(call)

    def _guard(self, callback: Callable[[], None]) -> None:
        """Run a callback; its error must not stop the loop for all others."""
        try:
            callback()
        except BaseException as error:
            if not self._is_logged(error):
                raise

    def _is_logged(self, error: BaseException) -> bool:
        """Log the error of a callback, but let Ctrl-C and the like pass on a thread of the user."""
        if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
            return False
        _log.exception("%s: a callback failed; the hub continues. Please report this with the traceback.", self.name)
        return True

    # -- calls, timers and descriptors -----------------------------------------------------------------------------

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in this or the next turn. Thread-safe; no effect after `close`."""
        if self.is_closed:
            return
        self._soon.append(call)
        if self.loop_thread_id != threading.get_ident():
            with self._waking:  # otherwise the descriptor may have been closed, and its number reused
                if not self.is_closed:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_write(self._wake, 1)

    def wake(self) -> None:
        """Make the loop run another turn. Thread-safe."""
        self.call_soon(_do_nothing)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Run `call` when the clock shows `when_s`. From the loop's thread, or before the loop runs."""
        timer = Timer(when_s, call)
        heapq.heappush(self._timers, (when_s, next(self._count), timer))
        return timer

    def at_turn_end(self, hook: Callable[[], None]) -> None:
        """Run `hook` at the end of every turn, in the order of registration."""
        self._turn_end = (*self._turn_end, hook)

    def not_at_turn_end(self, hook: Callable[[], None]) -> None:
        """Undo `at_turn_end`."""
        left = list(self._turn_end)
        left.remove(hook)
        self._turn_end = tuple(left)

    @property
    def has_hooks(self) -> bool:
        """Return True if there are end-of-turn hooks."""
        return bool(self._turn_end)

    def watch(self, fd: int, callback: Callable[[int], None], events: int = READ) -> None:
        """Call `callback(events)` whenever `fd` is ready. Thread-safe."""
        self._poll.register(fd, events)
        self._callbacks[fd] = callback
        self._fresh.add(fd)

    def change(self, fd: int, events: int) -> None:
        """Watch `fd` for other events; 0 pauses it. Thread-safe; works while another thread polls."""
        try:
            self._poll.modify(fd, events)
        except (OSError, ValueError):
            pass  # closed meanwhile

    def forget(self, fd: int) -> None:
        """Undo `watch`. Must come before `fd` is closed."""
        if self._callbacks.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(fd)

    def close_in_fork(self, thing: ClosedInFork) -> None:
        """`thing.close_fork()` is called in a forked child, and `thing.close()` when this hub closes."""
        self._inherited.add(thing)

    def check_usable(self) -> None:
        """Raise `ClosedError` in a fork of the process that this hub belongs to, and after `close`."""
        if not self.is_closed:  # it is closed in every fork
            return
        if self._pid != os.getpid():
            raise ClosedError(
                f"the links of process {self._pid} cannot be used in process {os.getpid()}, which was forked from it.\n"
                f"Report and call from the process that was started by fanwise, not from its DataLoader workers."
            )
        raise ClosedError(f"the hub {self.name!r} of process {self._pid} is closed.")

    def close(self) -> None:
        """Run the calls of other threads, end the loop, join its thread, end the links and close the descriptors.

        Not while another thread is in `run`. On the hub's own thread it does not join: the loop ends with this turn. A
        second call returns at once, even during the first.
        """
        if self._pid != os.getpid():
            return
        with self._waking:
            is_first, self._closing = not self._closing, True
        if not is_first:
            return
        if self._thread is not None and self._thread is not threading.current_thread():
            self.call_soon(lambda: None)
            self._thread.join()
        for thing in list(self._inherited):
            self._guard(thing.close)
        with self._waking:
            self.is_closed = True
            self.driven = False
            self._poll.close()
            os.close(self._wake)
        self._callbacks.clear()
        self._timers.clear()
        self._soon.clear()

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _go_inert(self) -> None:
        """Close the copies of the descriptors in a forked child."""
        self.driven = False
        for thing in list(self._inherited):
            thing.close_fork()
        if not self.is_closed:
            self.is_closed = True
            self._poll.close()
            os.close(self._wake)


def _do_nothing() -> None:
    pass


def _after_fork() -> None:
    for hub in list(_hubs):
        hub._go_inert()


os.register_at_fork(after_in_child=_after_fork)

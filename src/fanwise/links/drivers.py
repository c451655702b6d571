"""Drivers: threads that take turns at driving a hub, and run the user's code that comes in through it.

    driver   polls the hub, one turn after another; then runs, itself, the jobs that the turn brought
    watch    looks whether the driver is still in the same job as a tick ago; if so, it drives from now on
    spares   wait until they are needed

A short job so runs on the thread that read it: handing each to another thread costs two switches and the interpreter's
lock. A long one costs those behind it a tick or two. Who knows that it will block says so (`blocking`), and the hub is
driven by another at once. So some thread outside user code always reads, and jobs that wait for each other never stop
everything: more of them are begun, above `limit` one each `patience_s`.

While nothing comes the watch sleeps; nobody spins. Knows no link and no call: a job is something to be called.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident

from ..base.errors import ClosedError
from .hub import Hub

_log = logging.getLogger(__name__)

_TICK_S = 0.001
# After so many ticks without a job the watch goes to sleep; the next job wakes it.
_TICKS_AWAKE = 50
_IDLE_SPARES_MAX = 4

Job = Callable[[], None]


class Drivers:
    """See the module. `close()` must be called before the hub is closed.

    Args:
        hub: to be driven; not started.
        name: of the threads.
        limit: jobs that run at a time, not counting those that said that they block.
        patience_s: seconds without an end of a job after which one more is begun all the same.
    """

    def __init__(self, hub: Hub, *, name: str = "driver", limit: int = 16, patience_s: float = 0.02) -> None:
        self._hub = hub
        self._name = name
        self.limit = limit
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._driver = 0  # the thread that drives; 0: one is just taking over
        self._busy = False  # the driver is in a job
        self._begun = 0
        self._running: set[int] = set()  # threads in a job that has not said that it blocks
        self._full_since_s = 0.0  # so long no job has ended though as many run as may
        self._spares: list[_Spare] = []
        self._watch_sleeps = True
        self._over = False
        self._left = threading.Event()
        self._count = 0

    def start(self) -> None:
        """Begin to drive the hub."""
        self._hub.check_usable()
        self._hub.driven = True
        with self._lock:
            self._begin_thread(drives=False)  # first: who drives relies on it
            self._begin_thread(drives=True)

    def outside(self, job: Job) -> None:
        """Run `job` soon, not on a thread that reads. By any thread."""
        self._jobs.append(job)
        if self._driver != get_ident():
            self._hub.call_soon(_nothing)

    def blocking(self) -> None:
        """The calling job is about to block: another thread drives, and another job begins. Does nothing elsewhere."""
        me = get_ident()
        if me in self._running:
            self._make_room(me)
            with self._lock:
                if self._driver == me:
                    self._driver = 0
                    self._spares[-1].wake()

    def close(self, within_s: float = 5.0) -> None:
        """Drive no more; jobs that have not begun are dropped. Waits for the driver, not for jobs that still run."""
        with self._lock:
            first, self._over = not self._over, True
            polls = self._driver not in (0, get_ident()) and not self._busy  # who is in a job polls no more after it
        if first:
            self._jobs.clear()
            self._hub.call_soon(_nothing)
            for spare in list(self._spares):
                spare.wake()
            if polls:
                self._left.wait(within_s)

    # -- threads ---------------------------------------------------------------------------------------------------

    def _begin_thread(self, *, drives: bool) -> None:
        spare = _Spare()
        self._count += 1
        if drives:
            self._driver = -1
        else:
            self._spares.append(spare)
        name = f"fanwise-{self._name}-{self._count}"
        try:
            threading.Thread(target=self._live, args=(spare, drives), name=name, daemon=True).start()
        except RuntimeError:
            if not drives:
                self._spares.remove(spare)
            raise

    def _live(self, spare: "_Spare", drives: bool) -> None:
        me = get_ident()
        if drives:
            self._driver = me
        while drives or self._wait_until_needed(spare, me):
            drives = False
            self._drive(me)
            with self._lock:
                if self._over or len(self._spares) >= _IDLE_SPARES_MAX:
                    return
                self._spares.insert(0, spare)

    def _wait_until_needed(self, spare: "_Spare", me: int) -> bool:
        """Wait as a spare; the last of them is the watch. True: this thread drives from now on."""
        seen, quiet = -1, 0
        while not self._over:
            is_watch = self._spares[-1] is spare
            spare.wait(_TICK_S if is_watch and not self._watch_sleeps else None)
            with self._lock:
                if self._over:
                    break
                if self._spares[-1] is not spare:
                    continue
                if (self._driver == 0 or (self._busy and self._begun == seen)) and self._take_over(me):
                    return True
                quiet = 0 if self._busy or self._begun != seen else quiet + 1
                seen = self._begun
                self._watch_sleeps = quiet > _TICKS_AWAKE
                if self._watch_sleeps and self._busy:  # it began just now
                    self._watch_sleeps = False
        return False

    def _take_over(self, me: int) -> bool:
        """False: not now. The next watch comes before this one goes: who begins a job looks for it without the lock."""
        if len(self._spares) == 1:
            try:
                self._begin_thread(drives=False)
            except RuntimeError:  # the system gives no more threads; one that comes back from its job is as good
                return False
            del self._spares[0]
        else:
            self._spares.pop()
            self._spares[-1].wake()
        self._driver, self._busy = me, False
        return True

    # -- driving ---------------------------------------------------------------------------------------------------

    def _drive(self, me: int) -> None:
        """Until another thread drives, or all is over."""
        hub, jobs, timeout_s = self._hub, self._jobs, None
        try:
            while not self._over:
                try:
                    hub.turn(0.0 if jobs and timeout_s is None else timeout_s)
                except (SystemExit, KeyboardInterrupt):  # of a handler: it ends neither this thread nor the process
                    _log.exception("a callback of %s wanted to end the program; it goes on", self._name)
                timeout_s = None
                while jobs and not self._over:
                    if not self._may_begin():
                        timeout_s = self._patience_s
                        break
                    if not self._run_one(me):
                        return
        except ClosedError:
            pass
        self._driver = 0
        self._left.set()

    def _may_begin(self) -> bool:
        if len(self._running) < self.limit:
            return True
        return self._hub.clock.now_s() - self._full_since_s >= self._patience_s

    def _run_one(self, me: int) -> bool:
        """Run a job. False: another thread drives by now."""
        try:
            job = self._jobs.popleft()
        except IndexError:
            return True
        self._running.add(me)
        if len(self._running) >= self.limit:
            self._full_since_s = self._hub.clock.now_s()
        self._begun += 1
        self._busy = True
        if self._watch_sleeps:
            self._watch_sleeps = False
            self._spares[-1].wake()
        try:
            job()
        except BaseException:
            _log.exception("a job of %s failed; nobody else will hear of it", self._name)
        finally:
            if me in self._running:
                self._make_room(me)
            with self._lock:
                drives = self._driver == me
                if drives:
                    self._busy = False
        return drives

    def _make_room(self, me: int) -> None:
        """The job of thread `me` is one of the running no more: another driver, that may wait for it, hears of it."""
        was_full = len(self._running) >= self.limit
        self._running.discard(me)
        if was_full:
            self._full_since_s = self._hub.clock.now_s()
            if self._jobs and self._driver != me:
                self._hub.call_soon(_nothing)


class _Spare:
    """A thread that waits. To wake it twice is to wake it once."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wait(self, timeout_s: float | None) -> None:
        self._asleep.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def wake(self) -> None:
        try:
            self._asleep.release()
        except RuntimeError:
            pass  # it is awake, or about to be


def _nothing() -> None:
    """To wake a hub."""

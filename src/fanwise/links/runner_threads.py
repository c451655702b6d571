"""Runner threads: they take turns at driving a hub, and run the user's code that comes in through it.

    driver   polls the hub, one turn after another; then runs, itself, the jobs that the turn brought
    watch    looks whether the driver is still in the same job as a tick ago; if so, it drives from now on
    spares   wait until they are needed

    answer, outside   what somebody here waits for, and work of our own: first, in places of their own
    call              what others ask for: at most `limit` at a time

A short job so runs on the thread that read it: handing each to another thread costs two switches and the interpreter's
lock. A long one costs those behind it a tick or two. A job that waits for another worker says so (`waiting`): another
thread drives at once, and its place is free until the wait is over. Then the job goes on without asking whether its
place is still free: it may hold a lock that the one in its place waits for. Until enough have ended, none begins.
Jobs of one kind that wait for each other without saying so stop when all places are taken; nothing here can know.

Who has run a job spins for a moment before it sleeps, as long as that pays (`spinning`): a caller that
makes one call after another so wakes nobody. While nothing comes all sleep. Knows no link and no call: a job is
something to be called.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Protocol

from ..base.errors import ClosedError
from .hub import SPIN_S, Hub, Spinning

_log = logging.getLogger(__name__)

_TICK_S = 0.001
# So long short jobs run one after another before the hub is polled again: it may bring what goes before them.
_UNPOLLED_S = 0.001
# After so many ticks without a job the watch goes to sleep; the next job wakes it.
_TICKS_AWAKE = 50
_IDLE_SPARES_MAX = 4
_FAILED = "a job of %s failed; nobody else will hear of it"

Job = Callable[[], None]


class SpinPolicy(Protocol):
    """Decides whether to spin before sleeping; see `spinning`."""

    def is_due(self) -> bool: ...
    def ended(self, *, seen: bool) -> None: ...


class _Kind:
    """Jobs that share places: those that wait for one, and the threads that have one. No lock: no step is torn."""

    __slots__ = ("jobs", "limit", "running")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.jobs: deque[Job] = deque()
        self.running: set[int] = set()

    @property
    def can_begin(self) -> bool:
        return bool(self.jobs) and len(self.running) < self.limit


class RunnerThreads:
    """See the module. `close()` must be called before the hub is closed.

    Args:
        hub: to be driven; not started.
        name: of the threads.
        limit: calls that run at a time, not counting those that wait; and as many answers.
        spinning: whether who has run a job spins before it sleeps; None: as long as it pays.
    """

    def __init__(self, hub: Hub, *, name: str = "driver", limit: int = 16, spinning: SpinPolicy | None = None) -> None:
        self._hub = hub
        self._name = name
        self.limit = limit
        self._lock = threading.Lock()
        self._answers, self._calls = _Kind(limit), _Kind(limit)
        self._kinds: dict[int, _Kind] = {}  # of the jobs that threads are in
        self._driver = 0  # the thread that drives; 0: one is just taking over
        self._busy = False  # the driver is in a job
        self._begun = 0
        self._spinning = spinning or Spinning()
        self._spares: list[_Spare] = []
        self._watch_sleeps = True
        self._closing = False  # calls are dropped; what answers runs to the end
        self._over = False
        self._left = threading.Event()
        self._count = 0

    @property
    def num_running(self) -> int:
        """How many calls run and do not wait."""
        return len(self._calls.running)

    @property
    def num_waiting(self) -> tuple[int, int]:
        """How many calls, and how many answers, have not begun."""
        return len(self._calls.jobs), len(self._answers.jobs)

    def start(self) -> None:
        """Begin to drive the hub."""
        self._hub.check_usable()
        self._hub.driven = True
        with self._lock:
            self._begin_thread(drives=False)  # first: who drives relies on it
            self._begin_thread(drives=True)

    def call(self, job: Job) -> None:
        """Run `job`, which another worker asks for, when it has a place. By any thread. Dropped when `close` begins."""
        if not self._closing:
            self._calls.jobs.append(job)
            if self._driver != get_ident():
                self._hub.call_soon(_nothing)

    def outside(self, job: Job) -> None:
        """Run `job` soon, not on a thread that reads, before all calls. By any thread. Dropped after `close`."""
        if not self._over:
            self._bring(self._answers, job)

    def answer(self, job: Job) -> None:
        """As `outside`, and never dropped: somebody waits for what it does. After `close`, on this thread."""
        self._bring(self._answers, job)
        if self._over:
            self._run_left()

    def _bring(self, kind: _Kind, job: Job) -> None:
        kind.jobs.append(job)
        if self._driver != get_ident():
            self._hub.call_soon(_nothing)

    def waiting(self) -> "Waiting":
        """While a `with` of this is entered, the calling job waits: its place is free. Does nothing elsewhere."""
        return Waiting(self)

    def begin_waiting(self) -> bool:
        """The calling job is about to wait: another thread drives, and another job begins. True: tell `end_waiting`."""
        me = get_ident()
        kind = self._kinds.get(me)
        if kind is None or me not in kind.running:
            return False
        self._make_room(kind, me)
        with self._lock:
            if self._driver == me:
                self._driver = 0
                self._spares[-1].wake()
        return True

    def end_waiting(self) -> None:
        """It goes on, and counts again. Only when `begin_waiting` said so."""
        me = get_ident()
        self._kinds[me].running.add(me)

    def close(self, within_s: float = 5.0) -> None:
        """Drive no more. Calls that have not begun are dropped; what answers is begun. Does not wait for what runs."""
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            return
        self._calls.jobs.clear()
        self._answers.limit = sys.maxsize  # who waits must hear of the end, whatever others do meanwhile
        if self._count:
            self.begin_waiting()  # this thread may be in a job, even drive
            self._hub.call_soon(_nothing)
            self._left.wait(within_s)
        self._over = True
        self._hub.call_soon(_nothing)
        for spare in list(self._spares):
            spare.wake()
        self._run_left()

    def _run_left(self) -> None:
        jobs = self._answers.jobs
        while jobs:
            try:
                job = jobs.popleft()
            except IndexError:
                return
            try:
                job()
            except BaseException:
                _log.exception(_FAILED, self._name)

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
                if self._spares[-1] is not spare or self._left.is_set():
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
        hub, answers, calls, spinning, spun_at = self._hub, self._answers, self._calls, self._spinning, self._begun
        try:
            while not self._over:
                try:
                    some = (answers.jobs or calls.jobs) and (answers.can_begin or calls.can_begin)
                    if some:
                        hub.turn()
                    elif spun_at != self._begun and spinning.is_due():  # it has run jobs since
                        spinning.ended(seen=hub.turn(None, spin_s=SPIN_S))
                    else:
                        hub.turn(None)
                    spun_at = self._begun
                except (SystemExit, KeyboardInterrupt):  # of a handler: it ends neither this thread nor the process
                    _log.exception("a callback of %s wanted to end the program; it goes on", self._name)
                if (answers.jobs or calls.jobs) and not self._run_some(me):
                    return
                if self._closing and not answers.jobs:
                    break
        except ClosedError:
            pass
        self._left.set()  # first: from now on no other drives
        self._driver = 0

    def _run_some(self, me: int) -> bool:
        """Run jobs for a moment; what answers first. False: another thread drives by now."""
        answers, calls, now_s, until_s = self._answers, self._calls, time.perf_counter, 0.0
        while not self._over:
            if answers.jobs and len(answers.running) < answers.limit:
                kind = answers
            elif calls.jobs and len(calls.running) < calls.limit:
                kind = calls
            else:
                break
            if not self._run_one(me, kind):
                return False
            if not (answers.jobs or calls.jobs):
                break  # as after most turns: no need to look at the clock
            if not until_s:
                until_s = now_s() + _UNPOLLED_S
            elif now_s() > until_s:
                break
        return True

    def _run_one(self, me: int, kind: _Kind) -> bool:
        """Run a job. False: another thread drives by now."""
        try:
            job = kind.jobs.popleft()
        except IndexError:
            return True
        kind.running.add(me)
        self._kinds[me] = kind
        self._begun += 1
        self._busy = True
        if self._watch_sleeps:
            self._watch_sleeps = False
            self._spares[-1].wake()
        try:
            job()
        except BaseException:
            _log.exception(_FAILED, self._name)
        finally:
            kind.running.discard(me)  # as `_make_room`
            if kind.jobs and self._driver != me:
                self._hub.call_soon(_nothing)
            del self._kinds[me]
            with self._lock:
                drives = self._driver == me
                if drives:
                    self._busy = False
        return drives

    def _make_room(self, kind: _Kind, me: int) -> None:
        """The job of thread `me` has no place any more: another driver, that may wait for one, hears of it."""
        kind.running.discard(me)
        if kind.jobs and self._driver != me:
            self._hub.call_soon(_nothing)


class Waiting:
    """A job waits while this is entered. See `RunnerThreads.waiting`."""

    __slots__ = ("_released", "_runners")

    def __init__(self, runners: RunnerThreads) -> None:
        self._runners = runners
        self._released = False

    def __enter__(self) -> None:
        self._released = self._runners.begin_waiting()

    def __exit__(self, *_: object) -> None:
        if self._released:
            self._runners.end_waiting()


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

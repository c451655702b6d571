"""Runner threads drive a hub in turns and run the jobs that arrive through it.

    driver   polls the hub, one turn after another, and then runs the jobs of that turn itself
    watch    checks every tick whether the driver is still in the same job; if so, it becomes the driver
    spares   sleep until they are needed

Short jobs therefore run on the thread that read them: handing each to another thread costs two context switches and
the interpreter's lock, about a third of a small call. A long job delays those behind it by a tick or two.

There are two kinds of jobs, each with `limit` slots. Answers (and other work of this process) are jobs that someone
here waits for; they go first. Calls are jobs for others. A job that waits for another worker says so (`waiting`):
another thread drives at once, and the slot is free until the wait is over. The job then continues even if its slot is
taken, because it may hold a lock that the job in its slot waits for; no job begins until enough have ended. Jobs of one
kind that wait for each other without saying so stop when all slots are taken.

After a job the driver spins for a moment before it sleeps, as long as that pays (`Spinning`), so a caller that makes
one call after another wakes no thread. Links and calls are unknown here.
"""

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident

from ..base.errors import ClosedError
from .hub import SPIN_S, Hub, Spinning

_log = logging.getLogger(__name__)

_TICK_S = 0.001
# Short jobs run one after another for this long before the hub is polled again, which may bring answers.
_UNPOLLED_S = 0.001
# Number of ticks without a job after which the watch sleeps until the next job.
_TICKS_AWAKE = 50
_IDLE_SPARES_MAX = 4
_FAILED = "a job of %s failed; no one else reports it"

Job = Callable[[], None]


class _Kind:
    """Queue and running threads of one kind of jobs. Lock-free: each update is one atomic operation under the GIL."""

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
        spinning: decides whether the driver spins after a job.
    """

    def __init__(self, hub: Hub, *, name: str = "driver", limit: int = 16, spinning: Spinning | None = None) -> None:
        self._hub = hub
        self._name = name
        self.limit = limit
        self._lock = threading.Lock()
        self._answers, self._calls = _Kind(limit), _Kind(limit)
        self._kinds: dict[int, _Kind] = {}  # of the jobs that threads are in
        self._driver = 0  # the thread that drives; 0 while another takes over
        self._is_busy = False  # the driver is in a job
        self._num_begun = 0
        self._spinning = spinning or Spinning()
        self._spares: list[_Spare] = []
        self._is_watch_asleep = True
        self._is_closing = False  # calls are dropped; answers run to the end
        self._is_over = False
        self._driver_left = threading.Event()
        self._num_threads = 0

    @property
    def num_running(self) -> int:
        """Number of calls that run and do not wait."""
        return len(self._calls.running)

    @property
    def num_waiting(self) -> tuple[int, int]:
        """Number of calls and of answers that have not begun."""
        return len(self._calls.jobs), len(self._answers.jobs)

    def start(self) -> None:
        """Begin to drive the hub."""
        self._hub.check_usable()
        self._hub.driven = True
        with self._lock:
            self._start_thread(drives=False)  # first: the driver relies on it
            self._start_thread(drives=True)

    def call(self, job: Job) -> None:
        """Run a job for another worker when there is a slot. Thread-safe. Dropped when `close` begins."""
        if not self._is_closing:
            self._add(self._calls, job)

    def outside(self, job: Job) -> None:
        """Run a job soon, before all calls, and not on a thread that reads. Thread-safe. Dropped after `close`."""
        if not self._is_over:
            self._add(self._answers, job)

    def answer(self, job: Job) -> None:
        """As `outside`, but never dropped, because someone waits for it. After `close` it runs on this thread."""
        self._add(self._answers, job)
        if self._is_over:
            self._run_rest()

    def _add(self, kind: _Kind, job: Job) -> None:
        kind.jobs.append(job)
        if self._driver != get_ident():
            self._hub.wake()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The calling job waits inside the block: its slot is free. No effect on other threads."""
        has_begun = self.begin_waiting()
        try:
            yield
        finally:
            if has_begun:
                self.end_waiting()

    def begin_waiting(self) -> bool:
        """The calling job is about to wait. Return True if `end_waiting` must be called."""
        me = get_ident()
        kind = self._kinds.get(me)
        if kind is None or me not in kind.running:
            return False
        self._free_slot(kind, me)
        with self._lock:
            if self._driver == me:
                self._driver = 0
                self._spares[-1].wake()
        return True

    def end_waiting(self) -> None:
        """The calling job continues, and counts again."""
        me = get_ident()
        self._kinds[me].running.add(me)

    def close(self, within_s: float = 5.0) -> None:
        """Stop driving. Queued calls are dropped, answers are begun. Does not wait for jobs that run."""
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
        if not is_first:
            return
        self._calls.jobs.clear()
        self._answers.limit = sys.maxsize  # waiting threads must learn of the end, even if other jobs block
        if self._num_threads:
            self.begin_waiting()  # this thread may be in a job, even drive
            self._hub.wake()
            self._driver_left.wait(within_s)
        self._is_over = True
        self._hub.wake()
        for spare in list(self._spares):
            spare.wake()
        self._run_rest()

    def _run_rest(self) -> None:
        while True:
            try:
                job = self._answers.jobs.popleft()
            except IndexError:
                return
            self._run_job(job)

    def _run_job(self, job: Job) -> None:
        try:
            job()
        except BaseException:
            _log.exception(_FAILED, self._name)

    # -- threads ---------------------------------------------------------------------------------------------------

    def _start_thread(self, *, drives: bool) -> None:
        spare = _Spare()
        self._num_threads += 1
        if drives:
            self._driver = -1
        else:
            self._spares.append(spare)
        name = f"fanwise-{self._name}-{self._num_threads}"
        try:
            threading.Thread(target=self._run_thread, args=(spare, drives), name=name, daemon=True).start()
        except RuntimeError:
            if not drives:
                self._spares.remove(spare)
            raise

    def _run_thread(self, spare: "_Spare", drives: bool) -> None:
        me = get_ident()
        if drives:
            self._driver = me
        while drives or self._wait_until_needed(spare, me):
            drives = False
            self._drive(me)
            with self._lock:
                if self._is_over or len(self._spares) >= _IDLE_SPARES_MAX:
                    return
                self._spares.insert(0, spare)

    def _wait_until_needed(self, spare: "_Spare", me: int) -> bool:
        """Wait as a spare; the last of them is the watch. Return True if this thread drives from now on."""
        num_seen, num_quiet_ticks = -1, 0
        while not self._is_over:
            is_watch = self._spares[-1] is spare
            spare.wait(_TICK_S if is_watch and not self._is_watch_asleep else None)
            with self._lock:
                if self._is_over:
                    break
                if self._spares[-1] is not spare or self._driver_left.is_set():
                    continue
                is_stuck = self._is_busy and self._num_begun == num_seen
                if (self._driver == 0 or is_stuck) and self._take_over(me):
                    return True
                is_quiet = not self._is_busy and self._num_begun == num_seen
                num_quiet_ticks = num_quiet_ticks + 1 if is_quiet else 0
                num_seen = self._num_begun
                self._is_watch_asleep = num_quiet_ticks > _TICKS_AWAKE
                if self._is_watch_asleep and self._is_busy:  # a job has just begun
                    self._is_watch_asleep = False
        return False

    def _take_over(self, me: int) -> bool:
        """Become the driver. The next watch starts first, because a beginning job looks for it without the lock.

        Return False if the system has no more threads; then a thread that returns from its job drives.
        """
        if len(self._spares) == 1:
            try:
                self._start_thread(drives=False)
            except RuntimeError:
                return False
            del self._spares[0]
        else:
            self._spares.pop()
            self._spares[-1].wake()
        self._driver, self._is_busy = me, False
        return True

    # -- driving ---------------------------------------------------------------------------------------------------

    def _drive(self, me: int) -> None:
        """Drive until another thread does, or the end."""
        hub, answers, calls, spinning = self._hub, self._answers, self._calls, self._spinning
        spun_at = self._num_begun
        try:
            while not self._is_over:
                try:
                    if (answers.jobs or calls.jobs) and (answers.can_begin or calls.can_begin):
                        hub.turn()
                    elif spun_at != self._num_begun and spinning.is_due():  # it has run jobs since the last spin
                        spinning.ended(seen=hub.turn(None, spin_s=SPIN_S))
                    else:
                        hub.turn(None)
                    spun_at = self._num_begun
                except (SystemExit, KeyboardInterrupt):  # of a handler: it ends neither this thread nor the process
                    _log.exception("a callback of %s tried to end the program, which continues", self._name)
                if (answers.jobs or calls.jobs) and not self._run_some(me):
                    return
                if self._is_closing and not answers.jobs:
                    break
        except ClosedError:
            pass
        self._driver_left.set()  # first: from now on no other thread drives
        self._driver = 0

    def _run_some(self, me: int) -> bool:
        """Run jobs for a moment, answers first. Return False if another thread drives now."""
        answers, calls, now_s, until_s = self._answers, self._calls, time.perf_counter, 0.0
        while not self._is_over:
            if answers.can_begin:
                kind = answers
            elif calls.can_begin:
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
        """Run a job. Return False if another thread drives now."""
        try:
            job = kind.jobs.popleft()
        except IndexError:
            return True
        kind.running.add(me)
        self._kinds[me] = kind
        self._num_begun += 1
        self._is_busy = True
        if self._is_watch_asleep:
            self._is_watch_asleep = False
            self._spares[-1].wake()
        self._run_job(job)
        self._free_slot(kind, me)
        del self._kinds[me]
        with self._lock:
            drives = self._driver == me
            if drives:
                self._is_busy = False
        return drives

    def _free_slot(self, kind: _Kind, me: int) -> None:
        """The job of thread `me` has no slot any more. Another driver may wait for one."""
        kind.running.discard(me)
        if kind.jobs and self._driver != me:
            self._hub.wake()


class _Spare:
    """A sleeping thread. Waking it twice is the same as waking it once."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wait(self, timeout_s: float | None) -> None:
        self._asleep.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake, or about to be
            self._asleep.release()

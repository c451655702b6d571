"""The event loop, processes and engine of a pool, from first use to closing and on to the next pool.

    start_ahead() --> kept --take()--> used by one pool --keep()--> kept --idle for IDLE_S, or release()--> ended

A backend has an event loop's thread, a private folder and the processes below them: guard, supervisor and warm process.
Importing torch takes seconds, so the backend of a closed pool is kept for a while, and the next pool forks its first
job at once. At most one is kept. It is used again only if a process started now would have the same environment, paths
and limits. The warm process itself notices edited source files.

A `Lifetime` is an engine on a backend. Everything here may be used on any thread. A forked child of this process keeps
nothing; in it, use of a `Lifetime` raises `ClosedError` and closing does nothing.
"""

import atexit
import contextlib
import os
import pickle
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol

from ..base.errors import ClosedError
from ..links.hub import Hub, Timer
from ..links.transports.unix import new_key, private_folder
from .contract import Engine
from .current import in_job
from .modules import modules_needed
from .runtime_environment import FIXED_VARIABLES, capture_environment
from .specs import Packed
from .worker_set import WorkerSet

# A kept warm process holds the memory of the user's imports. Consecutive searches start sooner than this.
IDLE_S = 60.0

# Time for reused workers and an MPS daemon to exit at closing. Later, all processes are ended.
_LEAVING_S = 2.0
_POLL_S = 0.001

# Importing scikit-learn or torch sets these in the user's process. Other processes do not need them.
_SET_BY_LIBRARIES = frozenset(("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"))

_INHERITED = ("Umask:", "Uid:", "Gid:", "Groups:", "SigIgn:", "Cpus_allowed:")
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Backend:
    """The event loop and processes of a pool, and a folder for sockets, logs and the output of jobs.

    Attributes:
        timer: ends it while it is kept.
    """

    def __init__(self) -> None:
        self.hub = Hub(name="pool")
        self.folder = private_folder()
        self.timer: Timer | None = None
        self.surroundings = _surroundings()
        self.hub.start()

    @cached_property
    def worker_set(self) -> WorkerSet:
        """The processes of this machine. A pool on a cluster has none."""
        return WorkerSet(self.hub, self.folder, new_key())

    def on_hub(self, call: Callable[[], None]) -> None:
        """Run `call` on the event loop's thread. Blocks until it has run."""
        if self.hub.is_loop_thread:
            call()
            return
        done = threading.Event()
        self.hub.call_soon(call)
        self.hub.call_soon(done.set)  # also runs if `call` raises
        done.wait()

    def end(self) -> None:
        worker_set: WorkerSet | None = vars(self).get("worker_set")
        if worker_set is not None and not self.hub.is_closed:
            self.on_hub(worker_set.close)
        self.hub.close()
        if worker_set is not None:
            worker_set.interpreters.wait_closed()
        shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_cached: Backend | None = None
_of_parent: list[Backend | None] = []  # kept alive in a forked child, because destructors would end its processes


def start_ahead(*functions: Callable[..., object]) -> None:
    """Start a warm process in the background and let it import the modules of these functions.

    Does nothing inside a job. If processes cannot be started, the first job of the pool reports the error.
    """
    if in_job():
        return
    with contextlib.suppress(OSError, RuntimeError):
        backend = take()
        try:
            modules, worker_set = modules_needed(*functions), backend.worker_set
            packed = Packed(pickle.dumps(int), b"", "imports: " + " ".join(modules), "start_ahead", modules)
            backend.hub.call_soon(lambda: worker_set.warm_up(packed))
        except BaseException:
            backend.end()
            raise
        keep(backend)


def take() -> Backend:
    """Return the kept backend, or a new one if none is kept or it is out of date."""
    backend = _take_kept()
    if backend is not None and backend.surroundings != _surroundings():
        backend.end()
        backend = None
    return backend or Backend()


def keep(backend: Backend) -> None:
    """Keep an unused backend for IDLE_S. Blocks while another kept one ends."""
    global _cached
    with _lock:
        previous, _cached = _cached, backend
        backend.timer = None
    backend.hub.call_soon(lambda: _set_timer(backend))
    if previous is not None:
        previous.end()


def release() -> None:
    """End the kept backend. Blocks until its processes are gone."""
    backend = _take_kept()
    if backend is not None:
        backend.end()


def _take_kept() -> Backend | None:
    global _cached
    with _lock:
        backend, _cached = _cached, None
        if backend is not None and backend.timer is not None:
            backend.timer.cancel()
    return backend


def _set_timer(backend: Backend) -> None:
    with _lock:
        if _cached is backend:
            backend.timer = backend.hub.call_at(backend.hub.now_s() + IDLE_S, lambda: _expire(backend))


def _expire(backend: Backend) -> None:
    global _cached
    with _lock:
        if _cached is not backend:
            return
        _cached = None
    threading.Thread(target=backend.end, name="fanwise-ending", daemon=True).start()  # `end` joins the loop's thread


def _surroundings() -> tuple[object, ...]:
    """Return everything that a process started now would inherit, or read to import the user's modules."""
    ignored = FIXED_VARIABLES | _SET_BY_LIBRARIES
    return (
        {name: value for name, value in os.environ.items() if name not in ignored},
        capture_environment({}).folder,
        tuple(sys.path),
        [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_INHERITED)],
        [resource.getrlimit(limit) for limit in _LIMITS],
        os.getpriority(os.PRIO_PROCESS, 0),
    )


def _after_fork() -> None:
    global _cached, _lock
    _of_parent.append(_cached)
    _cached, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(release)


# -- engines on backends -----------------------------------------------------------------------------------------------


class PoolEngine(Engine, Protocol):
    """An engine of a pool. The methods added here may be called on any thread."""

    @property
    def loop(self) -> Hub: ...
    @property
    def finished(self) -> int: ...

    def counts(self) -> tuple[int, int]:
        """Return the number of running and of waiting jobs."""


class Running(Protocol):
    """An engine with the processes around it."""

    @property
    def engine(self) -> PoolEngine: ...

    def begin(self) -> None:
        """Block until jobs can run. Called when the event loop runs."""

    def leave(self) -> bool | None:
        """Close the engine so that the next pool can use the backend. Called on the event loop's thread.

        Returns:
            False if that is impossible, None while processes are exiting: call it again.
        """

    def close(self) -> None:
        """End every job. Called on the event loop's thread. Does not block."""

    def wait_closed(self) -> None:
        """Block until no processes are left. Called after `close`, on another thread."""


class Lifetime:
    """An engine that is created at first use and never again after closing.

    Args:
        make: creates the engine on a backend.
        shares_backend: use the kept backend, and leave it to the next pool if no jobs are left.

    Attributes:
        closed: never becomes False again.
    """

    def __init__(self, make: Callable[[Backend], Running], *, shares_backend: bool = False) -> None:
        self.closed = False
        self.engine: PoolEngine | None = None
        self.hub: Hub | None = None
        self.folder = Path()
        self._make = make
        self._shares_backend = shares_backend
        self._backend: Backend | None = None
        self._running: Running | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def start(self) -> PoolEngine:
        """Return the engine. The first call blocks until jobs can run.

        Raises:
            ClosedError: closed, or this process was forked from the owner.
            NotInstalled, ClusterError: the cluster cannot be used.
        """
        self.check_process()
        with self._lock:
            if self.closed:
                raise closed_error()
            if self.engine is None:
                self._begin()
            return self.started_engine

    def _begin(self) -> None:
        backend = take() if self._shares_backend else Backend()
        running: Running | None = None
        try:
            running = self._make(backend)
            running.begin()
        except BaseException:  # also Ctrl-C: the next use starts again
            _end(running, backend)
            raise
        self.hub, self.folder, self._backend = backend.hub, backend.folder, backend
        self._running, self.engine = running, running.engine

    @property
    def started_engine(self) -> PoolEngine:
        assert self.engine is not None, "jobs exist only when the engine does"
        return self.engine

    def on_hub(self, call: Callable[[], None]) -> bool:
        """Queue `call` for the event loop's thread. Return False if the pool is closed."""
        self.check_process()
        with self._lock:
            if self.closed or self.hub is None:
                return False
            self.hub.call_soon(call)
            return True

    @property
    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def check_process(self) -> None:
        if self.is_forked:
            raise ClosedError(
                f"this pool belongs to process {self._pid}; process {os.getpid()} was forked from it and cannot use it."
            )

    def close(self) -> None:
        """End every job and process. Blocks until they are gone. Further calls do nothing."""
        if self.is_forked:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            running, backend = self._running, self._backend
        if running is None or backend is None:
            return
        if self._shares_backend and not backend.hub.is_loop_thread and _leave(running, backend):
            keep(backend)
        else:
            _end(running, backend)


def _leave(running: Running, backend: Backend) -> bool:
    """Close the engine so that another one can use the backend. Return False if that takes too long."""
    has_left: bool | None = None

    def leave() -> None:
        nonlocal has_left
        has_left = False  # if it raises
        has_left = running.leave()

    until_s = time.monotonic() + _LEAVING_S
    backend.on_hub(leave)
    while has_left is None and time.monotonic() < until_s:
        time.sleep(_POLL_S)
        backend.on_hub(leave)
    return bool(has_left)


def _end(running: Running | None, backend: Backend) -> None:
    if running is not None:
        backend.on_hub(running.close)
        backend.hub.close()
        running.wait_closed()
    backend.end()


def closed_error() -> ClosedError:
    return ClosedError("this pool is closed. Make a new one.")

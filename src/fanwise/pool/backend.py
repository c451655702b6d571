"""The event loop and processes of a pool, which are kept for the next pool of this process.

    start_ahead() --> kept --take()--> used by one pool --keep()--> kept --idle for IDLE_S, or release()--> ended

A backend has an event loop's thread, a private folder and the processes below them: guard, supervisor and warm process.
Importing torch takes seconds, so the backend of a closed pool is kept for a while, and the next pool forks its first
job at once. At most one is kept. It is used again only if a process started now would have the same environment, paths
and limits. The warm process itself notices edited source files.

Functions here may be called on any thread. A forked child of this process keeps nothing.
"""

import atexit
import contextlib
import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from ..links.hub import Hub, Timer
from ..links.transports.unix import new_key, private_folder
from .current import in_job
from .launching import FIXED_VARIABLES
from .preload import modules_needed
from .runtime_environment import capture_environment
from .worker_set import WorkerSet

# A kept warm process holds the memory of the user's imports. Consecutive searches start sooner than this.
IDLE_S = 60.0

# Importing scikit-learn or torch sets these in the user's process. Other processes do not need them.
_SET_BY_LIBRARIES = frozenset(("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"))

_INHERITED = ("Umask:", "Uid:", "Gid:", "Groups:", "SigIgn:", "Cpus_allowed:")
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Backend:
    """The event loop and processes of a pool.

    Attributes:
        hub: event loop with its own thread.
        folder: for sockets, logs and the output of jobs. Removed at the end.
    """

    def __init__(self) -> None:
        self.hub = Hub(name="pool")
        self.folder = private_folder()
        self.timer: Timer | None = None
        self._surroundings = _surroundings()
        self.hub.start()

    @cached_property
    def worker_set(self) -> WorkerSet:
        """The processes of this machine. Not used by a pool on a cluster."""
        return WorkerSet(self.hub, self.folder, new_key())

    @property
    def is_current(self) -> bool:
        """Whether a process started now would have the same surroundings as the processes of this backend."""
        return self._surroundings == _surroundings()

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
        """End every process. Blocks until they are gone."""
        worker_set: WorkerSet | None = vars(self).get("worker_set")
        if worker_set is not None and not self.hub.is_closed:
            self.on_hub(worker_set.close)
        self.hub.close()
        if worker_set is not None:
            worker_set.wait_closed()
        shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_cached: Backend | None = None
_of_parent: list[Backend | None] = []  # kept alive in a forked child, because destructors would end its processes


def start_ahead(*functions: Callable[..., object]) -> None:
    """Start a warm process in the background and let it import the modules of these functions. Does not block.

    Uses the kept backend if possible. Does nothing inside a job. If processes cannot be started, the first job of
    the pool reports the error.
    """
    if in_job():
        return
    with contextlib.suppress(OSError, RuntimeError):
        backend = take()
        worker_set, modules = backend.worker_set, modules_needed(*functions)
        backend.hub.call_soon(lambda: worker_set.preload(modules))
        keep(backend)


def take() -> Backend:
    """Return the kept backend, or a new one if none is kept or it is out of date."""
    backend = _take_kept()
    if backend is not None and backend.is_current:
        return backend
    if backend is not None:
        backend.end()
    return Backend()


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

"""The life of a pool in its owner's process: an engine on a backend, from first use to closing.

If no jobs are left, the backend of a closed pool is kept for the next one, see `backend`. In a process that was forked
from the owner, use raises `ClosedError` and closing does nothing. Methods may be called on any thread.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..base.errors import ClosedError
from ..links.hub import Hub
from .backend import Backend, keep
from .contract import Engine
from .specs import How, RuntimeEnvironment

# Time for reused workers and an MPS daemon to exit at closing. Later, all processes are ended.
_LEAVING_S = 2.0
_POLL_S = 0.001


class PoolEngine(Engine, Protocol):
    """An engine with the statistics of a pool."""

    @property
    def finished(self) -> int:
        """Number of finished jobs."""

    @property
    def started(self) -> Counter[How]:
        """Number of jobs by the way in which their process was started."""

    def counts(self) -> tuple[int, int]:
        """Return the number of running and of waiting jobs. May be called on any thread."""

    def runtime_environment(self) -> RuntimeEnvironment:
        """Return the runtime environment of this process for its jobs. May be called on any thread."""


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
        take: returns the backend.
        keeps_backend: leave the backend to the next pool, if no jobs are left.

    Attributes:
        closed: never becomes False again.
        retried: number of repeated jobs.
    """

    def __init__(
        self,
        make: Callable[[Backend], Running],
        take: Callable[[], Backend] = Backend,
        *,
        keeps_backend: bool = False,
    ) -> None:
        self.closed = False
        self.retried = 0
        self.engine: PoolEngine | None = None
        self.hub: Hub | None = None
        self.folder = Path()
        self._make = make
        self._take = take
        self._keeps_backend = keeps_backend
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
        backend = self._take()
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
        """The engine of a job, which must have been started."""
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
        """Whether this process was forked from the owner."""
        return self._pid != os.getpid()

    def check_process(self) -> None:
        """Raise ClosedError if this process was forked from the owner."""
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
        if self._keeps_backend and not backend.hub.is_loop_thread and _leave(running, backend):
            keep(backend)
        else:
            _end(running, backend)


def _leave(running: Running, backend: Backend) -> bool:
    has_left: bool | None = None

    def leave() -> None:
        nonlocal has_left
        has_left = False  # if it raises
        has_left = running.leave()

    until_s = time.monotonic() + _LEAVING_S
    while has_left is None and time.monotonic() < until_s:
        backend.on_hub(leave)
        if has_left is None:
            time.sleep(_POLL_S)
    return bool(has_left)


def _end(running: Running | None, backend: Backend) -> None:
    if running is not None:
        backend.on_hub(running.close)
        backend.hub.close()
        running.wait_closed()
    backend.end()


def closed_error() -> ClosedError:
    return ClosedError("this pool is closed. Make a new one.")

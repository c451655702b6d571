"""The life of a pool in its owner's process: an engine on a backend, from the first use to the end.

    (nothing) --start--> engine, backend --close--> (nothing, for good)

If nothing is left of its jobs, the backend of a closed pool is kept for the next one, see `backend`. In a process that
was forked from the owner all of this is inert: use raises `ClosedError`, closing does nothing. Methods may be called by
any thread. Knows nothing of what users submit, nor whether the engine's jobs run on this machine.
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
from .engine import LocalEngine
from .leases import Machine
from .specs import How, RuntimeEnvironment

# How long a pool waits for reused workers and an MPS daemon to leave by themselves. If they do not, all processes end.
_LEAVING_S = 2.0
_PAUSE_S = 0.001


class PoolEngine(Engine, Protocol):
    """An engine, and what a pool tells its user of it."""

    @property
    def finished(self) -> int:
        """How many jobs are over."""

    @property
    def started(self) -> Counter[How]:
        """How the processes of jobs came to be."""

    @property
    def connections_refused(self) -> int:
        """How many connections were closed because they did not prove themselves."""

    def counts(self) -> tuple[int, int]:
        """How many jobs run, and how many wait to begin. By any thread."""

    def runtime_environment(self) -> RuntimeEnvironment:
        """The folder, `sys.path` and environment of this process now, as jobs are told them. By any thread."""


class Running(Protocol):
    """An engine, and what begins and ends with it."""

    @property
    def engine(self) -> PoolEngine: ...

    def begin(self) -> None:
        """Block until jobs can run. The hub is driven by now."""

    def leave(self) -> bool:
        """Close it if nothing of it is left, so that the next pool can use the backend. Off the hub's thread."""

    def close(self) -> None:
        """End every job. On the hub's thread, and does not block."""

    def wait_closed(self) -> None:
        """Block until nothing is left of it. After `close`, off the hub's thread."""


class Local:
    """An engine of this machine. See `Running`.

    Args:
        keeps: leave the backend to the next pool of this process.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        seed: int,
        machine: Machine,
        mps: bool = True,
        retries_alone: bool = False,
        keeps: bool = False,
    ) -> None:
        self.engine = LocalEngine(backend, seed=seed, machine=machine, mps=mps, retries_alone=retries_alone)
        self._backend = backend
        self._keeps = keeps

    def begin(self) -> None:
        """Nothing is to be waited for: its processes come with the first job."""

    def leave(self) -> bool:
        has_left: bool | None = None if self._keeps else False

        def ask() -> None:
            nonlocal has_left
            has_left = False
            has_left = self.engine.leave()

        until_s = time.monotonic() + _LEAVING_S
        while has_left is None and time.monotonic() < until_s:
            self._backend.on_hub(ask)
            if has_left is None:
                time.sleep(_PAUSE_S)
        return bool(has_left)

    def close(self) -> None:
        self.engine.close()

    def wait_closed(self) -> None:
        """Nothing is to be waited for: its processes end with the backend."""


class Lifetime:
    """See the module. `closed` never becomes False again.

    Args:
        make: makes the engine on a backend. take: returns the backend.
    """

    def __init__(self, make: Callable[[Backend], Running], take: Callable[[], Backend] = Backend) -> None:
        self.closed = False
        self.retried = 0
        self.engine: PoolEngine | None = None
        self.hub: Hub | None = None
        self.folder = Path()
        self._make = make
        self._take = take
        self._backend: Backend | None = None
        self._running: Running | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def start(self) -> PoolEngine:
        """The engine, made at first use.

        Raises:
            ClosedError: closed, or this is a fork of the owner.
            NotInstalled, ClusterError: its jobs are to run on a cluster, which cannot be used.
        """
        self.check_process()
        with self._lock:
            if self.closed:
                raise closed_error()
            if self.engine is None:
                self._begin()
            return self.engine_here

    def _begin(self) -> None:
        backend = self._take()
        running: Running | None = None
        try:
            running = self._make(backend)
            running.begin()
        except BaseException:  # Ctrl-C too: nothing is left, and the next use begins anew
            _end(running, backend)
            raise
        self.hub, self.folder, self._backend = backend.hub, backend.folder, backend
        self._running, self.engine = running, running.engine

    @property
    def engine_here(self) -> PoolEngine:
        """The engine, for jobs: they exist only when it does."""
        assert self.engine is not None, "jobs exist only when the engine does"
        return self.engine

    def on_hub(self, call: Callable[[], None]) -> bool:
        """Run `call` on the hub's thread, before the pool closes. False when it is closed."""
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
        """Raise ClosedError in a fork of the owner."""
        if self.is_forked:
            raise ClosedError(
                f"this pool belongs to process {self._pid}; process {os.getpid()} was forked from it and cannot use it."
            )

    def close(self) -> None:
        """End every job and process and wait until they are gone. The second time nothing happens."""
        if self.is_forked:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            running, backend = self._running, self._backend
        if running is None or backend is None:
            return
        if not backend.hub.is_loop_thread and running.leave():
            keep(backend)
        else:
            _end(running, backend)


def _end(running: Running | None, backend: Backend) -> None:
    """End every job and process, and wait until they are gone."""
    if running is not None:
        backend.on_hub(running.close)
        backend.hub.close()
        running.wait_closed()
    backend.end()


def closed_error() -> ClosedError:
    return ClosedError("this pool is closed. Make a new one.")

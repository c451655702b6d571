"""The life of a pool in its owner's process: a hub thread, an engine and a folder, made at first use, ended once.

    (nothing) --start--> hub thread, engine, folder --close--> (nothing, for good)

A pool that is never used starts no process and no thread. In a process that was forked from the owner all of this is
inert: use raises `ClosedError`, closing does nothing. Methods may be called by any thread. Knows nothing of what
users submit, nor whether the engine's jobs run on this machine.
"""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..base.errors import ClosedError
from ..links import Hub, new_key, private_folder
from .contract import Engine
from .engine import LocalEngine
from .leases import Machine
from .specs import How, RuntimeEnvironment


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

    def close(self) -> None:
        """End every job. On the hub's thread, and does not block."""

    def wait_closed(self) -> None:
        """Block until nothing is left of it. After `close`, off the hub's thread."""


class Local:
    """An engine of this machine. See `Running`."""

    def __init__(self, hub: Hub, folder: Path, *, seed: int, machine: Machine, mps: bool = True) -> None:
        self.engine = LocalEngine(hub, folder, new_key(), seed=seed, machine=machine, mps=mps)

    def begin(self) -> None:
        """Nothing is to be waited for: its processes come with the first job."""

    def close(self) -> None:
        self.engine.close()

    def wait_closed(self) -> None:
        self.engine.worker_set.wait_closed()


class Lifetime:
    """See the module. `closed` never becomes False again. `make`: the engine, on a hub and with a folder of its own."""

    def __init__(self, make: Callable[[Hub, Path], Running]) -> None:
        self.closed = False
        self.retried = 0
        self.engine: PoolEngine | None = None
        self.hub: Hub | None = None
        self.folder = Path()
        self._make = make
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
        hub, folder = Hub(name="pool"), private_folder()
        running = self._make(hub, folder)
        hub.start()
        try:
            running.begin()
        except BaseException:  # Ctrl-C too: nothing is left, and the next use begins anew
            _end(running, hub, folder)
            raise
        self.hub, self.folder, self._running, self.engine = hub, folder, running, running.engine

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
            running, hub = self._running, self.hub
        if running is not None and hub is not None:
            _end(running, hub, self.folder)


def _end(running: Running, hub: Hub, folder: Path) -> None:
    """End every job and process, and wait until they are gone."""
    if hub.is_loop_thread:
        running.close()
    else:
        ended = threading.Event()
        hub.call_soon(running.close)
        hub.call_soon(ended.set)  # runs whatever becomes of the call before it
        ended.wait()
    hub.close()
    running.wait_closed()
    shutil.rmtree(folder, ignore_errors=True)


def closed_error() -> ClosedError:
    return ClosedError("this pool is closed. Make a new one.")

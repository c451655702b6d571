"""The life of a pool in its owner's process: a hub thread, an engine and a folder, made at first use, ended once.

    (nothing) --start--> hub thread, engine, folder --close--> (nothing, for good)

A pool that is never used starts no process and no thread. In a process that was forked from the owner all of this is
inert: use raises `ClosedError`, closing does nothing. Methods may be called by any thread. Knows nothing of what
users submit.
"""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from ..base.errors import ClosedError
from ..links import Hub, new_key, private_folder
from .engine import LocalEngine
from .leases import Machine


class Lifetime:
    """See the module. `closed` never becomes False again."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.closed = False
        self.retried = 0
        self.engine: LocalEngine | None = None
        self.hub: Hub | None = None
        self.folder = Path()
        self._machine = machine
        self._seed = seed
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def start(self) -> LocalEngine:
        """The engine, made at first use.

        Raises:
            ClosedError: closed, or this is a fork of the owner.
        """
        self.check_process()
        with self._lock:
            if self.closed:
                raise closed_error()
            if self.engine is None:
                self.hub = Hub(name="pool")
                self.folder = private_folder()
                self.engine = LocalEngine(self.hub, self.folder, new_key(), seed=self._seed, machine=self._machine)
                self.hub.start()
            return self.engine

    @property
    def engine_here(self) -> LocalEngine:
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
            engine, hub = self.engine, self.hub
        if engine is None or hub is None:
            return
        if hub.is_loop_thread:
            engine.close()
        else:
            ended = threading.Event()
            hub.call_soon(engine.close)
            hub.call_soon(ended.set)  # runs whatever becomes of the call before it
            ended.wait()
        hub.close()
        engine.worker_set.wait_closed()
        shutil.rmtree(self.folder, ignore_errors=True)


def closed_error() -> ClosedError:
    return ClosedError("this pool is closed. Make a new one.")

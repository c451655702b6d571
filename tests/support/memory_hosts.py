"""A pool's engine over hosts that are in this process: real jobs in real processes, and no cluster.

    ClusterEngine --link in memory--> Host --> LocalEngine          each host on a hub of its own
                  --link in memory--> Host --> LocalEngine

For tests of what the engine promises, and of what becomes of it when hosts come and go. `lose` is the end of a node as
the engine sees it: its link ends, and what ran there is ended by the host itself.
"""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fanwise.links.hub import Hub
from fanwise.links.transports.unix import link_pair
from fanwise.pool import Machine
from fanwise.pool.backend import Backend, Lifetime
from fanwise.pool.cluster.engine import ClusterEngine
from fanwise.pool.cluster.host import Host, HostFacts
from fanwise.pool.contract import Engine, Job, JobRequest, Outcome, Ready, Reply, Report
from fanwise.pool.engine import LocalEngine
from fanwise.pool.functions import pack
from fanwise.pool.leases import Gpu, Resources
from fanwise.pool.runtime_environment import capture_environment
from fanwise.testing.within import within


class MemoryHosts:
    """See the module. As `Running`, for a `Lifetime` or a test that drives the hub itself.

    Args:
        cpus: of each host that is there from the beginning. gpus: of each of them.
        patience_s: as of `ClusterEngine`.
    """

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        *,
        cpus: tuple[int, ...] = (1, 1),
        gpus: tuple[Gpu, ...] = (),
        patience_s: float = 30.0,
    ) -> None:
        self.engine = ClusterEngine(hub, seed=3, patience_s=patience_s)
        self.lives: dict[str, Lifetime] = {}
        self._hub = hub
        self._cpus, self._gpus = cpus, gpus
        self._links: dict[str, Callable[[str], None]] = {}
        self._number = 0

    def begin(self) -> None:
        for cpus in self._cpus:
            self.add(cpus)

    def add(self, cpus: int) -> str:
        """A host joins; its key. Blocks until the engine knows it."""
        self._number += 1
        key = f"host-{self._number}"
        machine = Machine(cpus, 1 << 30, self._gpus, (key,))
        life = Lifetime(lambda backend: LocalEngine(backend, seed=0, machine=machine))
        engine = life.start()
        assert isinstance(engine, LocalEngine) and life.hub is not None, "comes with the engine"
        near, far = link_pair(self._hub, life.hub)
        self.engine.on_link(near)
        host = Host(
            far,
            engine,
            HostFacts(key, key, "127.0.0.1", socket.gethostname(), os.getpid(), machine),
            capture_environment(),
        )
        near.open()
        far.open()
        self.lives[key], self._links[key] = life, far.lose
        run(engine, JobRequest(pack(int), Resources()))  # so that its processes are there before a test begins
        host.join()
        within(10, lambda: key in [each.key for each in self.engine.hosts], f"{key} has joined")
        return key

    def lose(self, key: str) -> None:
        """A host is gone, and everything on it. Not on the hub's thread."""
        self._links[key]("the node was lost")
        self.lives.pop(key).close()

    def leave(self) -> bool:
        return False

    def close(self) -> None:
        self.engine.close()

    def wait_closed(self) -> None:
        for life in self.lives.values():
            life.close()


def run(engine: Engine, request: JobRequest) -> Outcome:
    """Submit a job and block until nothing is left of it. Not on the loop's thread."""
    waiting = _Waiting()
    engine.loop.call_soon(lambda: void(engine.submit(request, waiting)))
    assert waiting.free.wait(60), "the job has ended"
    assert waiting.outcome is not None, "comes before"
    return waiting.outcome


def void(_: object) -> None:
    """What is returned is not needed."""


class _Waiting:
    """Hears one job to its end."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.outcome: Outcome | None = None

    def on_ready(self, job: Job, ready: Ready) -> None:
        """It has begun."""

    def on_report(self, report: Report) -> None:
        report.answer(Reply())

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self.outcome = outcome

    def on_free(self, job: Job) -> None:
        self.free.set()


def memory_pool(**settings: object) -> tuple[Lifetime, MemoryHosts]:
    """A life with such an engine, begun; close it."""
    made: list[MemoryHosts] = []

    def make(backend: Backend) -> MemoryHosts:
        made.append(MemoryHosts(backend.hub, backend.folder, **settings))  # type: ignore[arg-type]
        return made[0]

    life = Lifetime(make)
    life.start()
    return life, made[0]

"""Random kills of workers, warm process and supervisor while jobs run: the pool works on, and nothing is left over.

The order of the kills follows from a seed. The long form is `make soak`.
"""

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from job_functions import local_engine

from fanwise.pool import JobHandle, Pool
from fanwise.testing import within


def spin(gate: Path) -> int:
    """Work that ends when the file is there, with a child process of its own."""
    import subprocess

    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    rounds = 0
    while not gate.exists():
        rounds += 1
        if rounds % 1000 == 0:
            sum(range(1000))
    return child.pid


VICTIMS = ["worker", "worker", "warm", "supervisor", "guard", "warm and supervisor", "supervisor and guard", "stop"]


class Killing:
    """One run: a pool that always has work, and a hand that kills."""

    def __init__(self, pool: Pool, folder: Path, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._pool = pool
        self._folder = folder
        self._chance = random.Random(seed)
        self._number = 0

    def round(self) -> None:
        """Start jobs in the three ways, kill one of our processes at some moment, and see everything end."""
        self._number += 1
        gate = self._folder / f"gate-{self._number}"
        reuse = self._pool.needs(reuse=True)
        handles = [needs.submit(spin, gate) for needs in self._chance.choices([self._pool.needs(), reuse], k=4)]
        began = [handle for handle in handles if isinstance(handle, JobHandle)]
        if self._chance.random() < 0.7:  # else in the middle of their start
            within(60, lambda: any(handle.wait_began(0) for handle in began), "a job runs")
        victim = self._chance.choice(VICTIMS)
        self._kill(victim, began)
        gate.touch()
        for handle in began:
            outcome = handle.outcome(within_s=60)
            assert outcome.kind in ("returned", "signal", "lost", "stopped"), outcome
        assert self._pool.submit(abs, -self._number).result(within_s=60) == self._number
        self.kills[victim] += 1

    def _kill(self, victim: str, handles: list[JobHandle]) -> None:
        if victim == "stop":
            self._chance.choice(handles).stop(grace_s=0.05)
        elif victim == "worker":
            self._kill_pid(next((handle.pid for handle in handles if handle.pid and not handle.done()), None))
        else:
            warm = local_engine(self._pool).worker_set._warm
            interpreters = local_engine(self._pool).worker_set.interpreters
            if "warm" in victim and warm is not None:
                self._kill_pid(warm.pid)
            if "supervisor" in victim and interpreters._supervisor_link is not None:
                self._kill_pid(interpreters._supervisor_link.peer.pid)
            if "guard" in victim and interpreters._guard is not None:
                self._kill_pid(interpreters._guard.pid)

    @staticmethod
    def _kill_pid(pid: int | None) -> None:
        if pid:  # 0: not started yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_nothing_is_left(self) -> None:
        """The books are empty, but for what rests."""
        engine = local_engine(self._pool)
        self._pool.needs(cpus=2).submit(int).result(within_s=60)  # what was kept for reuse gives way
        within(10, lambda: engine.ledger.leases == {}, "all leases are back")
        assert (engine._jobs, engine._backlog._queues, engine._workers._workers) == ({}, {}, {})
        assert (engine.worker_set._starts, engine.worker_set._processes, engine._unsettled) == ({}, {}, set())
        within(
            10, lambda: len(engine.worker_set.interpreters._links) == 2, "only supervisor and warm process are linked"
        )


def run(folder: Path, *, rounds: int, seed: int) -> Counter[str]:
    with Pool(cpus=2, seed=seed) as pool:
        killing = Killing(pool, folder, seed)
        for _ in range(rounds):
            killing.round()
        killing.check_nothing_is_left()
        return killing.kills


def test_the_pool_survives_ten_kills(tmp_path: Path) -> None:
    kills = run(tmp_path, rounds=10, seed=4)
    assert kills.total() == 10 and len(kills) >= 4


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_the_pool_survives_hundreds_of_kills(tmp_path: Path, seed: int) -> None:
    assert run(tmp_path, rounds=50, seed=seed).total() == 50


@pytest.mark.soak
def test_closing_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    chance = random.Random(0)
    actions: list[Callable[[Pool], object]] = [
        lambda pool: pool.submit(int),
        lambda pool: pool.needs(reuse=True).submit(int),
        lambda pool: pool.submit(int).result(within_s=60),
        lambda pool: pool.needs(retries=5).submit(os._exit, 1),
    ]
    for _ in range(100):
        with Pool(cpus=2, seed=1) as pool:
            for _ in range(chance.randrange(4)):
                chance.choice(actions)(pool)
        assert pool._life.engine is None or not pool._life.folder.exists()

"""Random kills of all processes of a pool while jobs run. The order follows from a seed; `make soak` runs more."""

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
    """Start a child process and compute until the file exists."""
    import subprocess

    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    rounds = 0
    while not gate.exists():
        rounds += 1
        if rounds % 1000 == 0:
            sum(range(1000))
    return child.pid


VICTIMS = ["worker", "worker", "warm", "supervisor", "guard", "warm and supervisor", "supervisor and guard", "stop"]


class KillRounds:
    def __init__(self, pool: Pool, folder: Path, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._pool = pool
        self._folder = folder
        self._chance = random.Random(seed)
        self._number = 0

    def round(self) -> None:
        """Start jobs, kill a process of the pool at some moment, and wait for the outcomes."""
        self._number += 1
        gate = self._folder / f"gate-{self._number}"
        reuse = self._pool.needs(reuse=True)
        handles = [needs.submit(spin, gate) for needs in self._chance.choices([self._pool.needs(), reuse], k=4)]
        handles_of_round = [handle for handle in handles if isinstance(handle, JobHandle)]
        if self._chance.random() < 0.7:  # otherwise during their start
            within(60, lambda: any(handle.wait_began(0) for handle in handles_of_round), "a job runs")
        victim = self._chance.choice(VICTIMS)
        self._kill(victim, handles_of_round)
        gate.touch()
        for handle in handles_of_round:
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
        engine = local_engine(self._pool)
        self._pool.needs(cpus=2).submit(int).result(within_s=60)  # dismisses idle processes
        within(10, lambda: engine.ledger.leases == {}, "all leases are back")
        assert (engine._jobs, engine._backlog._queues, engine._workers._workers) == ({}, {}, {})
        assert (engine.worker_set._starts, engine.worker_set._processes, engine._unsettled) == ({}, {}, set())
        within(
            10, lambda: len(engine.worker_set.interpreters._links) == 2, "only supervisor and warm process are linked"
        )


def run(folder: Path, *, rounds: int, seed: int) -> Counter[str]:
    with Pool(cpus=2, seed=seed) as pool:
        rounds_of_kills = KillRounds(pool, folder, seed)
        for _ in range(rounds):
            rounds_of_kills.round()
        rounds_of_kills.check_nothing_is_left()
        return rounds_of_kills.kills


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

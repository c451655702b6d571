"""The local engine and the simulated engine keep the contract of engines."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import engine_contract as contract
import pytest
from engine_contract import CHECKS, Check, EngineCase
from engine_jobs import play
from simulated_engine import Fate, SimulatedEngine

from fanwise.links.process_state import stat_of
from fanwise.pool import Machine, Pool
from fanwise.pool.contract import (
    Job,
    Ready,
)
from fanwise.testing import within


def within_30_s(condition: Callable[[], object], description: str) -> None:
    within(30, condition, description)


def local(pool: Pool) -> EngineCase:
    def lose(job: Job, ready: Ready) -> None:
        assert ready.pid is not None, "it has a process"
        os.kill(stat_of(ready.pid).parent, signal.SIGKILL)  # the warm process, without which no job lives

    return EngineCase(pool._engine, within_30_s, lose)


@contextlib.contextmanager
def simulated(slow: bool = False) -> Iterator[EngineCase]:
    fate = Fate(start_s=600.0, leave_s=60.0) if slow else Fate()
    engine = SimulatedEngine(play, machines=(Machine(1, 0), Machine(1, 0)), fate=lambda job: fate, seed=3)

    def lose(job: Job, ready: Ready) -> None:
        (machine,) = [item.machine for item in engine.jobs if item is job]
        assert machine is not None, "it runs somewhere"
        engine.loop.call_soon(lambda: engine.lose_node(machine))

    yield EngineCase(engine, lambda fact, text: engine.loop.run(lambda: bool(fact())), lose)
    engine.loop.close()


# After these the engine is closed, or starts new processes.
ENDING_CHECKS = (contract.a_lost_node_is_an_outcome, contract.closing_tells_every_submitter)


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check not in ENDING_CHECKS], ids=lambda check: check.__name__
)
def test_the_local_engine_keeps_the_contract(check: Check, pool: Pool) -> None:
    check(local(pool))


@pytest.mark.parametrize("check", ENDING_CHECKS, ids=lambda check: check.__name__)
def test_the_local_engine_keeps_the_contract_to_its_end(check: Check) -> None:
    with Pool(cpus=2, seed=3) as pool:
        check(local(pool))


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_engine_keeps_the_contract(check: Check, slow: bool) -> None:
    with simulated(slow) as case:
        check(case)

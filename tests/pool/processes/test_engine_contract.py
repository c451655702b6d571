"""This machine's processes and a simulation keep the contract of engines; broken engines do not."""

import contextlib
import os
import signal
from collections.abc import Iterator

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


def local(pool: Pool) -> EngineCase:
    def lose(job: Job, ready: Ready) -> None:
        assert ready.pid is not None, "it has a process"
        os.kill(stat_of(ready.pid).parent, signal.SIGKILL)  # the warm process, without which no job lives

    return EngineCase(pool._engine, lambda fact, text: void(within(30, fact, text)), lose)


@contextlib.contextmanager
def simulated(slow: bool = False) -> Iterator[EngineCase]:
    fate = Fate(start_s=600.0, leave_s=60.0) if slow else Fate()
    engine = SimulatedEngine(play, machines=(Machine(1, 0), Machine(1, 0)), fate=lambda job: fate, seed=3)

    def lose(job: Job, ready: Ready) -> None:
        (machine,) = [each.machine for each in engine.jobs if each is job]
        assert machine is not None, "it runs somewhere"
        engine.loop.call_soon(lambda: engine.lose_node(machine))

    yield EngineCase(engine, lambda fact, text: engine.loop.run(lambda: bool(fact())), lose)
    engine.loop.close()


def void(_: object) -> None:
    """What is returned is not needed."""


# After these the engine is no more, or starts its processes anew. To the others it is as good as one of their own.
WEARING = (contract.a_lost_node_is_an_outcome, contract.closing_tells_every_submitter)


@pytest.mark.parametrize("check", [each for each in CHECKS if each not in WEARING], ids=lambda check: check.__name__)
def test_the_local_engine_keeps_the_contract(check: Check, pool: Pool) -> None:
    check(local(pool))


@pytest.mark.parametrize("check", WEARING, ids=lambda check: check.__name__)
def test_the_local_engine_keeps_the_contract_to_its_end(check: Check) -> None:
    with Pool(cpus=2, seed=3) as pool:
        check(local(pool))


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_engine_keeps_the_contract(check: Check, slow: bool) -> None:
    with simulated(slow) as case:
        check(case)

"""A pool over several hosts keeps the contract of engines; hosts here are in this process, and their jobs are real."""

from collections.abc import Iterator

import engine_contract as contract
import pytest
from engine_contract import CHECKS, Check, EngineCase
from memory_hosts import MemoryHosts, memory_pool

from fanwise.pool.cluster.engine import ClusterJob
from fanwise.pool.contract import Job, Ready
from fanwise.testing import within

ENDING_CHECKS = (contract.a_lost_node_is_an_outcome, contract.closing_tells_every_submitter)


def case_of(hosts: MemoryHosts) -> EngineCase:
    def lose(job: Job, ready: Ready) -> None:
        assert isinstance(job, ClusterJob) and job.host is not None, "it runs somewhere"
        hosts.lose(job.host)

    def wait(fact: object, text: str) -> None:
        within(30, fact, text)  # type: ignore[arg-type]

    return EngineCase(hosts.engine, wait, lose)


@pytest.fixture(scope="module")
def hosts() -> Iterator[MemoryHosts]:
    life, hosts = memory_pool()
    yield hosts
    life.close()


@pytest.mark.parametrize(
    "check", [item for item in CHECKS if item not in ENDING_CHECKS], ids=lambda check: check.__name__
)
def test_an_engine_over_hosts_keeps_the_contract(check: Check, hosts: MemoryHosts) -> None:
    check(case_of(hosts))


@pytest.mark.parametrize("check", ENDING_CHECKS, ids=lambda check: check.__name__)
def test_an_engine_over_hosts_keeps_the_contract_to_its_end(check: Check) -> None:
    life, hosts = memory_pool()
    check(case_of(hosts))
    life.close()

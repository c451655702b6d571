"""The engine of a pool on a real Ray cluster keeps the contract of engines, and leaves nothing behind."""

from collections.abc import Iterator

import engine_contract as contract
import pytest
from engine_contract import CHECKS, Check, EngineCase
from with_ray import RayCluster

from fanwise import Pool
from fanwise.pool.cluster.engine import ClusterEngine
from fanwise.testing import within

# test_ray_alone.py runs these, which lose hosts and close the engine.
ENDING_CHECKS = (contract.a_lost_node_is_an_outcome, contract.closing_tells_every_submitter)


def case_of(pool: Pool) -> EngineCase:
    engine = pool._engine
    assert isinstance(engine, ClusterEngine)

    def wait(fact: object, text: str) -> None:
        within(60, fact, text)  # type: ignore[arg-type]

    within(60, lambda: engine.capacity().cpus == 2, "two hosts are there")
    return EngineCase(engine, wait, lambda job, ready: None)


@pytest.fixture(scope="module")
def pool(cluster: RayCluster) -> Iterator[Pool]:
    """Two hosts of one CPU each."""
    with Pool(ray=cluster.address, bundles=[{"CPU": 1}, {"CPU": 1}], seed=3) as pool:
        pool.submit(int).result(within_s=60)
        yield pool


@pytest.mark.parametrize(
    "check", [item for item in CHECKS if item not in ENDING_CHECKS], ids=lambda check: check.__name__
)
def test_the_engine_of_a_ray_cluster_keeps_the_contract(check: Check, pool: Pool) -> None:
    check(case_of(pool))

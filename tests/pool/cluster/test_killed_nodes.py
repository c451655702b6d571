"""Nodes that are killed and nodes that join during searches: every trial completes, and none loses a report.

How a node dies, which, and when, follows from a seed. `make soak` uses two nodes with four trials each.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from checkpointed_trials import check_records, count_epochs, num_lines
from searches import quiet_tuner
from with_ray import RayCluster

from fanwise import Pool
from fanwise.pool.cluster.engine import ClusterEngine
from fanwise.testing import within

EPOCHS = 10
# Parts of a node that are killed: the host process, Ray, or all processes at once.
WAYS = ("host", "Ray", "everything")


@dataclass
class Nodes:
    """The nodes of a cluster on which a pool has hosts.

    Attributes:
        always: number of nodes that are never killed.
        ids: the other nodes.
    """

    cluster: RayCluster
    pool: Pool
    cpus: int
    always: int = 0
    ids: list[str] = field(default_factory=list)
    died: Counter[str] = field(default_factory=Counter)

    def complete(self, size: int) -> None:
        """Add nodes up to `size`, and wait until all have a host."""
        while len(self.ids) < size:
            self.ids.append(self.cluster.add(cpus=self.cpus))
        within(60, lambda: len(self.hosts) == size + self.always, f"{size} nodes have a host")

    @property
    def hosts(self) -> dict[str, int]:
        """The pid of each node's host."""
        engine = self.pool._engine
        assert isinstance(engine, ClusterEngine)
        return {host.node: host.pid for host in engine.hosts}

    def kill(self, chance: random.Random, way: str) -> None:
        node = chance.choice(self.ids)
        self.died[way] += 1
        if way == "host":
            os.kill(self.hosts[node], signal.SIGKILL)
            return
        self.ids.remove(node)
        self.cluster.remove(node) if way == "Ray" else self.cluster.power_off(node)


def search_with_a_kill(nodes: Nodes, folder: Path, seed: int, *, trials: int, at_a_time: int, size: int) -> int:
    """Kill a node during a search, and add another. Return the number of attempts that began at a checkpoint."""
    chance = random.Random(seed)
    nodes.complete(size)
    space = {"folder": str(folder), "epochs": EPOCHS, "epoch_s": 0.05}
    tuner = quiet_tuner(count_epochs, space, trials=trials, n_workers=at_a_time, retries=3, pool=nodes.pool)
    running = tuner.run(block=False)
    moment = chance.randrange(2 * at_a_time, trials * EPOCHS * 2 // 3)
    within(90, lambda: num_lines(folder) > moment, f"{moment} lines are recorded")
    assert not running.finished
    nodes.kill(chance, WAYS[seed % len(WAYS)])
    nodes.complete(size)
    experiment = running.wait()
    assert list(experiment.trials["status"]) == ["Completed"] * trials
    assert list(experiment.trials["iter"]) == [EPOCHS] * trials
    return check_records(folder, trials=trials, epochs=EPOCHS)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the experiments of these tests out of the user's folder."""
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))


@pytest.fixture
def two_nodes(cluster: RayCluster) -> Iterator[Nodes]:
    """A node that stays and one that is killed, of two CPUs each."""
    with Pool(ray=cluster.address, seed=5) as pool:
        nodes = Nodes(cluster, pool, cpus=2, always=1)
        yield nodes
        for node in nodes.ids:
            cluster.remove(node)


def test_a_search_loses_nothing_to_a_node_that_is_killed(two_nodes: Nodes, tmp_path: Path) -> None:
    search_with_a_kill(two_nodes, tmp_path, 2, trials=6, at_a_time=4, size=1)
    assert two_nodes.died == {"everything": 1}


@pytest.fixture(scope="module")
def many_nodes(ray_environment: None) -> Iterator[tuple[RayCluster, list[str]]]:
    """A cluster where nothing runs on the first node, and the others that live."""
    with RayCluster(cpus=0) as cluster:
        yield cluster, [cluster.add(cpus=4)]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_fifty_searches_lose_nothing_to_nodes_that_are_killed(
    many_nodes: tuple[RayCluster, list[str]], tmp_path: Path, seed: int
) -> None:
    cluster, ids = many_nodes
    with Pool(ray=cluster.address, seed=5) as pool:
        nodes = Nodes(cluster, pool, cpus=4, ids=ids)
        num_continued = search_with_a_kill(nodes, tmp_path, seed, trials=12, at_a_time=8, size=2)
    print(f"{WAYS[seed % 3]}: {num_continued} attempts began at a checkpoint")

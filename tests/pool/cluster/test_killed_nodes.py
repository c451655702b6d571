"""Nodes that are killed and nodes that join in the middle of searches: every trial is finished, and none goes back.

A trial notes, in files that all nodes see, from where each of its attempts goes on and which reports were acknowledged.
Acknowledged is what its record holds, with a checkpoint: no attempt may begin before that. How a node dies, which, and
when, follows from a seed. The long form is `make soak`: two nodes with four trials each.
"""

import functools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest
from searches import quiet_tuner
from with_ray import RayCluster

from fanwise import Pool
from fanwise.pool.cluster.engine import ClusterEngine
from fanwise.testing import within
from fanwise.tune import load_checkpoint, report, trial_id

EPOCHS = 10
# Of a node: the process of its host, its Ray, or all of its processes at once.
WAYS = ("host", "Ray", "everything")


def train(folder: str) -> None:
    """Counts on from its checkpoint; notes what is asked in the module's first lines."""
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    descriptor = os.open(f"{folder}/{trial_id()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"from %d in %d\n" % (reached, os.getpid()))
    for epoch in range(reached + 1, EPOCHS + 1):
        Event().wait(0.05)  # the work
        report(loss=1.0 / epoch, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))
        os.write(descriptor, b"%d\n" % epoch)


def notes(folder: Path) -> dict[int, list[str]]:
    """The lines of each trial."""
    return {int(path.name): path.read_text().splitlines() for path in folder.iterdir() if path.name.isdecimal()}


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def check_that_none_went_back(folder: Path) -> int:
    """And that no process of an attempt is left. How many went on from a checkpoint."""
    went_on = 0
    for number, lines in notes(folder).items():
        acknowledged = 0
        for line in lines:
            if line.startswith("from "):
                reached, pid = int(line.split()[1]), int(line.split()[3])
                assert reached >= acknowledged, f"trial {number} went back: {lines}"
                acknowledged = reached  # the last report may have been kept, and its answer lost
                within(30, functools.partial(is_gone, pid), f"process {pid} of trial {number} has ended")
                went_on += reached > 0
            else:
                acknowledged = int(line)
        assert acknowledged == EPOCHS, f"trial {number} has not come to its end: {lines}"
    return went_on


@dataclass
class Nodes:
    """The nodes of a cluster that a pool has hosts on, and how they die.

    `ids`: of those that may be killed; one more has a host in `always` cases of theirs.
    """

    cluster: RayCluster
    pool: Pool
    cpus: int
    always: int = 0
    ids: list[str] = field(default_factory=list)
    died: Counter[str] = field(default_factory=Counter)

    def complete(self, size: int) -> None:
        """Add nodes until there are so many, and wait until all have a host."""
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
    """A search in which a node dies at some moment, and another comes; how many attempts went on from a checkpoint."""
    chance = random.Random(seed)
    nodes.complete(size)
    running = quiet_tuner(
        train, {"folder": str(folder)}, trials=trials, n_workers=at_a_time, retries=3, pool=nodes.pool
    ).run(block=False)
    moment = chance.randrange(2 * at_a_time, trials * EPOCHS * 2 // 3)
    within(90, lambda: sum(map(len, notes(folder).values())) > moment, f"{moment} lines were noted")
    assert not running.finished
    nodes.kill(chance, WAYS[seed % len(WAYS)])
    nodes.complete(size)
    experiment = running.wait()
    assert list(experiment.trials["status"]) == ["Completed"] * trials
    assert list(experiment.trials["iter"]) == [EPOCHS] * trials
    assert sorted(notes(folder)) == list(range(trials))
    return check_that_none_went_back(folder)


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
        went_on = search_with_a_kill(nodes, tmp_path, seed, trials=12, at_a_time=8, size=2)
    print(f"{WAYS[seed % 3]}: {went_on} of 12 trials went on from a checkpoint")

"""A pool on a real Ray cluster: jobs, searches, nodes that come and go, and nothing left behind."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from gates import Gate
from job_functions import began
from networks import why_not
from searches import quiet_tuner, search
from with_ray import RayCluster

from fanwise import Pool
from fanwise.base.errors import ClosedError
from fanwise.testing import within
from fanwise.tune import load_checkpoint, report, trial_id, uniform


@pytest.fixture(scope="module")
def pool(cluster: RayCluster) -> Iterator[Pool]:
    with Pool(ray=cluster.address, seed=11) as pool:
        pool.submit(int).result(within_s=60)
        yield pool


def where() -> tuple[int, str]:
    return os.getpid(), os.getcwd()


def squared(x: int) -> int:
    return x * x


def of_two_jobs(x: int) -> int:
    inner = Pool()
    return sum(inner.submit(squared, value).result() for value in (x, x + 1))


def prints_and_waits(folder: str) -> None:
    print("it has begun", flush=True)
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()


def test_a_job_runs_where_ray_has_placed_a_host(pool: Pool) -> None:
    pid, folder = pool.submit(where).result(within_s=30)
    assert pid != os.getpid() and folder == os.getcwd()
    assert pool.capacity().cpus == 2 and pool.machine.cpus == 2
    assert ": 1 host, 2 CPUs, no GPUs, seed 11: " in repr(pool)


def test_jobs_of_a_job_run_beside_it(pool: Pool) -> None:
    assert pool.submit(of_two_jobs, 3).result(within_s=30) == 25


def test_what_a_running_job_has_printed_is_fetched_from_its_node(pool: Pool, tmp_path: Path) -> None:
    job = began(pool.submit(prints_and_waits, str(tmp_path)))
    within(10, lambda: "it has begun" in job.output()[0], "its output has arrived")
    job.stop(grace_s=5.0)
    assert job.outcome(within_s=30).kind == "stopped"
    assert job.output() == ("it has begun", "")


def test_a_pool_on_a_cluster_inside_a_job_is_refused(pool: Pool) -> None:
    def makes_one() -> None:
        Pool(ray="auto")

    with pytest.raises(ClosedError, match="a pool on a cluster cannot be made inside a job"):
        pool.submit(makes_one).result(within_s=30)


# -- searches and nodes ------------------------------------------------------------------------------------------------


def squared_loss(x: float) -> float:
    Event().wait(0.2)
    return x * x


def train(x: float, epochs: int, folder: str) -> None:
    """Continue from the checkpoint, record the start, and wait in the third epoch of a first attempt."""
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    Path(folder, f"{trial_id()}-{reached}").touch()
    for epoch in range(reached + 1, epochs + 1):
        if epoch == 3 and reached == 0:
            Path(folder, f"{trial_id()}-waits").touch()
            Gate(Path(folder, "gate")).wait()
        report(loss=x / epoch, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of experiments, which can be hidden from a node."""
    if reason := why_not():
        pytest.skip(reason)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def lose_a_node_that_sees_only_checkpoints(
    cluster: RayCluster, pool: Pool, home: Path, tmp_path: Path, checkpoints: str
) -> None:
    second = cluster.add(cpus=2, hidden=home)
    within(30, lambda: pool.capacity().cpus == 4, "the node that has joined is used")
    with Gate(tmp_path / "gate") as gate:
        space = {"x": uniform(0, 1), "epochs": 4, "folder": str(tmp_path)}
        tuner = quiet_tuner(
            train, space, trials=6, n_workers=4, retries=1, pool=pool, checkpoints=checkpoints, name="far"
        )
        running = tuner.run(block=False)
        within(60, lambda: len(list(tmp_path.glob("*-waits"))) == 4, "two trials run on each node")
        cluster.remove(second)
        within(30, lambda: pool.capacity().cpus == 2, "the loss of the node is known")
        gate.open(times=10)
        experiment = running.wait()
    assert list(experiment.trials["status"]) == ["Completed"] * 6
    assert list(experiment.trials["iter"]) == [4] * 6
    assert len(list(tmp_path.glob("*-2"))) == 2, "the two trials of the lost node continued from their checkpoints"
    assert len(list(tmp_path.glob("*-0"))) == 6, "none began from scratch a second time"


def test_a_search_goes_on_when_a_node_that_sees_only_the_checkpoints_is_lost_and_uses_one_that_joins(
    cluster: RayCluster, pool: Pool, home: Path, tmp_path: Path
) -> None:
    lose_a_node_that_sees_only_checkpoints(cluster, pool, home, tmp_path, f"file://{tmp_path}/shared")
    assert list((tmp_path / "shared" / "far").iterdir()), "the best one's is kept"


@pytest.mark.soak
def test_a_search_goes_on_from_checkpoints_in_an_object_store(
    cluster: RayCluster, pool: Pool, object_store: Any, home: Path, tmp_path: Path
) -> None:
    lose_a_node_that_sees_only_checkpoints(cluster, pool, home, tmp_path, "s3://fanwise/checkpoints")
    object_store.invalidate_cache()
    assert object_store.ls("fanwise/checkpoints/far"), "the best one's is kept"


def test_a_node_that_sees_neither_experiment_nor_checkpoints_says_so(
    cluster: RayCluster, pool: Pool, home: Path, tmp_path: Path
) -> None:
    blind = cluster.add(cpus=2, hidden=home)
    within(30, lambda: pool.capacity().cpus == 4, "the node that has joined is used")
    experiment = search(
        squared_loss, {"x": uniform(0, 1)}, trials=8, n_workers=4, max_equal_failures=None, pool=pool, name="far"
    )
    cluster.remove(blind)
    failed = [experiment.reason(number) for number in range(8)]
    assert {"Completed", "Failed"} == set(experiment.trials["status"])
    for reason in filter(None, failed):
        assert f"the folder of the experiment, {home / 'far'}, is not visible on " in reason.text
        assert "checkpoints='s3://...'" in reason.text and "(on node " in (reason.traceback or "")

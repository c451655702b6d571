"""A killed program of a search on a cluster, or its process that calls Ray, leaves nothing and can be resumed."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import checkpointed_trials
import psutil
import pytest
from checkpointed_trials import attempts, check_records, num_lines
from with_ray import RayCluster

import fanwise
from fanwise.testing import within
from fanwise.tune import load_experiment

SOURCES, SUPPORT = Path(fanwise.__file__).parents[1], Path(checkpointed_trials.__file__).parent
TRIALS, EPOCHS = 6, 8
GONE_WITHIN_S = 60.0  # the promise

SCRIPT = """
import sys
from checkpointed_trials import count_epochs
from fanwise import Pool
from fanwise.tune import FIFO, StoppingCriterion, Tuner

if __name__ == "__main__":
    address, folder, trials, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with Pool(ray=address) as pool:
        pool.capacity()
        print(*(host.pid for host in pool._engine.hosts), flush=True)
        Tuner(
            count_epochs, {"folder": folder, "epochs": epochs, "epoch_s": 0.1}, FIFO(metric="loss"),
            StoppingCriterion(max_num_trials_started=trials), n_workers=4, retries=3, name="far", pool=pool,
        ).run()
"""


@pytest.fixture
def two_nodes(cluster: RayCluster) -> Iterator[RayCluster]:
    """Two nodes of two CPUs each."""
    node = cluster.add(cpus=2)
    yield cluster
    cluster.remove(node)


class Program:
    """The running program of a search."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        (folder / "program.py").write_text(SCRIPT)
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{SUPPORT}", "FANWISE_HOME": str(folder / "home")}
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "program.py"), cluster.address, str(folder), str(TRIALS), str(EPOCHS)],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.hosts = [int(pid) for pid in self.process.stdout.readline().split()]
        assert len(self.hosts) == 2

    @property
    def ray_process(self) -> int:
        """The pid of its process that calls Ray."""
        children = psutil.Process(self.process.pid).children()
        (pid,) = [child.pid for child in children if any("with_ray" in word for word in child.cmdline())]
        return pid

    def kill(self, victim: str) -> float:
        """Kill program, Ray process or both at once. Return the seconds until no process of the search was left."""
        pids = {
            "program": [self.process.pid],
            "ray_process": [self.ray_process],
            "both": [self.ray_process, self.process.pid],
        }[victim]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        pids_on_nodes = [*self.hosts, *attempts(self._folder)]
        within(GONE_WITHIN_S, lambda: not any(map(psutil.pid_exists, pids_on_nodes)), "nothing is left on any node")
        return time.monotonic() - killed_s

    def end(self) -> str:
        """Block until it has ended. Return its output."""
        return self.process.communicate(timeout=120)[0]

    def resume(self) -> str:
        """Run `fanwise tune resume`. Return its output."""
        command = [sys.executable, "-m", "fanwise", "tune", "resume", "far"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def check(self) -> None:
        """Check that all trials have completed without a lost report."""
        experiment = load_experiment(self._folder / "home" / "far")
        assert list(experiment.trials["status"]) == ["Completed"] * TRIALS
        check_records(self._folder, trials=TRIALS, epochs=EPOCHS)


def pool_folders() -> list[Path]:
    return [path for path in Path(tempfile.gettempdir()).glob("fanwise-*") if (path / "ray.log").exists()]


def kill_and_resume(cluster: RayCluster, folder: Path, victim: str, seed: int) -> float:
    program = Program(cluster, folder)
    moment = random.Random(seed).randrange(4, TRIALS * EPOCHS // 2)
    within(90, lambda: num_lines(folder) > moment, f"{moment} lines are recorded")
    took_s = program.kill(victim)
    if victim == "ray_process":
        assert program.end().endswith("max_num_trials_started: 6 of 6\n") or program.process.returncode == 0
    else:
        program.end()
        for folder in pool_folders():  # with Ray's log, which each process would have removed
            shutil.rmtree(folder)
        output = program.resume()
        assert re.search(rf"on the Ray cluster {cluster.address}: 2 hosts with 4 CPUs and no GPUs\n", output), output
    program.check()
    return took_s


def test_a_search_whose_program_was_killed_leaves_nothing_on_any_node_and_is_resumed_there(
    two_nodes: RayCluster, tmp_path: Path
) -> None:
    kill_and_resume(two_nodes, tmp_path, "both", 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("victim", ["program", "ray_process", "both"])
def test_killed_programs_leave_nothing_on_any_node_and_are_resumed_there(
    two_nodes: RayCluster, tmp_path: Path, victim: str, seed: int
) -> None:
    took_s = kill_and_resume(two_nodes, tmp_path, victim, seed)
    print(f"{victim} killed: nothing was left after {took_s:.2f} s")

"""The program of a search on a cluster is killed, and so is the process in it that speaks with Ray.

On all nodes everything ends, and `fanwise tune resume` goes on on the same cluster, from the last checkpoints.
The long form is `make soak`; it prints how long it took until nothing was left.
"""

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

import psutil
import pytest
from with_ray import RayCluster

import fanwise
from fanwise.testing import within
from fanwise.tune import load_experiment

SOURCES = Path(fanwise.__file__).parents[1]
TRIALS, EPOCHS = 6, 8
GONE_WITHIN_S = 60.0  # the promise

# A trial notes what each attempt begins from, its process, and what was acknowledged.
SCRIPT = """
import os, sys
from threading import Event
from fanwise import Pool
from fanwise.tune import FIFO, StoppingCriterion, Tuner, load_checkpoint, report, trial_id

def train(folder, epochs):
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    note = os.open(f"{folder}/{trial_id()}.noted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(note, b"from %d in %d\\n" % (reached, os.getpid()))
    for epoch in range(reached + 1, epochs + 1):
        Event().wait(0.1)
        report(loss=1.0 / epoch, epoch=epoch, checkpoint=lambda at: (at / "epoch").write_text(str(epoch)))
        os.write(note, b"acknowledged %d\\n" % epoch)

if __name__ == "__main__":
    address, folder, trials, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with Pool(ray=address) as pool:
        pool.capacity()
        print(*(host.pid for host in pool._engine.hosts), flush=True)
        Tuner(
            train, {"folder": folder, "epochs": epochs}, FIFO(metric="loss"),
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
    """The program of a search, running."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        (folder / "program.py").write_text(SCRIPT)
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(SOURCES), "FANWISE_HOME": str(folder / "home")}
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "program.py"), cluster.address, str(folder), str(TRIALS), str(EPOCHS)],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.hosts = [int(pid) for pid in self.process.stdout.readline().split()]
        assert len(self.hosts) == 2

    def lines(self) -> list[tuple[int, list[str]]]:
        """What each trial has noted. A kill may cut the last line."""
        found = ((int(path.stem), path.read_text()) for path in self._folder.glob("*.noted"))
        return [
            (number, [line for line in text.splitlines(keepends=True) if line[-1] == "\n"]) for number, text in found
        ]

    def attempts(self) -> list[int]:
        """The processes of all attempts."""
        return [int(line.split()[3]) for _, lines in self.lines() for line in lines if line.startswith("from")]

    @property
    def speaker(self) -> int:
        """Its process that speaks with Ray."""
        children = psutil.Process(self.process.pid).children()
        (pid,) = [child.pid for child in children if any("with_ray" in word for word in child.cmdline())]
        return pid

    def kill(self, whom: str) -> float:
        """Kill one of the two, or both at once; how long it took until nothing of the search was left."""
        pids = {"program": [self.process.pid], "speaker": [self.speaker], "both": [self.speaker, self.process.pid]}[
            whom
        ]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        ours = [*self.hosts, *self.attempts()]
        within(GONE_WITHIN_S, lambda: not any(map(psutil.pid_exists, ours)), "nothing is left on any node")
        return time.monotonic() - killed_s

    def end(self) -> str:
        """What it printed; blocks until it has ended."""
        return self.process.communicate(timeout=120)[0]

    def resume(self) -> str:
        """`fanwise tune resume`, to its end; what it printed."""
        command = [sys.executable, "-m", "fanwise", "tune", "resume", "far"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def check(self) -> None:
        """Every trial came to its end, and no attempt began before what was acknowledged."""
        experiment = load_experiment(self._folder / "home" / "far")
        assert list(experiment.trials["status"]) == ["Completed"] * TRIALS
        for number, lines in self.lines():
            acknowledged = 0
            for line in lines:
                told = int(line.split()[1])
                assert line.startswith("acknowledged") or told >= acknowledged, f"trial {number} went back: {lines}"
                acknowledged = max(acknowledged, told)
            assert acknowledged == EPOCHS


def pool_folders() -> list[Path]:
    return [path for path in Path(tempfile.gettempdir()).glob("fanwise-*") if (path / "ray.log").exists()]


def kill_and_go_on(cluster: RayCluster, folder: Path, whom: str, seed: int) -> float:
    program = Program(cluster, folder)
    moment = random.Random(seed).randrange(4, TRIALS * EPOCHS // 2)
    within(90, lambda: sum(len(lines) for _, lines in program.lines()) > moment, f"{moment} lines were noted")
    took_s = program.kill(whom)
    if whom == "speaker":
        assert program.end().endswith("max_num_trials_started: 6 of 6\n") or program.process.returncode == 0
    else:
        program.end()
        for folder in pool_folders():  # where the two keep Ray's log: each would have removed it, had it lived longer
            shutil.rmtree(folder)
        told = program.resume()
        assert re.search(rf"on the Ray cluster {cluster.address}: 2 hosts with 4 CPUs and no GPUs\n", told), told
    program.check()
    return took_s


def test_a_search_whose_program_was_killed_leaves_nothing_on_any_node_and_is_resumed_there(
    two_nodes: RayCluster, tmp_path: Path
) -> None:
    kill_and_go_on(two_nodes, tmp_path, "both", 0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("whom", ["program", "speaker", "both"])
def test_killed_programs_leave_nothing_on_any_node_and_are_resumed_there(
    two_nodes: RayCluster, tmp_path: Path, whom: str, seed: int
) -> None:
    took_s = kill_and_go_on(two_nodes, tmp_path, whom, seed)
    print(f"{whom} killed: nothing was left after {took_s:.2f} s")

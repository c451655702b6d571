"""kill -9 of the tuner: every acknowledged report is in the record, and nothing of it lives on."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import fanwise
from fanwise.testing import within
from fanwise.testing.processes import MARKER, running_processes
from fanwise.tune import load_experiment

SOURCES = Path(fanwise.__file__).parents[1]

# Trials of different lengths. Each writes down a report after report() has returned: then it is acknowledged.
SCRIPT = """
import os, sys
from fanwise.pool import current
from fanwise.tune import FIFO, StoppingCriterion, Tuner, randint, report

def note_what_is_acknowledged(epochs, folder):
    number = current().number
    fd = os.open(f"{folder}/{number}.acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for epoch in range(epochs):
        report(loss=1.0 / (epoch + 1), epoch=epoch)
        os.write(fd, b"%d\\n" % epoch)

if __name__ == "__main__":
    space = {"epochs": randint(1, 400), "folder": sys.argv[1]}
    scheduler = FIFO(metric="loss", random_seed=int(sys.argv[2]))
    stop = StoppingCriterion(max_wallclock_time=600)
    print("it begins", flush=True)
    reuse = "reuse" in sys.argv
    Tuner(note_what_is_acknowledged, space, scheduler, stop, n_workers=2, name="killed", quiet=True, reuse=reuse).run()
"""


def acknowledged(folder: Path) -> dict[int, list[int]]:
    """Epochs by trial, as the trials wrote them down. A line may be cut by the kill."""
    return {
        int(path.stem): [int(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        for path in folder.glob("*.acknowledged")
    }


def kill_a_tuner_and_look(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    few, many = chance.randrange(2, 100), chance.randrange(100, 3000)
    num_reports = (0, 1, few, many, many)[seed % 5]
    there = set(Path(tempfile.gettempdir()).glob("fanwise-*"))  # of tests before
    others = running_processes()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(folder), str(seed), chance.choice(["reuse", "fresh"])]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "FANWISE_HOME": str(folder / "home")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"it begins\n"
        if num_reports:
            within(60.0, lambda: sum(map(len, acknowledged(folder).values())) >= num_reports, "trials have reported")
        process.send_signal(signal.SIGKILL)
    within(10.0, lambda: running_processes(os.environ[MARKER]) <= others, "every process of the search has ended")
    assert set(Path(tempfile.gettempdir()).glob("fanwise-*")) <= there
    if num_reports:
        everything_acknowledged_is_kept(folder)


def everything_acknowledged_is_kept(folder: Path) -> None:
    experiment = load_experiment(folder / "home" / "killed")
    results = experiment.results
    kept = {number: list(epochs) for number, epochs in results.groupby("trial_id")["epoch"]}
    for number, epochs in acknowledged(folder).items():
        assert epochs == list(range(len(epochs)))
        assert kept.get(number, [])[: len(epochs)] == epochs
    assert experiment.state != "finished"
    running = experiment.trials[experiment.trials["status"] == "Lost"]
    assert len(running) <= 2
    assert len(results) <= sum(map(len, acknowledged(folder).values())) + 2  # what was committed and not yet answered
    assert experiment.best is not None


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_tuner_loses_no_acknowledged_report_and_leaves_no_process(tmp_path: Path, seed: int) -> None:
    kill_a_tuner_and_look(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 103))
def test_a_hundred_killed_tuners_lose_nothing_and_leave_nothing(tmp_path: Path, seed: int) -> None:
    kill_a_tuner_and_look(tmp_path, seed)

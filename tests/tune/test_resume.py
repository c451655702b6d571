"""Searches whose tuner is killed and that are resumed lose no acknowledged report, repeat nothing and end the same.

Each search is killed once or twice at random moments, then resumed to its end, and compared with the same search
without kills. The objective writes each acknowledged report to a file before it continues.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from process_tree import MARKER, running_processes

import fanwise
from fanwise.base.errors import RecordError
from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.tune import Experiment, Tuner, replay_experiment
from fanwise.tune.record.overview import read_search

SOURCES = Path(fanwise.__file__).parents[1]

SCRIPT = """
import hashlib, os, sys
from fanwise.tune import (
    ASHA, PBT, FIFO, StoppingCriterion, SuccessiveHalving, Tuner,
    from_iter, load_checkpoint, report, trial_id, uniform,
)

def train(x, max_epochs, folder):
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    assert reached == from_iter()
    note = os.open(f"{folder}/{trial_id()}.noted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(note, b"begun %d\\n" % reached)
    for epoch in range(reached + 1, max_epochs + 1):
        loss = int(hashlib.md5(f"{x} {epoch}".encode()).hexdigest()[:8], 16) / epoch
        report(loss=loss, epoch=epoch, checkpoint=lambda at: (at / "epoch").write_text(str(epoch)))
        os.write(note, b"acknowledged %d\\n" % epoch)

if __name__ == "__main__":
    what, folder, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    budget = {"metric": "loss", "resource_attr": "epoch", "max_resource_attr": "max_epochs", "random_seed": seed}
    print("it begins", flush=True)
    if what == "resume":
        Tuner.resume(folder + "/home/killed", quiet=True).run()
        sys.exit()
    # Searches whose decisions depend on the order of reports have one worker, so that kills do not change them.
    scheduler, n_workers, trials = {
        "random": (FIFO(metric="loss", random_seed=seed), 2, 8),
        "halving": (SuccessiveHalving(**budget), 2, 18),
        "asha": (ASHA(**budget, type="promotion"), 1, 18),
        "population": (PBT(**budget, population_size=3, perturbation_interval=2), 1, 12),
    }[what]
    stop = StoppingCriterion(max_num_trials_started=trials)
    space = {"x": uniform(0, 1), "max_epochs": 9, "folder": folder}
    reuse = "reuse" in sys.argv
    Tuner(train, space, scheduler, stop, n_workers=n_workers, name="killed", quiet=True, reuse=reuse).run()
"""

KINDS = ("random", "halving", "asha", "population")
REUSES = ("random", "asha")
Ends = dict[int, tuple[str, int, float]]


def noted(folder: Path) -> dict[int, list[tuple[str, int]]]:
    """Return the lines of each trial: where attempts began, and acknowledged epochs. The last line may be cut."""
    return {
        int(path.stem): [
            (line.split()[0], int(line.split()[1]))
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        for path in folder.glob("*.noted")
    }


def num_acknowledged(folder: Path) -> int:
    return sum(kind == "acknowledged" for lines in noted(folder).values() for kind, _ in lines)


def ends_of(experiment: Experiment) -> Ends:
    """Status, number of reports and x of every trial."""
    history = read_search(experiment.path).search
    return {
        trial.trial_id: (history.status_of(trial), trial.last_iter, trial.config["x"])
        for trial in history.trials.values()
    }


# The trials that continue in the last round depend on the order of reports, so only the first round is compared.
NUM_COMPARED = {"halving": 9}


def started(folder: Path, kind: str, seed: int) -> "subprocess.Popen[bytes]":
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "FANWISE_HOME": str(folder / "home")}
    command = [sys.executable, str(script), kind, str(folder), str(seed), *["reuse"] * (kind in REUSES)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


@cache
def unkilled(kind: str, seed: int) -> tuple[Ends, int]:
    """Return the ends and the number of reports of the search if it is not killed."""
    with tempfile.TemporaryDirectory() as folder:
        with started(Path(folder), kind, seed) as process:
            process.communicate()
        assert process.returncode == 0
        experiment = Experiment(Path(folder) / "home" / "killed")
        return ends_of(experiment), len(experiment.results)


def kill_and_resume(folder: Path, kind: str, seed: int, pool: Pool) -> None:
    chance = random.Random(f"{kind} {seed}")
    ends, num_reports = unkilled(kind, seed % 3)
    processes_before, folders_before = running_processes(), temporary_folders()
    at = sorted(chance.randrange(num_reports) for _ in range(chance.choice([1, 1, 2])))
    for count, number in enumerate(at):
        kill_at(number, folder, "resume" if count else kind, seed % 3)
        within(
            10.0,
            lambda: running_processes(os.environ[MARKER]) <= processes_before,
            "every process of the search has ended",
        )
        assert temporary_folders() <= folders_before
        try:
            everything_acknowledged_is_kept(folder, Experiment(folder / "home" / "killed"))
        except RecordError:  # killed before there was a record
            assert num_acknowledged(folder) == 0
            return
    # A pool keeps the worker of a search with reuse, so that search gets a pool of its own.
    pool_options: dict[str, Any] = {} if kind in REUSES else {"pool": pool}
    experiment = Tuner.resume(folder / "home" / "killed", quiet=True, **pool_options).run()
    everything_acknowledged_is_kept(folder, experiment)
    nothing_was_done_twice(folder)
    ended = ends_of(experiment)
    assert ended.keys() == ends.keys()
    compared = [number for number in ends if number < NUM_COMPARED.get(kind, len(ends))]
    assert [ended[number] for number in compared] == [ends[number] for number in compared]
    assert replay_experiment(experiment.path).differences == []
    assert not list((experiment.path / "checkpoints").glob(".*"))


def temporary_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("fanwise-*"))


def kill_at(number: int, folder: Path, kind: str, seed: int) -> None:
    """Start the search, and kill its tuner when `number` reports are acknowledged."""
    with started(folder, kind, seed) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"it begins\n"
        within(60.0, lambda: is_time(process, folder, number), "trials have reported")
        process.send_signal(signal.SIGKILL)


def is_time(process: "subprocess.Popen[bytes]", folder: Path, number: int) -> bool:
    """Return whether `number` reports are acknowledged or the search has ended."""
    return num_acknowledged(folder) >= number or process.poll() is not None


def everything_acknowledged_is_kept(folder: Path, experiment: Experiment) -> None:
    results = experiment.results
    kept_epochs = (
        {number: list(epochs) for number, epochs in results.groupby("trial_id")["epoch"]} if len(results) else {}
    )
    for number, lines in noted(folder).items():
        acknowledged = {epoch for kind, epoch in lines if kind == "acknowledged"}
        assert acknowledged <= set(kept_epochs.get(number, []))


def nothing_was_done_twice(folder: Path) -> None:
    """An attempt begins where the last acknowledged report was, or beyond: there a report was kept, unheard."""
    for lines in noted(folder).values():
        reached = 0
        for kind, epoch in lines:
            if kind == "begun":
                assert epoch >= reached
            else:
                assert epoch > reached
                reached = epoch


# One that decides at once, and one that hands states from trial to trial. How the others decide again is in
# test_replay.py.
@pytest.mark.parametrize(
    "kind", [kind if kind in ("asha", "population") else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]
)
def test_killed_search_resumes_to_the_same_end(tmp_path: Path, kind: str, pool: Pool) -> None:
    kill_and_resume(tmp_path, kind, 0, pool)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1, 51))
def test_two_hundred_killed_searches_resume_to_the_same_end(tmp_path: Path, kind: str, seed: int, pool: Pool) -> None:
    kill_and_resume(tmp_path, kind, seed, pool)

"""A search in one terminal, and commands in another: watched, steered, killed, resumed, listed and deleted.

The search is a process of its own, as the user starts it, forked of one that has loaded the foreign libraries; the
commands are typed in this process.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from program_runs import Finished, LoadedInterpreter

from fanwise.cli.app import main
from fanwise.testing import within
from fanwise.tune import load_experiment
from fanwise.tune.experiment import folder_of
from fanwise.tune.record.overview import read_search
from fanwise.tune.runtime.control import KEY_NAME, SOCKET_NAME

START = "import sys; sys.argv[0] = 'fanwise'; from fanwise.cli import main; main()"
OBJECTIVE = """
import time
from pathlib import Path
from fanwise.tune import load_checkpoint, report

def train(x, act, epochs):
    at = load_checkpoint()
    begin = int((at / "epoch").read_text()) if at else 0
    for epoch in range(begin + 1, epochs + 1):
        report(epoch=epoch, loss=(x - 1) ** 2 + 1 / epoch, checkpoint=lambda place: save(place, epoch))
        time.sleep(0.02)

def save(place, epoch):
    (place / "epoch").write_text(str(epoch))
"""
SPACE = "x: {uniform: [-1, 1]}\nact: {choice: ['1', relu]}\nepochs: 1000000\n"
RUN = ["tune", "run", "train.py:train", "--space", "space.yaml", "--metric", "loss", "--workers", "2", "--seed", "3"]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with train.py and space.yaml, and a home."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def typed(self, *arguments: str) -> Finished:
        self.monkeypatch.setattr(sys, "argv", ["fanwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, out, err)

    @contextmanager
    def running(self, *arguments: str, name: str) -> Iterator["subprocess.Popen[str]"]:
        """A command in another terminal that runs the search `name`."""
        with (
            (self.folder / f"{name}.log").open("w") as log,
            subprocess.Popen(
                [sys.executable, "-c", START, *arguments],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                within(60.0, lambda: self.num_reports(name) > 5, "its trials report")
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def num_reports(self, name: str) -> int:
        if not (self.home / name / SOCKET_NAME).exists():
            return 0
        return len(read_search(folder_of(name)).search.reports)

    def is_further(self, name: str, num_reports: int) -> bool:
        experiment = load_experiment(name)
        return experiment.state == "running" and len(read_search(experiment.path).search.reports) > num_reports

    def status(self, name: str, trial_id: int) -> str:
        history = read_search(folder_of(name)).search
        return history.status_of(history.trials[trial_id]) if trial_id in history.trials else "none"


@pytest.fixture(scope="module", autouse=True)
def forked_commands() -> Iterator[None]:
    """Fork the commands from an interpreter with their libraries, which takes a second to import."""
    with LoadedInterpreter("typer.main", "pydantic.type_adapter", "yaml", "cloudpickle", "pandas") as loaded:
        with loaded.forks_here():
            yield


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    (tmp_path / "train.py").write_text(OBJECTIVE)
    (tmp_path / "space.yaml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    return Place(tmp_path, monkeypatch, capsys)


def test_a_running_search_is_controlled_from_another_terminal(place: Place) -> None:
    with place.running(*RUN, "--seconds", "600", "--name", "lenet", name="lenet") as search:
        assert place.typed("tune", "pause", "lenet", "--trial", "0").out.startswith("trial 0 pauses at its next report")
        within(30.0, lambda: place.status("lenet", 0) == "Paused", "trial 0 is paused")
        done = place.typed("tune", "enqueue", "lenet", "x=0.5", "act=1")
        assert (done.status, done.out) == (0, "the next new trial uses x=0.5, act=1, epochs=1000000\n")
        place.typed("tune", "stop", "lenet", "--trial", "1")
        within(30.0, lambda: place.status("lenet", 3) == "InProgress", "its worker continues")
        configs = [trial.config for trial in read_search(folder_of("lenet")).search.trials.values()]
        assert {"x": 0.5, "act": "1", "epochs": 1000000} in configs, "a text that looks like a number is a text here"
        assert "1 paused, " in place.typed("tune", "show", "lenet").out
        done = place.typed("tune", "workers", "lenet", "3")
        assert done.out == "at most 3 trials at a time from now on; running trials are not interrupted\n"
        assert place.typed("tune", "workers", "lenet", "0").status == 2
        place.typed("tune", "unpause", "lenet", "--trial", "0")
        refused = [place.typed(*line) for line in (("tune", "rm", "lenet", "--yes"), ("tune", "resume", "lenet"))]
        assert [done.status for done in refused] == [1, 1]
        assert "the search 'lenet' is running: nothing was deleted. End it first: fanwise tune stop" in refused[0].err
        assert "the search 'lenet' is running already (to watch it: fanwise tune watch lenet)" in refused[1].err
        done = place.typed("tune", "stop", "lenet")
        assert (done.status, done.err) == (0, "")
        assert search.wait(30.0) == 0
    log = (place.folder / "lenet.log").read_text()
    assert "the search ended: stopped by hand" in log and "trial 0 paused" in log
    assert not (place.home / "lenet" / SOCKET_NAME).exists() and not (place.home / "lenet" / KEY_NAME).exists()


def test_a_killed_search_shows_its_lost_trials_and_can_be_resumed(place: Place) -> None:
    with place.running(*RUN, "--trials", "2", "--name", "killed", name="killed") as search:
        search.kill()
        search.wait(30.0)
    assert (place.home / "killed" / SOCKET_NAME).exists(), "nobody was there to remove it"
    shown = place.typed("tune", "show", "killed").out
    assert "2 trials lost when the tuner was killed, 0 finished" in shown and "trials running" not in shown
    assert "resume it: fanwise tune resume killed" in shown
    assert place.typed("tune", "show", "killed", "--trial", "0").out.startswith("trial 0 of killed: Lost\n")
    (listed,) = json.loads(place.typed("tune", "ls", "--json").out)
    assert (listed["state"], listed["num_trials"], listed["num_running"], listed["num_lost"]) == ("crashed", 2, 0, 2)
    for refused in (place.typed("tune", "stop", "killed"), place.typed("tune", "watch", "killed")):
        assert refused.status == 1
        assert "its tuner was killed or has crashed. Resume it with: fanwise tune resume killed" in refused.err
    before = len(read_search(folder_of("killed")).search.reports)
    with place.running("tune", "resume", "killed", "--workers", "1", "--trials", "3", name="killed") as search:
        within(60.0, lambda: place.is_further("killed", before), "trial 0 continues")
        assert place.typed("tune", "stop", "killed").status == 0
        assert search.wait(30.0) == 0
    log = (place.folder / "killed.log").read_text()
    assert "experiment killed, resumed: asynchronous search with 1 worker" in log
    assert "trial 0 scheduled again, attempt 1, from its checkpoint of report" in log
    assert not (place.home / "killed" / SOCKET_NAME).exists() and not (place.home / "killed" / KEY_NAME).exists()


def test_ctrl_c_ends_watch_but_not_the_search(place: Place) -> None:
    with place.running(*RUN, "--seconds", "600", "--name", "w", name="w") as search:
        log_file = place.folder / "left.log"
        with log_file.open("w") as log:
            watch = subprocess.Popen([sys.executable, "-c", START, "tune", "watch", "w"], stdout=log, text=True)
            within(60.0, lambda: "watching w" in log_file.read_text(), "it is watched")
            watch.send_signal(signal.SIGINT)
            assert watch.wait(30.0) == 130
        assert log_file.read_text().endswith("the search continues; watch it again: fanwise tune watch w\n")
        assert search.poll() is None
        before = place.num_reports("w")
        within(30.0, lambda: place.num_reports("w") > before, "the search continues")
        log_file = place.folder / "watch.log"
        with log_file.open("w") as log:
            watch = subprocess.Popen([sys.executable, "-c", START, "tune", "watch", "w"], stdout=log, text=True)
            within(60.0, lambda: "watching w: 2 trials running" in log_file.read_text(), "it is watched")
            place.typed("tune", "stop", "w", "--trial", "0")
            within(30.0, lambda: "trial 0 stopped" in log_file.read_text(), "the news come")
            place.typed("tune", "stop", "w")
            assert watch.wait(30.0) == 0
    assert "Resource summary" in log_file.read_text() and log_file.read_text().endswith(
        "the search ended: stopped by hand\n"
    )


def test_watch_reports_a_killed_tuner(place: Place) -> None:
    with place.running(*RUN, "--seconds", "600", "--name", "w", name="w") as search:
        log_file = place.folder / "watch.log"
        # The second suggestion may be the first that its searcher thinks about, with libraries to load.
        within(60.0, lambda: len(load_experiment("w").trials) == 2, "both workers have a trial")
        with log_file.open("w") as log:
            watch = subprocess.Popen([sys.executable, "-c", START, "tune", "watch", "w"], stdout=log, text=True)
            within(60.0, lambda: "watching w" in log_file.read_text(), "it is watched")
            search.kill()
            assert watch.wait(30.0) == 0
    assert "2 trials lost when the tuner was killed" in log_file.read_text()
    last = "the tuner of the search was killed or has crashed. Resume it: fanwise tune resume w\n"
    assert log_file.read_text().endswith(last)

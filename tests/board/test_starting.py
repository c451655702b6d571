"""Start of a board from the command line and by a tuner, and the errors if it cannot start."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fanwise.base.errors import NotInstalled
from fanwise.board.with_starlette import plotly_folder
from fanwise.testing import within
from fanwise.tune import StoppingCriterion, Tuner, uniform
from fanwise.tune.runtime.board_process import serving_board


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "plotly"])
def test_a_missing_library_is_reported_with_its_extra_before_a_folder_is_created(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    stop = StoppingCriterion(max_num_trials_started=1)
    with pytest.raises(NotInstalled, match=rf"the board needs {library}.*pip install 'fanwise\[board\]'"):
        Tuner(lambda x: x, {"x": uniform(0, 1)}, metric="loss", stop=stop, board=True)
    assert not (tmp_path / "home").exists()


def test_plotly_without_its_script_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(NotInstalled, match=r"fanwise\[board\]"):
        plotly_folder()


def test_the_death_of_a_board_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {process.pid for process in psutil.Process().children()}
    with caplog.at_level(logging.WARNING), serving_board(tmp_path / "some search") as address:
        assert address is not None and "/experiments/some%20search?token=" in address
        [child] = [process for process in psutil.Process().children() if process.pid not in before]
        child.send_signal(signal.SIGKILL)
        expected = f"the board ended with status {-signal.SIGKILL}; the search continues without it"
        within(30.0, lambda: expected in caplog.text, "the warning is logged while the search runs")


def test_a_board_whose_process_cannot_start_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with serving_board(tmp_path / "e") as address:
        assert address is None
    assert "the board cannot be started: " in caplog.text


def test_the_command_prints_the_address(tmp_path: Path) -> None:
    # With `-m`, a Ctrl-C within the `exec` of a dataclass makes Python itself end by that signal.
    program = "import sys; sys.argv[0] = 'fanwise'; from fanwise.cli import main; main()"
    command = [sys.executable, "-c", program, "board", "--port", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "FANWISE_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30.0) == 130
    assert line.startswith(f"board of {tmp_path}: http://127.0.0.1:")

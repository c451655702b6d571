"""The shell completes commands, options, names of experiments and what options take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fanwise.cli import tune_app


def completed(line: str, home: Path) -> list[str]:
    """Return the completions of bash at the end of the line."""
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['fanwise']; from fanwise.cli import main; main()"],
        env={
            **os.environ,
            "FANWISE_HOME": str(home),
            "_FANWISE_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("lenet", "lenet-asha", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").touch()
    (tmp_path / "lenet-no-experiment").mkdir()
    return tmp_path


def test_names_of_experiments_are_completed(home: Path) -> None:
    assert completed("fanwise tune show le", home) == ["lenet", "lenet-asha"]
    assert completed("fanwise tune plot other le", home) == ["lenet", "lenet-asha"]


def test_commands_and_values_of_options_are_completed(home: Path) -> None:
    assert completed("fanwise do", home) == ["doctor"]
    assert completed("fanwise tune run a.py:f --scheduler ha", home) == ["halving"]
    assert completed("fanwise", home / "none") == []


def test_an_empty_line_is_completed_without_help(home: Path) -> None:
    assert "tune" in completed("fanwise ", home)


def test_searchers_are_completed(home: Path) -> None:
    assert completed("fanwise tune run a.py:f --searcher gr", home) == ["grid"]


def test_an_unreadable_folder_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> list[str]:
        raise PermissionError("not yours")

    monkeypatch.setattr(tune_app, "list_experiments", unreadable)
    assert tune_app._complete_experiment("") == []


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    program = "import sys; sys.argv[0] = 'fanwise'; from fanwise.cli import main; main()"
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, "--install-completion", "bash"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "bash completion installed" in done.stdout, done.stderr
    assert "_FANWISE_COMPLETE=complete_bash" in next(tmp_path.rglob("fanwise.sh")).read_text()

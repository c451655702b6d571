"""`fanwise secret`: one line that can be used as it is, or a file that is private and never replaced."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Finished

from fanwise.cli import main
from fanwise.links.shared_secret import check_secret, read_secret

Run = Callable[..., Finished]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types the command in `tmp_path`, in this process."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["fanwise", "secret", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    return run


def test_the_secret_is_one_valid_line(run: Run) -> None:
    first, second = run(), run()
    assert (first.status, first.err) == (0, "") and first.out.count("\n") == 1
    assert check_secret(first.out) != check_secret(second.out)


def test_a_file_is_private_and_its_secret_is_not_shown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster secret"
    done = run("--file", "cluster secret")
    assert (done.status, done.err) == (0, "")
    assert done.out == f"wrote {path}; copy it to every host and set FANWISE_SECRET_FILE to its path there\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = read_secret({"FANWISE_SECRET_FILE": str(path)})
    assert secret is not None and secret not in done.said


def test_an_existing_file_is_not_changed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("in use")
    done = run("--file", "secret")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: secret exists and was not changed")
    assert path.read_text() == "in use"


def test_a_missing_folder_is_an_error_without_traceback(run: Run) -> None:
    done = run("--file", "no/such/secret")
    assert done.status == 1 and "No such file or directory" in done.err and "Traceback" not in done.err

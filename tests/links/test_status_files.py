"""Status files: written only after a request, and read only of live processes of this user."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fanwise.links import status_files
from fanwise.links.process_state import stat_of, this_host
from fanwise.links.status_files import Status, StatusFile, ask_for_statuses, statuses


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Request statuses, and return their folder."""
    with tempfile.TemporaryDirectory(prefix="r-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        yield Path(base) / "fanwise" / "status"


@pytest.fixture
def requested(folder: Path) -> Path:
    ask_for_statuses()
    return folder


def bodies() -> list[object]:
    return [status.body for status in statuses()]


def test_nothing_is_written_until_somebody_looks(folder: Path) -> None:
    file = StatusFile("run")
    file.write({"epoch": 1})
    assert not file.is_wanted() and not folder.exists() and statuses() == []
    ask_for_statuses()
    ask_for_statuses()
    assert file.is_wanted()
    file.write({"epoch": 2})
    assert bodies() == [{"epoch": 2}]
    file.close()


def test_the_last_word_counts_and_is_gone_at_the_end(requested: Path) -> None:
    file = StatusFile("run")
    file.write({"epoch": 1})
    file.write({"epoch": 2, "loss": float("nan")})
    (result,) = statuses()
    assert result == Status("run", this_host(), os.getpid(), result.written_s, {"epoch": 2, "loss": None})
    assert [path.stat().st_mode & 0o777 for path in requested.iterdir()] == [0o600]
    file.close()
    file.close()
    file.write({"epoch": 3})
    assert statuses() == [] and list(requested.iterdir()) == []


def test_two_of_a_process_are_two(requested: Path) -> None:
    one, two = StatusFile("run"), StatusFile("run")
    one.write({"a": 1})
    two.write({"a": 2})
    assert sorted(status.body["a"] for status in statuses()) == [1, 2]
    one.close()
    two.close()


def test_what_a_dead_process_has_left_vanishes(requested: Path) -> None:
    code = "import os, sys\nfrom fanwise.links.status_files import StatusFile\nStatusFile('run').write({})\nos._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list(requested.iterdir())) == 1
    assert statuses() == [] and list(requested.iterdir()) == []


def test_a_fork_neither_says_nor_ends_anything(requested: Path) -> None:
    file = StatusFile("run")
    file.write({"of": "parent"})
    pid = os.fork()
    if pid == 0:
        file.write({"of": "child"})
        file.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert bodies() == [{"of": "parent"}]
    file.close()


def said(**changes: object) -> str:
    ticks = stat_of(os.getpid()).started_ticks
    head = {"host": this_host(), "pid": os.getpid(), "started_ticks": ticks, "written_s": 1.0, "body": {}}
    return json.dumps({**head, **changes})


NAME = f"run-1-{'0' * 16}.json"
WRONG: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda path: path.write_text("{"),
    "no object": lambda path: path.write_text("[1]"),
    "much too deep": lambda path: path.write_text("[" * 100_000),
    "a body that is none": lambda path: path.write_text(said(body=3)),
    "a pid that is none": lambda path: path.write_text(said(pid="x")),
    "another process of that pid": lambda path: path.write_text(said(started_ticks=1)),
    "too large": lambda path: path.write_text(said(body={"x": "x" * (1 << 18)})),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "old, of another host": lambda path: path.write_text(said(host="elsewhere")),
    "another name": lambda path: path.with_name("run-1-x.json").write_text(said()),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_status_is_left_out(requested: Path, wrong: str) -> None:
    WRONG[wrong](requested / NAME)
    assert statuses() == []


def test_what_is_right_is_not_left_out(requested: Path) -> None:
    (requested / NAME).write_text(said(body={"x": 1}))
    assert bodies() == [{"x": 1}]


def test_of_a_process_that_cannot_be_seen_the_news_counts(requested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StatusFile("run")
    file.write({"x": 1})
    with monkeypatch.context() as patch:
        patch.setattr(status_files, "this_host", lambda: "elsewhere")
        assert bodies() == [{"x": 1}]
    file.close()


def test_too_much_is_not_said(requested: Path) -> None:
    file = StatusFile("run")
    file.write({"x": 1})
    file.write({"x": "x" * (1 << 18)})
    assert bodies() == [{"x": 1}]
    file.close()


def test_a_runtime_folder_that_others_may_enter_is_not_used(folder: Path) -> None:
    folder.parent.mkdir(mode=0o755)
    file = StatusFile("run")
    file.write({})
    assert not file.is_wanted() and statuses() == []
    file.close()

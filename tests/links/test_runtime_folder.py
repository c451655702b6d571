"""The runtime folder of a user: private, and available even if another user takes its name."""

import os
from pathlib import Path

import pytest

from fanwise.base.errors import JoinError
from fanwise.links import runtime_folder as place
from fanwise.links.runtime_folder import runtime_folder


def test_the_folder_is_made_for_this_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Path(os.environ["TMPDIR"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    folder = runtime_folder()
    assert folder == short / "fanwise" and folder.stat().st_mode & 0o777 == 0o700
    assert runtime_folder() == folder


@pytest.mark.parametrize("wrong", ["open to others", "a link"])
def test_a_folder_that_is_not_ours_alone_is_refused(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(place, "_FOLDER_SIZE_MAX", 1000)
    base = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    if wrong == "a link":
        (base / "elsewhere").mkdir(mode=0o700)
        (base / "fanwise").symlink_to(base / "elsewhere")
    else:
        (base / "fanwise").mkdir()
        (base / "fanwise").chmod(0o750)
    with pytest.raises(JoinError, match="that only user"):
        runtime_folder()


@pytest.fixture
def no_runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return substitutes for /tmp and the home folder."""
    monkeypatch.setattr(place, "_FOLDER_SIZE_MAX", 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for_all, home = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    return for_all, home


def folder_of_another(for_all: Path) -> Path:
    """As another user leaves it there: a link is never ours, and only root can make a folder for somebody else."""
    path = for_all / f"fanwise-{os.getuid()}"
    if os.getuid() == 0:
        path.mkdir(mode=0o700)
        os.chown(path, 4711, 4711)
    else:
        path.symlink_to(for_all)
    return path


def test_without_a_runtime_folder_it_is_the_usual_place(no_runtime_folder: tuple[Path, Path]) -> None:
    for_all, home = no_runtime_folder
    assert runtime_folder(for_all=for_all) == for_all / f"fanwise-{os.getuid()}"
    assert list(home.iterdir()) == []


def test_another_user_cannot_keep_this_one_out(
    no_runtime_folder: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    for_all, home = no_runtime_folder
    path = folder_of_another(for_all)
    folder = runtime_folder(for_all=for_all)
    assert folder.parent == home and folder.stat().st_mode & 0o777 == 0o700
    assert f"{path} belongs to another user" in caplog.text
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert runtime_folder(for_all=for_all) == folder, "later processes use the same folder"


def test_who_has_no_home_either_is_told_the_way_round(
    no_runtime_folder: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for_all, _home = no_runtime_folder
    monkeypatch.setenv("HOME", "/nonexistent")
    path = folder_of_another(for_all)
    with pytest.raises(
        JoinError, match=rf"{path} must be a folder that only user .*\n.*belongs to user .*\nSet XDG_RUNTIME_DIR"
    ):
        runtime_folder(for_all=for_all)

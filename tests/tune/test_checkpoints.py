"""Checkpoints are whole or not there: in a folder, and on another file system through fsspec."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from fanwise.base.errors import CheckpointError
from fanwise.tune.record.log import Record
from fanwise.tune.runtime.checkpoint_owner import claim, conflict_in, delete_owned
from fanwise.tune.runtime.checkpoint_store import (
    OWNER_FILE_NAME,
    CheckpointStore,
    checked_root,
    checkpoint_root,
    delete_checkpoint,
    open_checkpoint,
    save_checkpoint,
    sweep_checkpoints,
)


@pytest.fixture(params=["folder", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "checkpoints")
        return
    yield "memory://bucket/checkpoints"
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def save(root: str, name: str, scratch: Path, text: str = "weights", more: str = "") -> None:
    def write(folder: Path) -> None:
        (folder / "state").write_text(text)
        (folder / "layers").mkdir()
        (folder / "layers" / "first").write_text(text)
        if more:
            (folder / more).touch()

    save_checkpoint(root, name, write, lambda: scratch)


def read(root: str, name: str, scratch: Path) -> tuple[str, str]:
    folder = open_checkpoint(root, name, lambda: scratch)
    return (folder / "state").read_text(), (folder / "layers" / "first").read_text()


def test_what_was_saved_is_there_again(root: str, scratch: Path) -> None:
    save(root, "3-0-1", scratch)
    assert read(root, "3-0-1", scratch) == ("weights", "weights")


def test_a_later_attempt_replaces_what_a_lost_one_left(root: str, scratch: Path) -> None:
    save(root, "3-1-1", scratch, "lost", more="only then")
    save(root, "3-1-1", scratch, "kept")
    assert read(root, "3-1-1", scratch) == ("kept", "kept")
    assert not (open_checkpoint(root, "3-1-1", lambda: scratch) / "only then").exists()


def test_one_copy_at_a_time_lies_in_the_trials_folder(scratch: Path) -> None:
    for name in ("1-0-1", "1-0-2"):
        save("memory://bucket/copies", name, scratch, more=name)
        folder = open_checkpoint("memory://bucket/copies", name, lambda: scratch)
    assert [path.name for path in scratch.iterdir()] == [folder.name]
    assert not (folder / "1-0-1").exists()
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("how", ["exception", "kill"])
def test_nothing_that_counts_is_left_of_a_save_that_did_not_end(root: str, scratch: Path, how: str) -> None:
    def dies(folder: Path) -> None:
        (folder / "state").write_text("half")
        if how == "kill":
            os._exit(0)
        raise OSError("no more")

    if how == "exception":
        with pytest.raises(OSError, match="no more"):  # the user's own, as it is
            save_checkpoint(root, "3-0-1", dies, lambda: scratch)
    else:
        if (child := os.fork()) == 0:
            save_checkpoint(root, "3-0-1", dies, lambda: scratch)
        os.waitpid(child, 0)
    with pytest.raises(CheckpointError, match="there is no complete checkpoint 3-0-1 in "):
        open_checkpoint(root, "3-0-1", lambda: scratch)
    sweep_checkpoints(root, ())
    if "://" not in root:
        assert os.listdir(root) == []


def test_a_checkpoint_without_its_mark_does_not_count(root: str, scratch: Path) -> None:
    save(root, "3-0-1", scratch)
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.rm(f"{base}/3-0-1/COMPLETE")
    with pytest.raises(CheckpointError, match="there is no complete checkpoint 3-0-1 in "):
        open_checkpoint(root, "3-0-1", lambda: scratch)


def test_a_function_that_writes_nothing_is_an_error_that_shows_how(root: str, scratch: Path) -> None:
    with pytest.raises(CheckpointError, match=r"wrote nothing into its folder for checkpoint 3-0-1(.|\n)*torch.save"):
        save_checkpoint(root, "3-0-1", lambda folder: None, lambda: scratch)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"3-0-1 cannot be written to .*file/checkpoints: Not a directory"):
        save(str(tmp_path / "file" / "checkpoints"), "3-0-1", scratch)


def test_deleting_what_is_not_there_does_nothing(root: str, scratch: Path) -> None:
    save(root, "3-0-1", scratch)
    for _ in range(2):
        delete_checkpoint(root, "3-0-1")
    with pytest.raises(CheckpointError):
        open_checkpoint(root, "3-0-1", lambda: scratch)


def test_sweeping_deletes_what_no_trial_needs_and_nothing_that_is_not_ours(root: str, scratch: Path) -> None:
    assert sweep_checkpoints(root, ()) == []  # there is no such folder yet
    for name in ("1-0-1", "1-0-2", "12-3-4"):
        save(root, name, scratch)
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.pipe_file(f"{base}/notes.txt", b"mine")
    assert sorted(sweep_checkpoints(root, {"1-0-2"})) == ["1-0-1", "12-3-4"]
    assert read(root, "1-0-2", scratch) == ("weights", "weights")
    assert filesystem.exists(f"{base}/notes.txt")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    Record.create(tmp_path / "home" / "lenet", {"id": "a1"}).close()
    return tmp_path / "home" / "lenet"


def put(root: str, name: str) -> None:
    """Put a file of others into a root."""
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.makedirs(os.path.dirname(f"{base}/{name}"), exist_ok=True)
    filesystem.pipe_file(f"{base}/{name}", b"data")


def files_in(root: str) -> list[str]:
    filesystem, base = fsspec.core.url_to_fs(root)
    return sorted(path.removeprefix(f"{base}/") for path in filesystem.find(base))


def test_an_experiment_deletes_its_checkpoints_and_no_files_of_others(
    root: str, scratch: Path, experiment: Path
) -> None:
    claim(root, "a1", experiment)
    save(root, "0-0-1", scratch)
    put(root, "data/2024/images")
    put(root, "1-0-1.txt")
    assert conflict_in(root, "a1", experiment) is None
    delete_owned(root)
    assert files_in(root) == ["1-0-1.txt", "data/2024/images"]


def test_a_folder_with_checkpoints_alone_is_deleted_with_them(root: str, scratch: Path, experiment: Path) -> None:
    claim(root, "a1", experiment)
    claim(root, "a1", experiment)  # as a resume does
    save(root, "0-0-1", scratch)
    delete_owned(root)
    filesystem, base = fsspec.core.url_to_fs(root)
    assert not filesystem.exists(base)


def test_a_folder_that_was_not_claimed_is_not_deleted(root: str, experiment: Path) -> None:
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.makedirs(base)
    assert conflict_in(root, "a1", experiment) is None  # there is nothing to lose
    delete_owned(root)
    assert filesystem.exists(base)
    put(root, "2024-01-05/images")  # named like a checkpoint
    assert conflict_in(root, "a1", experiment) == "it has files of other programs."
    with pytest.raises(CheckpointError, match="files of other programs"):
        claim(root, "a1", experiment)
    assert files_in(root) == ["2024-01-05/images"]


def test_the_checkpoints_of_another_experiment_are_not_claimed(root: str, scratch: Path, experiment: Path) -> None:
    claim(root, "a1", experiment)
    save(root, "0-0-1", scratch)
    before = files_in(root)
    with pytest.raises(CheckpointError, match=r"it belongs to another experiment, .*/home/lenet on "):
        claim(root, "b2", experiment.with_name("other"))
    assert conflict_in(root, "b2", experiment) is not None
    assert files_in(root) == before


def test_a_copy_of_an_experiment_does_not_own_its_checkpoints_and_a_moved_experiment_does(
    root: str, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(root, "a1", experiment)
    copy = shutil.copytree(experiment, experiment.with_name("lenet-copy"))
    with pytest.raises(CheckpointError, match=r"and .*/home/lenet-copy is a copy of that experiment"):
        claim(root, "a1", copy)
    assert conflict_in(root, "a1", experiment) is None
    moved = experiment.rename(experiment.with_name("moved"))
    with monkeypatch.context() as patch:  # where the first folder cannot be seen
        patch.setattr("platform.node", lambda: "another machine")
        assert conflict_in(root, "a1", moved) is not None
    claim(root, "a1", moved)
    assert conflict_in(root, "a1", moved) is None
    assert conflict_in(root, "a1", copy) is not None


def test_a_marker_that_cannot_be_read_gives_nobody_the_right_to_delete(root: str, experiment: Path) -> None:
    put(root, OWNER_FILE_NAME)
    assert conflict_in(root, "a1", experiment) is not None


def test_on_an_object_store_an_experiment_deletes_its_checkpoints_and_no_files_of_others(
    object_store: Any, scratch: Path, experiment: Path
) -> None:
    root = "s3://fanwise/checkpoints/lenet"
    claim(root, "a1", experiment)
    save(root, "0-0-1", scratch)
    put(root, "data/images")
    with pytest.raises(CheckpointError):
        claim(root, "b2", experiment)
    assert conflict_in(root, "a1", experiment) is None
    delete_owned(root)
    assert files_in(root) == ["data/images"]
    with pytest.raises(CheckpointError, match="files of other programs"):
        claim(root, "a1", experiment)


def test_relative_places_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_root("ckpt/") == checked_root(Path("ckpt")) == f"{tmp_path}/ckpt"
    assert checked_root("file://ckpt") == f"file://{tmp_path}/ckpt"
    assert checked_root("s3://bucket/ckpt") == "s3://bucket/ckpt"
    assert checkpoint_root(Path("home/lenet"), "lenet", None) == f"{tmp_path}/home/lenet/checkpoints"


def test_the_store_has_deleted_all_that_it_was_told_when_it_is_closed(root: str, scratch: Path) -> None:
    for name in ("1-0-1", "1-0-2", "1-0-3"):
        save(root, name, scratch)
    store = CheckpointStore(root)
    store.discard(["1-0-1", "5-5-5"])
    store.discard(["1-0-2"])
    store.close()
    assert sweep_checkpoints(root, ()) == ["1-0-3"]

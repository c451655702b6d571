"""Checkpoints are complete or missing, in a local folder and on other file systems (fsspec)."""

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


def test_saved_files_are_read_again(root: str, scratch: Path) -> None:
    save(root, "3-0-1", scratch)
    assert read(root, "3-0-1", scratch) == ("weights", "weights")


def test_checkpoint_of_a_lost_attempt_is_replaced(root: str, scratch: Path) -> None:
    save(root, "3-1-1", scratch, "lost", more="old")
    save(root, "3-1-1", scratch, "kept")
    assert read(root, "3-1-1", scratch) == ("kept", "kept")
    assert not (open_checkpoint(root, "3-1-1", lambda: scratch) / "old").exists()


def test_download_replaces_the_one_before(scratch: Path) -> None:
    for name in ("1-0-1", "1-0-2"):
        save("memory://bucket/copies", name, scratch, more=name)
        folder = open_checkpoint("memory://bucket/copies", name, lambda: scratch)
    assert [path.name for path in scratch.iterdir()] == [folder.name]
    assert not (folder / "1-0-1").exists()
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("failure", ["exception", "kill"])
def test_interrupted_save_leaves_no_checkpoint(root: str, scratch: Path, failure: str) -> None:
    def save_half(folder: Path) -> None:
        (folder / "state").write_text("half")
        if failure == "kill":
            os._exit(0)
        raise OSError("no more")

    if failure == "exception":
        with pytest.raises(OSError, match="no more"):  # raised by the user's function
            save_checkpoint(root, "3-0-1", save_half, lambda: scratch)
    else:
        if (child := os.fork()) == 0:
            save_checkpoint(root, "3-0-1", save_half, lambda: scratch)
        os.waitpid(child, 0)
    with pytest.raises(CheckpointError, match="there is no complete checkpoint 3-0-1 in "):
        open_checkpoint(root, "3-0-1", lambda: scratch)
    sweep_checkpoints(root, ())
    if "://" not in root:
        assert os.listdir(root) == []


def test_checkpoint_without_its_marker_is_incomplete(root: str, scratch: Path) -> None:
    save(root, "3-0-1", scratch)
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.rm(f"{base}/3-0-1/COMPLETE")
    with pytest.raises(CheckpointError, match="there is no complete checkpoint 3-0-1 in "):
        open_checkpoint(root, "3-0-1", lambda: scratch)


def test_function_that_writes_nothing_is_an_error_with_an_example(root: str, scratch: Path) -> None:
    with pytest.raises(CheckpointError, match=r"wrote nothing into its folder for checkpoint 3-0-1(.|\n)*torch.save"):
        save_checkpoint(root, "3-0-1", lambda folder: None, lambda: scratch)


def test_error_names_the_root_that_cannot_be_written(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"3-0-1 cannot be written to .*file/checkpoints: Not a directory"):
        save(str(tmp_path / "file" / "checkpoints"), "3-0-1", scratch)


def test_deleting_a_missing_checkpoint_does_nothing(root: str, scratch: Path) -> None:
    save(root, "3-0-1", scratch)
    for _ in range(2):
        delete_checkpoint(root, "3-0-1")
    with pytest.raises(CheckpointError):
        open_checkpoint(root, "3-0-1", lambda: scratch)


def test_sweep_deletes_unneeded_checkpoints_and_no_other_files(root: str, scratch: Path) -> None:
    assert sweep_checkpoints(root, ()) == []  # the folder does not exist yet
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
    """Create a file of another program in a root."""
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.makedirs(os.path.dirname(f"{base}/{name}"), exist_ok=True)
    filesystem.pipe_file(f"{base}/{name}", b"data")


def files_in(root: str) -> list[str]:
    filesystem, base = fsspec.core.url_to_fs(root)
    return sorted(path.removeprefix(f"{base}/") for path in filesystem.find(base))


def test_experiment_deletes_its_checkpoints_and_no_other_files(root: str, scratch: Path, experiment: Path) -> None:
    claim(root, "a1", experiment)
    save(root, "0-0-1", scratch)
    put(root, "data/2024/images")
    put(root, "1-0-1.txt")
    assert conflict_in(root, "a1", experiment) is None
    delete_owned(root)
    assert files_in(root) == ["1-0-1.txt", "data/2024/images"]


def test_folder_with_only_checkpoints_is_deleted_with_them(root: str, scratch: Path, experiment: Path) -> None:
    claim(root, "a1", experiment)
    claim(root, "a1", experiment)  # as when the search is resumed
    save(root, "0-0-1", scratch)
    delete_owned(root)
    filesystem, base = fsspec.core.url_to_fs(root)
    assert not filesystem.exists(base)


def test_unclaimed_folder_is_not_deleted(root: str, experiment: Path) -> None:
    filesystem, base = fsspec.core.url_to_fs(root)
    filesystem.makedirs(base)
    assert conflict_in(root, "a1", experiment) is None  # the folder is empty
    delete_owned(root)
    assert filesystem.exists(base)
    put(root, "2024-01-05/images")  # named like a checkpoint
    assert conflict_in(root, "a1", experiment) == "it has files of other programs."
    with pytest.raises(CheckpointError, match="files of other programs"):
        claim(root, "a1", experiment)
    assert files_in(root) == ["2024-01-05/images"]


def test_checkpoints_of_another_experiment_cannot_be_claimed(root: str, scratch: Path, experiment: Path) -> None:
    claim(root, "a1", experiment)
    save(root, "0-0-1", scratch)
    before = files_in(root)
    with pytest.raises(CheckpointError, match=r"it belongs to another experiment, .*/home/lenet on "):
        claim(root, "b2", experiment.with_name("other"))
    assert conflict_in(root, "b2", experiment) is not None
    assert files_in(root) == before


def test_moved_experiment_owns_its_checkpoints_and_a_copy_does_not(
    root: str, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(root, "a1", experiment)
    copy = shutil.copytree(experiment, experiment.with_name("lenet-copy"))
    with pytest.raises(CheckpointError, match=r"and .*/home/lenet-copy is a copy of that experiment"):
        claim(root, "a1", copy)
    assert conflict_in(root, "a1", experiment) is None
    moved = experiment.rename(experiment.with_name("moved"))
    with monkeypatch.context() as patch:  # a machine that does not see the original folder
        patch.setattr("platform.node", lambda: "another machine")
        assert conflict_in(root, "a1", moved) is not None
    claim(root, "a1", moved)
    assert conflict_in(root, "a1", moved) is None
    assert conflict_in(root, "a1", copy) is not None


def test_root_with_an_invalid_owner_file_is_a_conflict(root: str, experiment: Path) -> None:
    put(root, OWNER_FILE_NAME)
    assert conflict_in(root, "a1", experiment) is not None


def test_experiment_on_an_object_store_deletes_its_checkpoints_and_no_other_files(
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


def test_relative_roots_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_root("ckpt/") == checked_root(Path("ckpt")) == f"{tmp_path}/ckpt"
    assert checked_root("file://ckpt") == f"file://{tmp_path}/ckpt"
    assert checked_root("s3://bucket/ckpt") == "s3://bucket/ckpt"
    assert checkpoint_root(Path("home/lenet"), "lenet", None) == f"{tmp_path}/home/lenet/checkpoints"


def test_closing_the_store_waits_for_all_deletions(root: str, scratch: Path) -> None:
    for name in ("1-0-1", "1-0-2", "1-0-3"):
        save(root, name, scratch)
    store = CheckpointStore(root)
    store.discard(["1-0-1", "5-5-5"])
    store.discard(["1-0-2"])
    store.close()
    assert sweep_checkpoints(root, ()) == ["1-0-3"]

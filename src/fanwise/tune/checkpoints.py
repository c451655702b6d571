"""Where trials keep what they need to go on: one folder a checkpoint, whole or not there, on any file system.

    <root>/<name>/...          files of the trial's own, written by the function that it hands to `report`
                 /COMPLETE     written last: a folder without it is no checkpoint

A root without a URL scheme is a folder, and a checkpoint comes to its name by one rename after its files are on the
disk. Any other root goes through fsspec (s3://, gs://, memory://, ...): files are written to a local folder first and
copied, and the mark follows when all of them are there.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, final

from ..base.errors import CheckpointError

_log = logging.getLogger(__name__)

_MARK = "COMPLETE"


def is_local(root: str) -> bool:
    """Whether the root is a folder of this machine's file systems, and not a URL."""
    return "://" not in root


def checkpoint_root(folder: Path, name: str, given: str | None) -> str:
    """Where an experiment keeps its checkpoints: in its folder, or in one of its name below what was given."""
    return str(folder / "checkpoints") if given is None else f"{given.rstrip('/')}/{name}"


def save_checkpoint(root: str, name: str, save: Callable[[Path], object]) -> None:
    """Have `save` write its files into an empty folder, and keep them under the name. What it raises is passed on.

    Raises:
        CheckpointError: `save` wrote nothing, or the file system refuses; nothing is left behind.
    """
    if not is_local(root):
        with _scratch() as folder:
            _fill(folder, name, save)
            _upload(root, name, folder)
        return
    base = Path(root)
    partial = base / f".{name}.partial"
    try:
        base.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        _fill(partial, name, save)
        _sync(partial)
        os.rename(partial, base / name)
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be written to {root}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_checkpoint(root: str, name: str, into: Path) -> Path:
    """The folder of a checkpoint; one that is not local is copied to `into`.

    Raises:
        CheckpointError: it is not there, or not whole; or the file system refuses.
    """
    if is_local(root):
        folder = Path(root) / name
        if not (folder / _MARK).is_file():
            raise CheckpointError(f"there is no whole checkpoint {name} in {root}.")
        return folder
    filesystem, base = _filesystem(root)
    try:
        if not filesystem.exists(f"{base}/{name}/{_MARK}"):
            raise CheckpointError(f"there is no whole checkpoint {name} in {root}.")
        filesystem.get(f"{base}/{name}/", str(into / name) + "/", recursive=True)
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be read from {root}: {error}.") from error
    return into / name


def delete_checkpoint(root: str, name: str) -> None:
    """Delete a checkpoint, its mark first; nothing happens when it is not there. OSError: the file system refuses."""
    if is_local(root):
        folder = Path(root) / name
        (folder / _MARK).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return
    filesystem, base = _filesystem(root)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(f"{base}/{name}/{_MARK}")
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(f"{base}/{name}", recursive=True)


def delete_root(root: str) -> None:
    """Delete all checkpoints below a root; nothing happens when there are none. OSError: the file system refuses."""
    if is_local(root):
        if os.path.isdir(root):
            shutil.rmtree(root)
        return
    filesystem, base = _filesystem(root)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(base, recursive=True)


@final
class CheckpointStore:
    """Deletes checkpoints that are needed no more, in a thread of its own, so that no decision waits for a disk."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def discard(self, names: list[str]) -> None:
        """Delete these soon. Blocks for nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-checkpoints", daemon=True)
            self._thread.start()
        for name in names:
            self._names.put(name)

    def close(self) -> None:
        """Blocks until all that was discarded is deleted."""
        if self._thread is not None:
            self._names.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (name := self._names.get()) is not None:
            try:
                delete_checkpoint(self._root, name)
            except Exception as error:  # a full disk or a lost network must not end the search
                _log.warning("checkpoint %s in %s could not be deleted: %s", name, self._root, error)


def _fill(folder: Path, name: str, save: Callable[[Path], object]) -> None:
    save(folder)
    if not any(folder.iterdir()):
        raise CheckpointError(
            f"the function given as checkpoint= wrote nothing into its folder for checkpoint {name}.\n"
            f"  right:  report(..., checkpoint=lambda folder: torch.save(state, folder / 'state.pt'))"
        )
    (folder / _MARK).touch()


def _sync(folder: Path) -> None:
    """Files first, then the folders that name them."""
    for place, _, files in os.walk(folder, topdown=False):
        for file in files:
            _sync_one(os.path.join(place, file))
        _sync_one(place)


def _sync_one(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fanwise-checkpoint-") as folder:
        yield Path(folder)


def _upload(root: str, name: str, folder: Path) -> None:
    filesystem, base = _filesystem(root)
    mark = folder / _MARK
    mark.unlink()
    try:
        filesystem.makedirs(f"{base}/{name}", exist_ok=True)
        filesystem.put(f"{folder}/", f"{base}/{name}/", recursive=True)
        filesystem.pipe_file(f"{base}/{name}/{_MARK}", b"")
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be written to {root}: {error}.") from error


def _filesystem(root: str) -> tuple[Any, str]:  # Any: fsspec has no types
    import fsspec

    filesystem, base = fsspec.core.url_to_fs(root)
    return filesystem, base.rstrip("/")

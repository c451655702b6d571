"""Checkpoints of trials: one folder per checkpoint, written atomically, on any file system.

    <root>/<name>/...          files written by the function that the trial passes to `report`
                 /COMPLETE     marker file, written last; a folder without it is not a checkpoint

If the root is a local folder, a checkpoint is synced to disk and then renamed to its final name. If it is a URL, files
are written to a local folder and uploaded through fsspec (s3://, gs://, ...), followed by the marker.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import final

from ...base.errors import CheckpointError
from ...base.text import counted
from ...base.urls import check_url, filesystem_of, is_url

_log = logging.getLogger(__name__)

_COMPLETE_MARKER = "COMPLETE"
_DELETION_DELAY_S = 0.2  # the record of the deletion has been synced by then, see `record.log`
# Name of the file that records the owner of a checkpoint root; see `checkpoint_owner`.
OWNER_FILE_NAME = "fanwise-experiment.json"
# Names of checkpoints and of partially written ones. Nothing else below a root may be deleted.
_NAME = re.compile(r"\d+-\d+-\d+|\.\d+-\d+-\d+\..*\.partial")


def checkpoint_root(folder: Path, name: str, setting: str | None) -> str:
    """Return the checkpoint root of an experiment. `setting`: the result of `checked_root`."""
    return os.path.abspath(folder / "checkpoints") if setting is None else f"{setting.rstrip('/')}/{name}"


def checked_root(setting: object) -> str | None:
    """Return the setting `checkpoints` as an absolute path or URL, or None for the experiment's folder.

    Raises:
        TypeError, ValueError: it is not a path or URL, or it cannot be shared between processes.
        NotInstalled: the library for this kind of URL is missing.
    """
    if setting is None:
        return None
    if not isinstance(setting, str | os.PathLike) or not isinstance(root := os.fspath(setting), str):
        raise TypeError(f"checkpoints must be a folder or a URL, got {setting!r} of type {type(setting).__name__}")
    if not is_url(root):
        return os.path.abspath(root)
    scheme, _, path = root.partition("://")
    if scheme == "memory":
        raise ValueError(
            f"checkpoints={root!r} is the memory of one process, which other processes cannot access. "
            f"Pass a folder, or leave it out."
        )
    check_url(root, name="checkpoints")
    return f"{scheme}://{os.path.abspath(path)}" if scheme in ("file", "local") else root


def save_checkpoint(root: str, name: str, save: Callable[[Path], object], scratch: Callable[[], Path]) -> None:
    """Call `save` with an empty folder and keep the files it writes as the checkpoint `name`.

    An existing checkpoint of this name is replaced, because its attempt was lost before the report was committed.
    Exceptions of `save` propagate.

    Args:
        scratch: returns a local folder for files to upload. Only called if the root is a URL.

    Raises CheckpointError if `save` wrote nothing, or the file system failed. No files are left behind.
    """
    base = scratch() if is_url(root) else Path(root)
    with contextlib.ExitStack() as stack:
        with as_checkpoint_error(f"checkpoint {name}", root):
            base.mkdir(parents=True, exist_ok=True)
            partial_folder = tempfile.TemporaryDirectory(
                prefix=f".{name}.", suffix=".partial", dir=base, ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(partial_folder))
        save(folder)
        if not any(folder.iterdir()):
            raise CheckpointError(
                f"the function given as checkpoint= wrote nothing into its folder for checkpoint {name}.\n"
                f"  right:  report(..., checkpoint=lambda folder: torch.save(state, folder / 'state.pt'))"
            )
        with as_checkpoint_error(f"checkpoint {name}", root):
            if is_url(root):
                _upload(folder, root, name)
            else:
                _publish(folder, base, name)


def open_checkpoint(root: str, name: str, scratch: Callable[[], Path]) -> Path:
    """Return the folder of a checkpoint. If the root is a URL, it is a download, which the next call replaces.

    Raises CheckpointError if the checkpoint is missing or incomplete, or the file system failed.
    """
    if not is_url(root):
        folder = Path(root) / name
        if not (folder / _COMPLETE_MARKER).is_file():
            raise CheckpointError(f"there is no complete checkpoint {name} in {root}.")
        return folder
    filesystem, base = filesystem_of(root)
    try:
        filesystem.invalidate_cache()
        if not filesystem.exists(f"{base}/{name}/{_COMPLETE_MARKER}"):
            raise CheckpointError(f"there is no complete checkpoint {name} in {root}.")
        folder = scratch() / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        filesystem.get(f"{base}/{name}/", f"{folder}/", recursive=True)
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be read from {root}: {error}.") from error
    return folder


def delete_checkpoint(root: str, name: str) -> None:
    """Delete a checkpoint, its marker first. Do nothing if it is missing. Raise OSError if the file system fails."""
    if not is_url(root):
        folder = Path(root) / name
        (folder / _COMPLETE_MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return
    filesystem, base = filesystem_of(root)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(f"{base}/{name}/{_COMPLETE_MARKER}")
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(f"{base}/{name}", recursive=True)


def names_in(root: str) -> list[str]:
    """Return the names directly below a root, except the owner file. Raise OSError if the file system fails."""
    if not is_url(root):
        names = os.listdir(root) if os.path.isdir(root) else []
    else:
        filesystem, base = filesystem_of(root)
        filesystem.invalidate_cache()
        try:
            paths = [path.rstrip("/") for path in filesystem.ls(base, detail=False)]
        except FileNotFoundError:
            paths = []
        names = [path.rpartition("/")[2] for path in paths if path != base]  # an object store may list the folder
    return [name for name in names if name != OWNER_FILE_NAME]


def sweep_checkpoints(root: str, keep: Collection[str]) -> list[str]:
    """Delete all checkpoints except those in `keep`, and return the deleted names. Other files stay.

    A killed tuner leaves incomplete checkpoints, checkpoints whose report it had not committed, and checkpoints that it
    was about to delete. Raise OSError if the file system fails.
    """
    names = [name for name in names_in(root) if name not in keep and _NAME.fullmatch(name)]
    if not is_url(root):
        names = [name for name in names if os.path.isdir(f"{root}/{name}")]
    for name in names:
        delete_checkpoint(root, name)
    return names


@final
class CheckpointStore:
    """Deletes obsolete checkpoints in a thread, so that no decision waits for the disk.

    Each deletion is delayed until the record is durable, because the checkpoint may be needed after a power cut.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._closing = threading.Event()
        self._names: SimpleQueue[tuple[float, str] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def discard(self, names: list[str]) -> None:
        """Delete these checkpoints soon. Does not block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-checkpoints", daemon=True)
            self._thread.start()
        for name in names:
            self._names.put((time.monotonic() + _DELETION_DELAY_S, name))

    def close(self) -> None:
        """Block until all discarded checkpoints are deleted. Close the record first."""
        self._closing.set()
        if self._thread is not None:
            self._names.put(None)
            self._thread.join()

    def sweep(self, keep: Collection[str]) -> None:
        """Delete orphaned checkpoints (see `sweep_checkpoints`). Must not be called while trials are running."""
        try:
            if orphans := sweep_checkpoints(self.root, keep):
                _log.info("deleted %s from %s", counted(len(orphans), "unused checkpoint"), self.root)
        except Exception as error:  # a full disk or a lost network must not end the search
            _log.warning("unused checkpoints could not be deleted from %s: %s", self.root, error)

    def _run(self) -> None:
        while (item := self._names.get()) is not None:
            due_s, name = item
            self._closing.wait(max(0.0, due_s - time.monotonic()))
            try:
                delete_checkpoint(self.root, name)
            except Exception as error:  # a full disk or a lost network must not end the search
                _log.warning("checkpoint %s in %s could not be deleted: %s", name, self.root, error)


@contextmanager
def as_checkpoint_error(label: str, root: str) -> Iterator[None]:
    """Convert an OSError into a CheckpointError. The user's `save` must not be called inside the block."""
    try:
        yield
    except OSError as error:
        problem = f"{label} cannot be written to {root}: {error.strerror or error}."
        raise CheckpointError(f"{problem} Check whether the disk is full, or change checkpoints=.") from error


def _publish(folder: Path, base: Path, name: str) -> None:
    (folder / _COMPLETE_MARKER).touch()
    for parent, _, files in os.walk(folder, topdown=False):
        for file in files:
            _sync(os.path.join(parent, file))
        _sync(parent)
    delete_checkpoint(str(base), name)
    os.rename(folder, base / name)
    _sync(str(base))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _upload(folder: Path, root: str, name: str) -> None:
    filesystem, base = filesystem_of(root)
    delete_checkpoint(root, name)
    filesystem.makedirs(f"{base}/{name}", exist_ok=True)
    filesystem.put(f"{folder}/", f"{base}/{name}/", recursive=True)
    filesystem.pipe_file(f"{base}/{name}/{_COMPLETE_MARKER}", b"")

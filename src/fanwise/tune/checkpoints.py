"""Where trials keep what they need to go on: one folder a checkpoint, whole or not there, on any file system.

    <root>/<name>/...          files of the trial's own, written by the function that it hands to `report`
                 /COMPLETE     written last: a folder without it is no checkpoint

A root without a URL scheme is a folder, and a checkpoint comes to its name by one rename after its files are on the
disk. Any other root goes through fsspec (s3://, gs://, ...): files are written to a local folder first and
copied, and the mark follows when all of them are there.
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

from ..base.errors import CheckpointError
from ..base.text import counted
from ..base.urls import check_url, filesystem_of, is_url, scheme_of

_log = logging.getLogger(__name__)

_MARK = "COMPLETE"
_UNTIL_DURABLE_S = 0.2
# The file that names the owner of a root that is outside the experiment's folder; see `checkpoint_owner`.
MARKER = "fanwise-experiment.json"
# The names that trials give, and of folders that are being written. Nothing else below a root is ours to delete.
_NAME = re.compile(r"\d+-\d+-\d+|\.\d+-\d+-\d+\..*\.partial")


def is_local(root: str) -> bool:
    """Whether the root is a folder of this machine's file systems, and not a URL."""
    return not is_url(root)


def checkpoint_root(folder: Path, name: str, given: str | None) -> str:
    """Return where an experiment keeps its checkpoints: in its folder, or in one of its name below what was given.

    Args:
        given: as `checked_root` returned it.
    """
    return os.path.abspath(folder / "checkpoints") if given is None else f"{given.rstrip('/')}/{name}"


def checked_root(given: object) -> str | None:
    """Return the place for checkpoints that was given, as an absolute path or URL. None: the experiment's folder.

    Raises:
        TypeError, ValueError: it is no place, or one that the processes of trials do not share.
        NotInstalled: what knows such places is not there.
    """
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not isinstance(root := os.fspath(given), str):
        raise TypeError(f"checkpoints must be a folder or a URL, got {given!r} of type {type(given).__name__}")
    if is_local(root):
        return os.path.abspath(root)
    if scheme_of(root) == "memory":
        raise ValueError(
            f"checkpoints={root!r}: what one process keeps in its memory the others do not see, and trials are "
            f"processes of their own. Name a folder, or leave it out."
        )
    check_url(root, name="checkpoints")
    scheme, _, path = root.partition("://")
    return f"{scheme}://{os.path.abspath(path)}" if scheme in ("file", "local") else root


def save_checkpoint(root: str, name: str, save: Callable[[Path], object], scratch: Callable[[], Path]) -> None:
    """Have `save` write its files into an empty folder, and keep them under the name. What it raises is passed on.

    What lies there under the name is replaced: it was saved by an attempt that was lost before anybody heard of it.

    Args:
        scratch: gives a folder for files on their way to a root that is not local.

    Raises:
        CheckpointError: `save` wrote nothing, or the file system refuses; nothing is left behind.
    """
    if not is_local(root):
        with _own_folder(scratch(), name) as folder:
            _fill(folder, name, save)
            with _explained(root, name):
                _upload(root, name, folder)
        return
    base = Path(root)
    with contextlib.ExitStack() as stack:
        with _explained(root, name):
            base.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(_own_folder(base, name))
        _fill(folder, name, save)
        with _explained(root, name):
            (folder / _MARK).touch()
            _sync(folder)
            delete_checkpoint(root, name)
            os.rename(folder, base / name)
            _sync_one(root)


def open_checkpoint(root: str, name: str, scratch: Callable[[], Path]) -> Path:
    """The folder of a checkpoint; one that is not local is copied into `scratch`, where it replaces the last copy.

    Raises:
        CheckpointError: it is not there, or not whole; or the file system refuses.
    """
    if is_local(root):
        folder = Path(root) / name
        if not (folder / _MARK).is_file():
            raise CheckpointError(f"there is no whole checkpoint {name} in {root}.")
        return folder
    filesystem, base = filesystem_of(root)
    try:
        filesystem.invalidate_cache()
        if not filesystem.exists(f"{base}/{name}/{_MARK}"):
            raise CheckpointError(f"there is no whole checkpoint {name} in {root}.")
        into = scratch() / "checkpoint"
        shutil.rmtree(into, ignore_errors=True)
        filesystem.get(f"{base}/{name}/", f"{into}/", recursive=True)
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be read from {root}: {error}.") from error
    return into


def delete_checkpoint(root: str, name: str) -> None:
    """Delete a checkpoint, its mark first; nothing happens when it is not there. OSError: the file system refuses."""
    if is_local(root):
        folder = Path(root) / name
        (folder / _MARK).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return
    filesystem, base = filesystem_of(root)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(f"{base}/{name}/{_MARK}")
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(f"{base}/{name}", recursive=True)


def names_in(root: str) -> list[str]:
    """Return the names directly below a root, but for the owner's marker. OSError: the file system refuses."""
    if is_local(root):
        names = os.listdir(root) if os.path.isdir(root) else []
    else:
        filesystem, base = filesystem_of(root)
        filesystem.invalidate_cache()
        try:
            paths = [path.rstrip("/") for path in filesystem.ls(base, detail=False)]
        except FileNotFoundError:
            paths = []
        names = [path.rpartition("/")[2] for path in paths if path != base]  # an object store may list the folder
    return [name for name in names if name != MARKER]


def delete_checkpoints(root: str, names: Collection[str]) -> list[str]:
    """Delete those of the names that are checkpoints, whole or half written, and return their names.

    Raises:
        OSError: the file system refuses.
    """
    checkpoints = [name for name in names if _NAME.fullmatch(name)]
    if is_local(root):
        checkpoints = [name for name in checkpoints if os.path.isdir(f"{root}/{name}")]
    for name in checkpoints:
        delete_checkpoint(root, name)
    return checkpoints


def sweep_checkpoints(root: str, keep: Collection[str]) -> list[str]:
    """Delete all checkpoints but these, whole or half written, and return their names.

    What a trial saved is an orphan when its tuner was killed before it had committed the report of it; and what was
    deleted is there again when the tuner was killed before it came to that. OSError: the file system refuses.
    """
    return delete_checkpoints(root, [name for name in names_in(root) if name not in keep])


@final
class CheckpointStore:
    """Deletes checkpoints that are needed no more, in a thread of its own, so that no decision waits for a disk.

    It waits for a moment first: a power cut loses the last moments of a record, and then the older checkpoint counts.
    """

    def __init__(self, root: str) -> None:
        self._closing = threading.Event()
        self._root = root
        self._names: SimpleQueue[tuple[float, str] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def discard(self, names: list[str]) -> None:
        """Delete these soon. Blocks for nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-checkpoints", daemon=True)
            self._thread.start()
        for name in names:
            self._names.put((time.monotonic(), name))

    def close(self) -> None:
        """Blocks until all that was discarded is deleted. Close the record before."""
        self._closing.set()
        if self._thread is not None:
            self._names.put(None)
            self._thread.join()

    def sweep(self, keep: Collection[str]) -> None:
        """Delete what nobody knows, while no trial runs; see `sweep_checkpoints`."""
        try:
            if orphans := sweep_checkpoints(self._root, keep):
                _log.info("deleted %s in %s that no trial needs", counted(len(orphans), "checkpoint"), self._root)
        except Exception as error:  # a full disk or a lost network must not end the search
            _log.warning("checkpoints that no trial needs could not be deleted from %s: %s", self._root, error)

    def _run(self) -> None:
        while (told := self._names.get()) is not None:
            at_s, name = told
            self._closing.wait(max(0.0, at_s + _UNTIL_DURABLE_S - time.monotonic()))
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


@contextmanager
def _explained(root: str, name: str) -> Iterator[None]:
    """What a file system says, as our error. What the user's own function says is passed on: not for in here."""
    try:
        yield
    except OSError as error:
        what = f"checkpoint {name} cannot be written to {root}: {error.strerror or error}."
        raise CheckpointError(f"{what} Look at the disk (full?), or set checkpoints= to another place.") from error


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
def _own_folder(base: Path, name: str) -> Iterator[Path]:
    """An empty folder in `base`, gone afterwards unless it was renamed."""
    folder = tempfile.mkdtemp(prefix=f".{name}.", suffix=".partial", dir=base)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _upload(root: str, name: str, folder: Path) -> None:
    filesystem, base = filesystem_of(root)
    delete_checkpoint(root, name)
    filesystem.makedirs(f"{base}/{name}", exist_ok=True)
    filesystem.put(f"{folder}/", f"{base}/{name}/", recursive=True)
    filesystem.pipe_file(f"{base}/{name}/{_MARK}", b"")

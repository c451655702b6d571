"""Deletes an experiment: its folder and its checkpoints."""

import os
import shutil
from pathlib import Path
from typing import Any

from ..base.errors import ClosedError, RecordError
from .record.lock import HeldError, hold, release
from .record.reading import FILE_NAME, read_meta
from .runtime.checkpoint_owner import conflict_in, delete_owned, is_inside
from .runtime.checkpoint_store import checkpoint_root


def remove_experiment(folder: Path) -> None:
    """Delete an experiment and its checkpoints, even if its record cannot be read. Other files are kept.

    Raises:
        RecordError: the folder has no record or is a symbolic link, or the experiment does not own its checkpoint
            root. Nothing was deleted.
        ClosedError: the search is running.
        OSError: the file system failed. The remaining files may have no record.
    """
    if folder.is_symlink() or not (folder / FILE_NAME).is_file():
        raise RecordError(f"{folder} is no experiment's own folder: nothing was deleted.")
    meta = _meta_of(folder)
    try:
        lock = hold(folder)
    except HeldError:
        raise ClosedError(
            f"the search {folder.name!r} is running: nothing was deleted. End it first: fanwise tune stop {folder.name}"
        ) from None
    try:
        _delete_checkpoints(folder, meta)
        # Renaming frees the name, and the folder no longer counts as an experiment.
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.deleted")
        os.rename(folder, doomed)
        (doomed / FILE_NAME).unlink()
        shutil.rmtree(doomed)
    finally:
        release(lock)


def _delete_checkpoints(folder: Path, meta: dict[str, Any]) -> None:  # Any: JSON
    """Delete the checkpoints of an experiment, unless they are in its folder."""
    setting = meta.get("settings", {}).get("checkpoints")
    if setting is None:
        return
    root = checkpoint_root(folder, str(meta["name"]), str(setting))
    if is_inside(root, folder):
        return
    if conflict := conflict_in(root, meta.get("id"), folder):
        raise RecordError(
            f"{folder.name} keeps its checkpoints in {root}, but {conflict}\n"
            f"Nothing was deleted. To delete the experiment without them, remove {folder} by hand."
        )
    delete_owned(root)


def _meta_of(folder: Path) -> dict[str, Any]:  # Any: JSON
    try:
        return read_meta(folder)
    except RecordError:
        return {}

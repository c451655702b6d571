"""Deleting an experiment: its folder and its checkpoints, wherever these are."""

import os
import shutil
from pathlib import Path
from typing import Any

from ..base.errors import ClosedError, RecordError
from .checkpoints import checkpoint_root, delete_root
from .record.live import LIVE_FILE, LIVE_HOST, live_file_here
from .record.lock import HeldError, hold, release
from .record.reading import FILE_NAME, read_meta


def remove_experiment(folder: Path) -> None:
    """Delete everything that is kept of the experiment in this folder, also of one whose record cannot be read.

    Raises:
        RecordError: the folder holds no record, or is a link.
        ClosedError: it runs, or may run on another machine.
        OSError: the file system refuses; what is left has no record any more.
    """
    if folder.is_symlink() or not (folder / FILE_NAME).is_file():
        raise RecordError(f"{folder} is no experiment's own folder: nothing was deleted.")
    meta = _meta_of(folder)
    live = live_file_here(meta)
    if live is None and LIVE_FILE in meta:
        raise ClosedError(
            f"{folder.name} runs on {meta.get(LIVE_HOST)!r}, if it does: delete it there, or {folder} by hand."
        )
    try:
        held = hold(folder if live is None else live.parent)
    except HeldError:
        raise ClosedError(
            f"the search {folder.name!r} is running: nothing was deleted. End it first: fanwise tune stop {folder.name}"
        ) from None
    try:
        given = meta.get("settings", {}).get("checkpoints")
        if given is not None:
            delete_root(checkpoint_root(folder, str(meta["name"]), given))
        # From here on nobody takes it for an experiment, and its name is free.
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.deleted")
        os.rename(folder, doomed)
        (doomed / FILE_NAME).unlink()
        shutil.rmtree(doomed)
        if live is not None:
            shutil.rmtree(live.parent)
    finally:
        release(held)


def _meta_of(folder: Path) -> dict[str, Any]:  # Any: JSON
    try:
        return read_meta(folder)
    except RecordError:
        return {}

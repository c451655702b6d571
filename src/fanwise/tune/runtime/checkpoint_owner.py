"""Ownership of checkpoint folders. An experiment changes files only in a folder that it owns.

    <checkpoints=>/<name>/fanwise-experiment.json     the owner: id, folder and machine of the experiment

An experiment claims its folder when it begins and when it is resumed. The folder must be empty or have the same owner.
Checkpoints inside the experiment's folder need no claim.
"""

import json
import os
import platform
from contextlib import suppress
from pathlib import Path

from ...base.errors import CheckpointError, RecordError
from ...base.urls import filesystem_of, is_url
from ..record.event_file import EVENTS_NAME, read_meta
from .checkpoint_store import OWNER_FILE_NAME, as_checkpoint_error, names_in, sweep_checkpoints


def claim(root: str, experiment_id: str, folder: Path) -> None:
    """Create `root`, a path or URL, for the checkpoints of an experiment, and mark it as owned by the experiment.

    Raises CheckpointError if the root has other files or another owner, or cannot be written.
    """
    if is_inside(root, folder):
        return
    with as_checkpoint_error("checkpoints", root):
        if conflict := conflict_in(root, experiment_id, folder):
            raise CheckpointError(
                f"checkpoints cannot be kept in {root}: {conflict}\n"
                f"Choose another name= or checkpoints=, or remove the files."
            )
        _write_owner(root, {"id": experiment_id, "folder": os.path.realpath(folder), "machine": platform.node()})


def delete_owned(root: str) -> None:
    """Delete the checkpoints in `root`, and `root` itself if it has no other files. Check `conflict_in` first.

    Raise OSError if the file system fails.
    """
    if _read_owner(root) is None:
        return
    sweep_checkpoints(root, keep=())
    if not is_url(root):
        (Path(root) / OWNER_FILE_NAME).unlink(missing_ok=True)
        with suppress(OSError):  # the root has other files, or is a link
            os.rmdir(root)
        return
    filesystem, base = filesystem_of(root)
    with suppress(FileNotFoundError):
        filesystem.rm_file(f"{base}/{OWNER_FILE_NAME}")
    if not names_in(root):
        with suppress(OSError):  # an object store has folders only as long as they have files
            filesystem.rmdir(base)


def is_inside(root: str, folder: Path) -> bool:
    """Return True if the checkpoints are in the experiment's folder."""
    return not is_url(root) and Path(root).is_relative_to(os.path.abspath(folder))


def conflict_in(root: str, experiment_id: object, folder: Path) -> str | None:
    """Return the reason why the experiment must not change the root, or None if it may.

    Raise OSError if the file system fails.
    """
    owner = _read_owner(root)
    if owner is None:
        return "it has files of other programs." if names_in(root) else None
    owner_folder, machine = owner.get("folder"), owner.get("machine")
    if owner.get("id") != experiment_id:
        return f"it belongs to another experiment, {owner_folder} on {machine!r}."
    real_folder = os.path.realpath(folder)
    # Folders on another machine cannot be checked, so the experiment there is assumed to exist still.
    was_moved = machine == platform.node() and not _contains(Path(str(owner_folder)), experiment_id)
    if owner_folder == real_folder or was_moved:
        return None
    return (
        f"it belongs to {owner_folder} on {machine!r}, and {real_folder} is a copy of that experiment. "
        f"If the original is gone, write this folder into {root}/{OWNER_FILE_NAME}."
    )


def _contains(folder: Path, experiment_id: object) -> bool:
    """Return True if the folder contains this experiment, or a record that cannot be read."""
    try:
        return (folder / EVENTS_NAME).exists() and read_meta(folder).get("id") == experiment_id
    except RecordError:
        return True


def _read_owner(root: str) -> dict[str, object] | None:
    """Return the contents of the owner file: None if it is missing, empty if it is not a JSON object."""
    try:
        if is_url(root):
            filesystem, base = filesystem_of(root)
            filesystem.invalidate_cache()
            text = filesystem.cat_file(f"{base}/{OWNER_FILE_NAME}")
        else:
            text = (Path(root) / OWNER_FILE_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _write_owner(root: str, owner: dict[str, object]) -> None:
    text = json.dumps(owner).encode()
    if not is_url(root):
        os.makedirs(root, exist_ok=True)
        path = Path(root) / OWNER_FILE_NAME
        with open(path, "wb" if path.exists() else "xb") as file:  # fails if another experiment has just claimed it
            file.write(text)
        return
    filesystem, base = filesystem_of(root)
    filesystem.makedirs(base, exist_ok=True)
    filesystem.pipe_file(f"{base}/{OWNER_FILE_NAME}", text)

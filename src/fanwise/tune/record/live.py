"""Where the live file of a record lies when it may not lie in the experiment's folder: on a disk of this machine.

    the experiment's folder, on a home that machines share     a folder on local disk (mode 0700)
      record.sqlite   a copy, every 10 s                  <--    record.sqlite, -wal, -shm     the live file
        meta: live_file, live_host

Knows how to make such a folder, and how to find one that a killed tuner has left. `FANWISE_LOCAL_FOLDER` names the
folder to make it in, and has every record kept so, whatever the home is.
"""

import os
import platform
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.errors import RecordError
from .filesystems import trouble_with
from .reading import FILE_NAME, read_meta

VARIABLE = "FANWISE_LOCAL_FOLDER"
LIVE_FILE, LIVE_HOST = "live_file", "live_host"


def why_elsewhere(folder: Path) -> str | None:
    """Why the live file may not lie in this folder, as a clause; None: it may. OSError: nothing can be written."""
    if os.environ.get(VARIABLE):
        return f"{VARIABLE} is set"
    return trouble_with(folder)


def make_live_folder(name: str) -> Path:
    """An empty folder for the record of this experiment, on local disk. It outlives its maker.

    Raises:
        RecordError: there is no local disk that locks; the message has what was tried.
    """
    tried = []
    for place in _places():
        try:
            trouble = trouble_with(place)
            if trouble is None:
                return Path(tempfile.mkdtemp(prefix=f"fanwise-record-{name}-", dir=place))
        except OSError as error:
            trouble = f"{place}: {error.strerror or error}"
        tried.append(trouble)
    raise RecordError(
        f"There is no local disk for the record: {'; '.join(tried)}. "
        f"Set {VARIABLE} to a folder on a disk of this machine."
    )


def _places() -> list[Path]:
    """/var/tmp before the folder for temporary files, because it outlives a restart of the machine."""
    if given := os.environ.get(VARIABLE):
        return [Path(given).expanduser().absolute()]
    return list(dict.fromkeys([Path("/var/tmp"), Path(tempfile.gettempdir())]))


def live_meta(live: Path) -> dict[str, str]:
    """What the record says of where its live file lies."""
    return {LIVE_FILE: str(live), LIVE_HOST: platform.node()}


def live_file_here(meta: Mapping[str, Any]) -> Path | None:  # Any: JSON
    """The live file that a copy with this meta was made of, where it lies on this machine and is this user's own."""
    named = meta.get(LIVE_FILE)
    if not isinstance(named, str) or meta.get(LIVE_HOST) != platform.node():
        return None
    live = Path(named)
    try:
        status = os.lstat(live.parent)
        mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not mine or live.name != FILE_NAME:
            return None
        found = read_meta(live)
    except (OSError, RecordError):
        return None
    same = all(found.get(key) == meta.get(key) for key in (LIVE_FILE, "name", "created_s"))
    return live if same else None

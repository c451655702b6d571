"""Status files: training runs publish their state for the boards of the same user.

    StatusFile.write --> <runtime folder>/status/<kind>-<pid>-<random>.json --statuses--> [Status, ...]

Nothing is written until a board has asked: it creates the folder `status` (`ask_for_statuses`), and programs check for
it each time. No other user can enter the runtime folder. The files are JSON, so reading them runs no code.

A status is valid while its process lives; readers remove those of ended processes. If the process is invisible, because
it is in another container with the same folder, the status is valid for a minute.
"""

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..base.errors import JoinError
from ..base.plain_json import json_bytes
from .process_state import has_ended, stat_of, this_host
from .runtime_folder import runtime_folder

EVERY_S = 1.0  # interval of updates

_FOLDER_NAME = "status"
_NAME = re.compile(r"(?P<kind>[a-z]+)-[0-9]+-[0-9a-f]{16}\.json", re.ASCII)
_SIZE_MAX = 1 << 18
_MAX_FILES = 2_000
_VALID_S = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """The latest state of one program.

    Attributes:
        kind: of the program, such as "run".
        host, pid: its process. written_s: time of the update, in seconds since 1970.
        body: the state, as JSON values.
    """

    kind: str
    host: str
    pid: int
    written_s: float
    body: Mapping[str, Any]


@final
class StatusFile:
    """Publishes a state of this process until `close`. Errors are ignored.

    Args:
        kind: in small letters.
    """

    def __init__(self, kind: str) -> None:
        self._pid = os.getpid()
        self._head = {"host": this_host(), "pid": self._pid, "started_ticks": stat_of(self._pid).started_ticks}
        self._path: Path | None = None
        with suppress(JoinError, OSError):
            self._path = runtime_folder() / _FOLDER_NAME / f"{kind}-{self._pid}-{secrets.token_hex(8)}.json"

    def is_wanted(self) -> bool:
        """Return True if a board has ever asked."""
        return self._path is not None and self._path.parent.is_dir()

    def write(self, body: Mapping[str, object]) -> None:
        """Replace the published state. Takes less than a millisecond. No effect in a fork."""
        if self._path is None or os.getpid() != self._pid:
            return
        text = json_bytes({**self._head, "written_s": time.time(), "body": body})
        if len(text) > _SIZE_MAX:
            return
        fresh = self._path.with_suffix(".new")
        with suppress(OSError):  # no board has asked yet, or the disk is full
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            fresh.rename(self._path)

    def close(self) -> None:
        path, self._path = self._path, None
        if path is not None and os.getpid() == self._pid:
            with suppress(OSError):
                path.unlink()


def ask_for_statuses() -> None:
    """Make the programs of this user publish their state from now on. Raises JoinError, OSError."""
    (runtime_folder() / _FOLDER_NAME).mkdir(mode=0o700, exist_ok=True)


def statuses() -> list[Status]:
    """Return the states of the programs of this user; nothing if there is no folder for them."""
    try:
        folder = runtime_folder() / _FOLDER_NAME
        names = sorted(os.listdir(folder))[:_MAX_FILES]
    except (JoinError, OSError):
        return []
    return [status for name in names if (status := _read(folder / name)) is not None]


def _read(path: Path) -> Status | None:
    """Return None if the file is invalid or its process has ended."""
    name = _NAME.fullmatch(path.name)
    text = _bytes_of(path) if name is not None else None
    if name is None or text is None:
        return None
    try:
        record = json.loads(text)
        host, pid, ticks = str(record["host"]), int(record["pid"]), int(record["started_ticks"])
        status = Status(name["kind"], host, pid, float(record["written_s"]), dict(record["body"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if host != this_host():
        return status if abs(time.time() - status.written_s) < _VALID_S else None
    if has_ended(pid, ticks):
        for leftover in (path, path.with_suffix(".new")):
            with suppress(OSError):
                leftover.unlink()
        return None
    return status


def _bytes_of(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_valid = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_size <= _SIZE_MAX
        return os.read(descriptor, _SIZE_MAX) if is_valid else None
    finally:
        os.close(descriptor)

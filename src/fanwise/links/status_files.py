"""Status files: what training runs report about themselves to the boards of the same user.

    StatusFile.write --> <runtime folder>/status/<kind>-<pid>-<random>.json --statuses--> [Status, ...]

Nothing is written until somebody has looked: the folder `status` is made by the first who does (`ask_for_statuses`),
and programs look for it each time. The runtime folder is this user's alone, and there is no socket: nobody else can
read what is said, or say anything. It is JSON, and nothing of it is loaded as an object.

A status counts as long as its process lives. What the dead have left is removed by whoever looks. Where the process
cannot be seen, because it is in another container that has the same folder, it counts while it is news.
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
from .process_state import has_ended, look_at, this_host
from .runtime_folder import runtime_folder

EVERY_S = 1.0  # how often a program says something new

_FOLDER_NAME = "status"
_NAME = re.compile(r"(?P<kind>[a-z]+)-[0-9]+-[0-9a-f]{16}\.json", re.ASCII)
_SIZE_MAX = 1 << 18
_MOST_FILES = 2_000
_NEWS_S = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """What one program said last.

    Attributes:
        key: names it as long as it lives. kind: what it is, such as "run".
        host, pid: its process. written_s: when it was said, in seconds since 1970.
        body: what was said.
    """

    key: str
    kind: str
    host: str
    pid: int
    written_s: float
    body: Mapping[str, Any]  # Any: JSON


@final
class StatusFile:
    """The status of a part of this process, until `close`. A program that cannot write one goes on without.

    Args:
        kind: in small letters.
    """

    def __init__(self, kind: str) -> None:
        self._pid = os.getpid()
        self._head: Mapping[str, object] = {
            "host": this_host(),
            "pid": self._pid,
            "started_ticks": look_at(self._pid).started_ticks,
        }
        self._path: Path | None = None
        with suppress(JoinError, OSError):
            name = f"{kind}-{self._pid}-{secrets.token_hex(8)}.json"
            self._path = runtime_folder() / _FOLDER_NAME / name

    def is_wanted(self) -> bool:
        """Whether somebody has ever looked."""
        return self._path is not None and self._path.parent.is_dir()

    def write(self, body: Mapping[str, object]) -> None:
        """Say this instead of what was said before. Takes below a millisecond. Nothing in a fork."""
        if self._path is None or os.getpid() != self._pid:
            return
        text = json_bytes({**self._head, "written_s": time.time(), "body": body})
        if len(text) > _SIZE_MAX:
            return
        fresh = self._path.with_suffix(".new")
        with suppress(OSError):  # nobody has looked yet, or the disk is full
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            fresh.rename(self._path)  # nobody reads half of it

    def close(self) -> None:
        """It is over. A second call does nothing."""
        path, self._path = self._path, None
        if path is not None and os.getpid() == self._pid:
            with suppress(OSError):
                path.unlink()


def ask_for_statuses() -> None:
    """From now on the programs of this user say what they do. Raises JoinError, OSError."""
    (runtime_folder() / _FOLDER_NAME).mkdir(mode=0o700, exist_ok=True)


def statuses() -> list[Status]:
    """What the programs of this user say now. Where there is no folder for it, nothing."""
    try:
        folder = runtime_folder() / _FOLDER_NAME
        names = sorted(os.listdir(folder))[:_MOST_FILES]
    except (JoinError, OSError):
        return []
    return [found for name in names if (found := _read(folder / name)) is not None]


def _read(path: Path) -> Status | None:
    """None: it says nothing, or its process has ended."""
    name = _NAME.fullmatch(path.name)
    text = _bytes_of(path) if name is not None else None
    if name is None or text is None:
        return None
    try:
        said = json.loads(text)
        host, pid, ticks = str(said["host"]), int(said["pid"]), int(said["started_ticks"])
        status = Status(path.stem, name["kind"], host, pid, float(said["written_s"]), dict(said["body"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if host != this_host():
        return status if abs(time.time() - status.written_s) < _NEWS_S else None
    if has_ended(pid, ticks):
        for left in (path, path.with_suffix(".new")):
            with suppress(OSError):
                left.unlink()
        return None
    return status


def _bytes_of(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and found.st_size <= _SIZE_MAX
        return os.read(descriptor, _SIZE_MAX) if is_ours else None
    finally:
        os.close(descriptor)

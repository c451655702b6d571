"""Fetching published files: each arrives whole and with the right sum, or not at all.

    address --fetch--> hidden file in the folder --length, MD5--> its name (one atomic rename)

Several processes may fetch the same file at once: each writes its own hidden file, and all rename the same bytes.
MD5 is what the publishers give; it finds damage, not malice. Knows nothing of what is inside the files.
"""

import hashlib
import http.client
import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from ..base.errors import DataFileError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_CHUNK_BYTES = 64 * 1024
_SILENCE_S = 30.0


class Answer(Protocol):
    """What `fetch` returns: the body of an answer."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


Fetch = Callable[[str], Answer]
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Published:
    """A file as its publisher describes it: name, length and MD5 in hexadecimal."""

    name: str
    size_bytes: int
    md5: str


def fetch_over_http(address: str) -> Answer:
    """Open an address. Raises OSError when there is no answer, or another than 200."""
    return cast(Answer, urllib.request.urlopen(address, timeout=_SILENCE_S))


def download_missing(files: Sequence[Published], folder: Path, sources: Sequence[str], fetch: Fetch) -> None:
    """Bring those `files` into `folder` which are not there. Shows a bar in a terminal. Blocks until done.

    Args:
        sources: addresses of folders, tried in this order for each file.
        fetch: opens one address.

    Raises:
        DataFileError: no source gave one of the files whole; names the file and what each source did.
            Files that came whole before it stay; nothing else does.
    """
    missing = [file for file in files if not (folder / file.name).exists()]
    if not missing:
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    folder.mkdir(parents=True, exist_ok=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for file in missing:
            task = progress.add_task(file.name, total=file.size_bytes)
            _download(file, folder, sources, fetch, partial(_show, progress, task))


def _show(progress: "Progress", task: "TaskID", done_bytes: int) -> None:
    progress.update(task, completed=done_bytes)


def _download(file: Published, folder: Path, sources: Sequence[str], fetch: Fetch, on_bytes: OnBytes) -> None:
    failures: list[str] = []
    for source in sources:
        address = f"{source.rstrip('/')}/{file.name}"
        try:
            _download_from(address, file, folder, fetch, on_bytes)
            return
        except (OSError, http.client.HTTPException, _NotWhole) as error:
            failures.append(f"{address}: {error or type(error).__name__}")
    raise DataFileError(
        f"{file.name} could not be downloaded, and nothing of it was kept.\n"
        + "\n".join(f"  {failure}" for failure in failures)
        + f"\nTry again later, or put the file into {folder} yourself (MD5 {file.md5})."
    )


class _NotWhole(Exception):
    """What came is not the published file."""


def _download_from(address: str, file: Published, folder: Path, fetch: Fetch, on_bytes: OnBytes) -> None:
    descriptor, hidden = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as out:
            md5 = _copy(address, file, fetch, out, on_bytes)
        if md5 != file.md5:
            raise _NotWhole(f"expected MD5 {file.md5}, got {md5}")
        os.chmod(hidden, 0o644)  # mkstemp makes files that only their owner may read
        os.replace(hidden, folder / file.name)
    finally:
        Path(hidden).unlink(missing_ok=True)


def _copy(address: str, file: Published, fetch: Fetch, out: BinaryIO, on_bytes: OnBytes) -> str:
    """Copy the body and return its MD5; stops as soon as there is more than the published length."""
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    answer = fetch(address)
    try:
        while done <= file.size_bytes and (chunk := answer.read(_CHUNK_BYTES)):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    finally:
        answer.close()
    if done != file.size_bytes:
        raise _NotWhole(f"expected {file.size_bytes} bytes, got {'more' if done > file.size_bytes else done}")
    return digest.hexdigest()

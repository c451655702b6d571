"""Where a checkpoint is: a path of this machine's file systems, or a URL of another one that fsspec knows.

    location_of("run.pt")        Path("/the/folder/of/now/run.pt")
    location_of("s3://b/run.pt") the same text

    put(url, file)      opened -> copied -> there under its name, all at once, or nothing is
    fetch(url, file)

A file comes to its name by fsspec's own transaction: an upload in parts that is completed at the end, a rename, or what
else that file system has. So what was there before stays until then, also when this process is killed in the middle.
"""

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ...base.errors import CheckpointError
from ...base.urls import check_url, filesystem_of, is_url, scheme_of

Place = Path | str
StrPath = str | os.PathLike[str]

_CHUNK_BYTES = 1 << 22
# What Path makes of a URL.
_SPOILT = re.compile(r"([a-z][a-z0-9+.-]+):/[^/]")


def location_of(given: StrPath, name: str = "path") -> Place:
    """Of what the argument `name` was: a path, whatever folder becomes the current one; or a URL.

    Raises:
        ValueError, NotInstalled: a URL where fsspec cannot go.

    >>> location_of("/tmp/run.pt"), location_of("file:///tmp/run.pt"), location_of("memory://run.pt")
    (PosixPath('/tmp/run.pt'), PosixPath('/tmp/run.pt'), 'memory://run.pt')
    """
    text = os.fspath(given)
    if is_url(text):
        if scheme_of(text) in ("file", "local"):
            return Path(text.partition("://")[2])
        check_url(text, name=name)
        return text
    spoilt = None if isinstance(given, str) else _SPOILT.match(text)
    if spoilt is not None and not os.path.isdir(f"{spoilt[1]}:"):
        raise ValueError(
            f"{name}={given!r}: a Path has one of the slashes of a URL only, and is a path of this machine.\n"
            f"  right:  {name}={text.replace(':/', '://', 1)!r}"
        )
    return Path(os.path.abspath(text))


def is_in_process_memory(place: Place) -> bool:
    """Whether others cannot see it: in this process's own memory."""
    return is_url(place) and scheme_of(str(place)) == "memory"


def put(file: IO[bytes], url: str) -> None:
    """Have the content of a file, from its beginning, under this URL.

    Raises:
        CheckpointError: the file system refuses; nothing is changed.
    """
    with _explained(url, "written"):
        try:
            _put(file, url)
        except FileNotFoundError:
            filesystem, path = filesystem_of(url)
            first, _, rest = path.lstrip("/").partition("/")
            # A folder is made, the bucket of an object store is not: its name may be a mistake.
            if not rest or not filesystem.exists(path[: len(path) - len(rest) - 1] or first):
                raise
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            _put(file, url)


def _put(file: IO[bytes], url: str) -> None:
    filesystem, path = filesystem_of(url, of_its_own=True)
    file.seek(0)
    with filesystem.transaction, filesystem.open(path, "wb") as far:
        shutil.copyfileobj(file, far, _CHUNK_BYTES)


def fetch(url: str, file: IO[bytes]) -> None:
    """Copy what is under this URL into a file, and go to its beginning.

    Raises:
        FileNotFoundError: there is nothing. CheckpointError: the file system refuses.
    """
    with _explained(url, "read"):
        filesystem, path = filesystem_of(url)
        filesystem.invalidate_cache()
        try:
            with filesystem.open(path, "rb") as far:
                shutil.copyfileobj(far, file, _CHUNK_BYTES)
        except FileNotFoundError as error:
            its_own = " What another process keeps in its memory is not seen." if is_in_process_memory(url) else ""
            raise _NotThere(f"there is no {url}, as {socket.gethostname()} sees it.{its_own}") from error
    file.seek(0)


class _NotThere(FileNotFoundError):
    """Explained already."""


@contextmanager
def _explained(url: str, what: str) -> Iterator[None]:
    """What a file system says, as our error: libraries of object stores have errors of many kinds."""
    try:
        yield
    except _NotThere as error:
        raise FileNotFoundError(str(error)) from error.__cause__
    except Exception as error:
        said: Any = error.strerror if isinstance(error, OSError) and error.strerror else error  # Any: text or the error
        raise CheckpointError(
            f"checkpoint {url} cannot be {what}, on {socket.gethostname()}: {type(error).__name__}: {said}\n"
            f"Look there at the name, at the keys (on a cluster Pool(runtime_env={{'env_vars': ...}}) brings them), "
            f"and at the network. What was under the name before is as it was."
        ) from error

"""The location of a checkpoint: a path, or a URL of a file system that fsspec knows.

An upload uses fsspec's transaction, which replaces the file at its end. The old file stays until then, even if this
process is killed.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...base.errors import CheckpointError
from ...base.urls import check_url, filesystem_of, is_url, scheme_of

Location = Path | str
StrPath = str | os.PathLike[str]

_CHUNK_BYTES = 1 << 22


def location_of(path: StrPath, name: str = "path") -> Location:
    """Return the absolute path, or the URL. `name`: name of the argument in errors.

    >>> location_of("/tmp/run.pt"), location_of("file:///tmp/run.pt"), location_of("memory://run.pt")
    (PosixPath('/tmp/run.pt'), PosixPath('/tmp/run.pt'), 'memory://run.pt')
    """
    text = os.fspath(path)
    if is_url(text):
        if scheme_of(text) in ("file", "local"):
            return Path(text.partition("://")[2])
        check_url(text, name=name)
        return text
    return Path(os.path.abspath(text))


def is_in_process_memory(location: Location) -> bool:
    """Return True for memory://, which other processes cannot see."""
    return is_url(location) and scheme_of(str(location)) == "memory"


def upload(data: memoryview, url: str) -> None:
    """Replace the content of a URL. If the file system refuses, nothing changes."""
    with _explain_errors(url, "written"):
        try:
            _upload(data, url)
        except FileNotFoundError:
            filesystem, path = filesystem_of(url)
            first, _, rest = path.lstrip("/").partition("/")
            # A missing folder is created, but not a missing bucket of an object store: its name may be a mistake.
            if not rest or not filesystem.exists(path[: len(path) - len(rest) - 1] or first):
                raise
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            _upload(data, url)


def _upload(data: memoryview, url: str) -> None:
    filesystem, path = filesystem_of(url, of_its_own=True)
    with filesystem.transaction, filesystem.open(path, "wb") as remote:
        for start in range(0, len(data), _CHUNK_BYTES):
            remote.write(data[start : start + _CHUNK_BYTES])


def download(url: str) -> bytes:
    with _explain_errors(url, "read"):
        filesystem, path = filesystem_of(url)
        filesystem.invalidate_cache()
        content: bytes = filesystem.cat_file(path)
        return content


@contextmanager
def _explain_errors(url: str, verb: str) -> Iterator[None]:
    """Raise errors of a file system as CheckpointError, because every object store has its own error classes."""
    host = socket.gethostname()
    try:
        yield
    except Exception as error:
        if isinstance(error, FileNotFoundError) and verb == "read":
            memory = ". The memory of another process is not visible." if is_in_process_memory(url) else ""
            raise FileNotFoundError(f"{url} does not exist, as seen from {host}{memory}") from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(
            f"the checkpoint {url} cannot be {verb} on {host}: {type(error).__name__}: {reason}\n"
            f"Check the name, the network and the access keys (on a cluster, pass them with "
            f"Pool(runtime_env={{'env_vars': ...}})). The previous content of the URL is unchanged."
        ) from error

"""Files that are replaced as a whole: a reader or a crash finds either the old content or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_file(target: Path, *, sync: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of an empty file beside the target. It replaces the target at the end, or is removed on an error.

    Args:
        target: its folder must exist.
        sync: wait until the content is on the disk. The folder is not synced.
        mode: permissions of the file, reduced by the umask.

    Raises:
        OSError: the file cannot be written. The error names the target.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.touch(mode)
        yield partial
        if sync:
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

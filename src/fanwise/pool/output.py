"""The end of a file that a job printed to, fit to be shown.

Reads no more than it is asked for, whatever the size of the file. How text is cut and escaped is in `deaths`.
"""

import os
import stat
from pathlib import Path

from .deaths import last_lines


def tail(path: Path, *, max_bytes: int = 16_384, max_lines: int = 20) -> str:
    """The last lines of a text file, with control characters escaped.

    Args:
        path: the file. One that is missing, cannot be read or is not a plain file gives an empty text: what a dead job
            left behind is told as far as it is there.
        max_bytes: how much of the end is read; the first line may be cut.
        max_lines: how many lines are returned at most.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ""
            skipped = max(0, status.st_size - max_bytes)
            file.seek(skipped)
            data = file.read(max_bytes)
    except OSError:
        return ""
    text = data.decode("utf-8", "replace")
    if skipped:
        text = text.lstrip("\ufffd")  # the rest of a character that the cut went through
    return "\n".join(last_lines(text, max_lines=max_lines, max_chars=max_bytes))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe under this name must not make us wait for a writer

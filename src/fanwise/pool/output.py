"""The end of a job's output files, cut and escaped for display."""

import os
import stat
from pathlib import Path

from ..base.text import printable

_MAX_LINES = 20
_MAX_CHARS = 4_000


def tail(path: Path, *, max_bytes: int = 16_384, max_lines: int = _MAX_LINES) -> str:
    """Return the last lines of a text file, with control characters escaped; empty if it is not a readable file.

    Args:
        max_bytes: size of the part that is read. Its first line may be incomplete.
    """
    try:  # nonblocking, because opening a named pipe would wait for a writer
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
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
        text = text.lstrip("\ufffd")  # the rest of a character that was cut
    return "\n".join(last_lines(text, max_lines=max_lines, max_chars=max_bytes))


def last_lines(text: str, *, max_lines: int = _MAX_LINES, max_chars: int = _MAX_CHARS) -> list[str]:
    r"""Return the last lines of a program's output, with control characters escaped.

    A line that was overwritten with carriage returns, as by a progress bar, is reduced to its last state.

    >>> last_lines("start\n10 %\r20 %\r30 %\n")
    ['start', '30 %']
    """
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text[-16 * max_chars :].split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    shown: list[str] = []
    room = max_chars
    for line in map(printable, reversed(lines[-max_lines:])):
        if len(line) > room:
            if room > 3:
                shown.append(f"...{line[len(line) - room + 3 :]}")
            break
        room -= len(line)
        shown.append(line)
    return shown[::-1]

"""The mark in the environment of every process of a pool: the line of processes it comes from, `4711.1/2/4720`.

What a process executes inherits its mark, so that an orphan can be told from the children of others. Others see in
/proc the environment that a process was executed with; a fork keeps what its parent had, so the first of the pool's
processes is launched with room behind its mark, and a fork writes its own there.
"""

import ctypes
import os
from pathlib import Path

MARK = "FANWISE_LINE"

_ROOM = "/" * 24
_NAME = f"{MARK}=".encode()


def with_room(mark: str) -> str:
    """What to put into the environment of a process whose forks take marks of their own."""
    return mark + _ROOM


def take_mark(mark: str) -> None:
    """This process has the mark from now on: for what it starts, and for others if there is room."""
    os.environ[MARK] = mark
    start, size = _executed_environment()
    value_at, value_size = _value_in(ctypes.string_at(start, size))
    if len(mark) <= value_size:
        ctypes.memmove(start + value_at, mark.ljust(value_size, "/").encode(), value_size)


def mark_of(pid: int) -> str:
    """The line that `pid` belongs to; empty: none, or gone."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    at, size = _value_in(environment)
    return environment[at : at + size].decode(errors="replace").rstrip("/")


def is_of_line(mark: str, line: str) -> bool:
    """Whether `mark` names `line` or something below it."""
    return mark == line or mark.startswith(f"{line}/")


def _value_in(environment: bytes) -> tuple[int, int]:
    """Where in an environment the mark's value is, and its size; zeros: there is none."""
    at = 0
    for entry in environment.split(b"\0"):
        if entry.startswith(_NAME):
            return at + len(_NAME), len(entry) - len(_NAME)
        at += len(entry) + 1
    return 0, 0


def _executed_environment() -> tuple[int, int]:
    """Address and size of the memory that /proc shows as this process's environment; see proc(5), env_start."""
    stat = Path("/proc/self/stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2 :].split()  # from the third field on
    start, end = int(fields[47]), int(fields[48])
    return start, end - start

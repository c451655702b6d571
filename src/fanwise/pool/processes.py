"""What the operating system offers for processes that must not outlive each other. Linux; elsewhere less holds.

    die_with_parent    this process gets SIGKILL when the thread that made it ends
    adopt_orphans      descendants whose parent dies become children of this process (it is a subreaper)
    kill_descendants   ends the whole tree below this process, which has adopted orphans
    kill_marked          ends all processes that carry a mark (see `marks`), wherever they hang

All are found in /proc. Each fact about another process may be missing, because it may end while we look; then it
is left out. How the children of one process are watched, and what they leave behind, is in `children`.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from .marks import is_of_line, mark_of

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

# Killed processes need a moment to die, longer with much memory; one that hangs in the kernel is not waited for.
_DYING_S = 5.0
_PAUSE_S = 0.0005
# While a program is being loaded it has no environment yet; one that is older and has none was started so.
_EXECUTED_S = 2.0
_PARENTS_OF_KERNEL_THREADS = (0, 2)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """A process in one look: state (`Z`: dead, not reaped), the parent's pid, when it began in seconds since boot."""

    state: str
    parent: int
    started_s: float


_GONE = Stat("", 0, 0.0)


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent dies; ends at once when it is dead already."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stat_of(pid: int) -> Stat:
    """What /proc says of `pid`; zeros and an empty state when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return _GONE
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Stat(fields[0].decode(), int(fields[1]), int(fields[19]) / _TICKS_PER_S)


def started_s(pid: int) -> float:
    """When `pid` was started, in seconds since boot; 0.0 when it is gone. With the pid it names a process for good."""
    return stat_of(pid).started_s


def boot_s() -> float:
    """Now, as `started_s` would say it of a process that is just being started."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S) / _TICKS_PER_S


def all_pids() -> list[int]:
    """All processes of this machine, or of our namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants_of(root: int) -> list[int]:
    """All pids below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        children.setdefault(stat_of(pid).parent, []).append(pid)
    found = [root]
    for known in found:  # grows while it is walked
        found += children.pop(known, [])
    return found[1:]


def kill_descendants() -> None:
    """SIGKILL everything below this process, which is a subreaper, again and again until nothing is left.

    Done when it has no child: what loses its parent becomes its child, even while /proc is being read.
    """
    until_s = time.monotonic() + _DYING_S
    while not reap_all() and time.monotonic() < until_s:
        _kill_all(descendants_of(os.getpid()))
        time.sleep(_PAUSE_S)


def kill_marked(line: str, *, listed: Callable[[], Iterable[int]] | None = None) -> None:
    """SIGKILL every process that carries the mark `line` or one below it. Blocks until they are gone.

    `listed`: the processes of this machine; None: as /proc has them.
    """
    until_s = time.monotonic() + _DYING_S
    num_clean = 0
    # Twice: who was listed may start another and die before its mark is read, and only the next list has that one.
    while num_clean < 2 and time.monotonic() < until_s:
        marks = {pid: mark_of(pid) for pid in (listed or all_pids)()}
        found = [pid for pid, mark in marks.items() if is_of_line(mark, line)]
        _kill_all(found)
        is_clean = not found and not any(_is_being_executed(pid) for pid, mark in marks.items() if not mark)
        num_clean = num_clean + 1 if is_clean else 0
        time.sleep(_PAUSE_S)


def _is_being_executed(pid: int) -> bool:
    """Whether a process shows no environment because it is just getting one: what it is will be known in a moment."""
    try:
        empty = not Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    stat = stat_of(pid)
    young = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started_s < _EXECUTED_S
    return empty and young and stat.state not in ("", "Z", "X") and stat.parent not in _PARENTS_OF_KERNEL_THREADS


def reap_all() -> bool:
    """Reap every dead child of this process; True when none is left. Only where no child is waited for by its pid."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)

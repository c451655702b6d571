"""Linux process trees: parent-death signals, subreapers, lookup in /proc, tags in the environment, and `Children`.

Every process of a pool has its lineage as a tag in its environment, such as `4711.1/2/4720`. Executed programs inherit
it, so orphans can be attributed even after they have left their session. /proc shows the environment at the time of
exec, so forks of the pool's first process show only the tag of that process.

Facts about other processes may be missing, because a process can end at any time.
"""

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ..links.hub import Hub
from ..links.process_state import TICKS_PER_S, stat_of

TAG = "FANWISE_LINE"

_PREFIX = f"{TAG}=".encode()
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl

# Killed processes with much memory need a while to exit. A process that hangs in the kernel is not waited for.
_DYING_S = 5.0
_ORPHANS_DYING_S = 1.0
_POLL_S = 0.0005
# A process has no environment during exec. Older processes without one were started that way.
_EXEC_S = 2.0
_PARENTS_OF_KERNEL_THREADS = (0, 2)


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends. Exit at once if the parent has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become a subreaper: the new parent of all descendants whose parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def boot_s() -> float:
    """Return the current time on the scale of `Stat.started_s`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S) / TICKS_PER_S


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants_of(root: int) -> list[int]:
    """Return all pids below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        children.setdefault(stat_of(pid).parent, []).append(pid)
    pids = [root]
    for pid in pids:  # grows during the loop
        pids += children.pop(pid, [])
    return pids[1:]


def kill_descendants() -> None:
    """Kill everything below this process, which must be a subreaper. Blocks until it has no child, at most 5 s."""
    until_s = time.monotonic() + _DYING_S
    while not reap_all() and time.monotonic() < until_s:
        kill_all(descendants_of(os.getpid()))
        time.sleep(_POLL_S)


def reap_all() -> bool:
    """Reap all dead children. Return True if there are no children left. Not for processes that wait by pid."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


# -- tags --------------------------------------------------------------------------------------------------------------


def tag_of(pid: int) -> str:
    """Return the tag in the environment of a process; empty if it has none or is gone."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    tags = [entry[len(_PREFIX) :] for entry in environment.split(b"\0") if entry.startswith(_PREFIX)]
    return tags[0].decode(errors="replace") if tags else ""


def is_in_lineage(tag: str, lineage: str) -> bool:
    return tag == lineage or tag.startswith(f"{lineage}/")


def kill_lineage(lineage: str) -> None:
    """Kill every process whose tag is in `lineage`. Blocks until they are gone, at most 5 s."""
    until_s = time.monotonic() + _DYING_S
    num_clean = 0
    # Two clean passes: a listed process may start another and exit before its tag is read.
    while num_clean < 2 and time.monotonic() < until_s:
        tags = {pid: tag_of(pid) for pid in all_pids()}
        members = [pid for pid, tag in tags.items() if is_in_lineage(tag, lineage)]
        kill_all(members)
        is_clean = not members and not any(_is_in_exec(pid) for pid, tag in tags.items() if not tag)
        num_clean = num_clean + 1 if is_clean else 0
        time.sleep(_POLL_S)


def _is_in_exec(pid: int) -> bool:
    """Return whether a process has no environment because it is executing a program right now."""
    try:
        is_empty = not Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    stat = stat_of(pid)
    is_young = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started_s < _EXEC_S
    return is_empty and is_young and stat.is_running and stat.parent not in _PARENTS_OF_KERNEL_THREADS


# -- children of this process ------------------------------------------------------------------------------------------


class _Child(NamedTuple):
    pidfd: int
    lineage: str
    started_s: float


class Children:
    """The running children of a supervisor or warm process. Kills everything that an exited child leaves behind.

    Processes of a child's tree are found in three ways: by its session (every child starts one); outside of the
    session, by the tag; and without session and tag, by their start time: a plain fork that has left the session is
    killed when no child is left that is older. Orphans become children of this process, which is a subreaper.

    Used on the event loop's thread, in a process with one thread.

    Args:
        on_exit: called with pid and status when a child and everything that it left behind are gone. `status` is an
            exit code, or minus the number of the signal.
    """

    def __init__(self, hub: Hub, on_exit: Callable[[int, int], None]) -> None:
        self._hub = hub
        self._on_exit = on_exit
        self._children: dict[int, _Child] = {}
        self._unrelated: set[int] = set()

    def add(self, pid: int, lineage: str, *, has_orphans: bool = True) -> None:
        """Watch a child that was just started.

        Args:
            lineage: its tag.
            has_orphans: adopted processes may belong to it. False if it keeps its orphans, or until `begin`.
        """
        pidfd = os.pidfd_open(pid)
        self._children[pid] = _Child(pidfd, lineage, stat_of(pid).started_s if has_orphans else math.inf)
        self._hub.watch(pidfd, lambda _events: self._on_child_exit(pid))

    def begin(self, pid: int) -> None:
        """Record that a child gets a job: processes that start from now on may belong to it."""
        if pid in self._children:
            self._children[pid] = self._children[pid]._replace(started_s=boot_s())

    def pids(self) -> list[int]:
        return list(self._children)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a running child. Unknown pids are ignored."""
        if pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._children[pid].pidfd, number)

    def close_fds(self) -> None:
        for child in self._children.values():
            os.close(child.pidfd)
        self._children.clear()

    def _on_child_exit(self, pid: int) -> None:
        child = self._children.pop(pid)
        self._hub.forget(child.pidfd)
        os.close(child.pidfd)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # before it is reaped, because then the pid can be reused
        _, status = os.waitpid(pid, 0)
        self._kill_left_behind(pid)
        self._on_exit(pid, os.waitstatus_to_exitcode(status))

    def _kill_left_behind(self, ended: int) -> None:
        """Kill orphans that belong to no running child, again and again until there are none."""
        until_s = time.monotonic() + _ORPHANS_DYING_S
        while (orphans := self._orphans(ended)) and time.monotonic() < until_s:
            kill_all(orphans)
            if sum(map(_reap, orphans)) == 0:
                time.sleep(_POLL_S)

    def _orphans(self, ended: int) -> list[int]:
        """Return adopted processes that belong to no running child. Reap dead ones."""
        own_pid = os.getpid()
        pids = set(all_pids())
        self._unrelated &= pids
        orphans = []
        for pid in pids - self._unrelated - self._children.keys():
            stat = stat_of(pid)
            if stat.parent != own_pid:
                if not self._is_below(stat.parent):
                    self._unrelated.add(pid)
            elif stat.state == "Z":
                _reap(pid)
            elif not self._may_belong_to_running(pid, stat.started_s, ended):
                orphans.append(pid)
        return orphans

    def _may_belong_to_running(self, pid: int, began_s: float, ended: int) -> bool:
        """Decide by session, then by tag; without either, a process may belong to any older child."""
        try:
            session = os.getsid(pid)
        except OSError:
            return False
        if session == ended or session in self._children:
            return session != ended
        tag = tag_of(pid)
        if tag and not is_in_lineage(os.environ.get(TAG, ""), tag):  # that of a program that a child executed
            return any(is_in_lineage(tag, child.lineage) for child in self._children.values())
        return any(child.started_s <= began_s for child in self._children.values())

    def _is_below(self, pid: int) -> bool:
        """Return whether `pid` is this process or a descendant, so that its children may become ours."""
        own_pid = os.getpid()
        while pid > 1:
            if pid == own_pid or pid in self._children:
                return True
            pid = stat_of(pid).parent
        return False


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True

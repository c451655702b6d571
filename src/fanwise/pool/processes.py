"""What the operating system offers for processes that must not outlive each other. Linux; elsewhere less holds.

    die_with_parent    this process gets SIGKILL when the thread that made it ends
    adopt_orphans      descendants whose parent dies become children of this process (it is a subreaper)
    descendants_of     the whole tree below a process, from /proc
    Children           the children of this process: their end, and the end of everything they left behind

A child's tree is found in two ways: its session (every job begins one), and, for those that left the session, by their
parent: an orphan of a job lands at the subreaper, which knows its own children and kills the rest.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ..links import Hub

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


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


def parent_of(pid: int) -> int:
    """The parent's pid; 0 when `pid` is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def started_s(pid: int) -> float:
    """When `pid` was started, in seconds since boot; 0.0 when it is gone. With the pid it names a process for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0.0
    return int(stat[stat.rindex(b")") + 2 :].split()[19]) / os.sysconf("SC_CLK_TCK")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants_of(root: int) -> list[int]:
    """All pids below `root`, parents before their children."""
    parents = {pid: parent_of(pid) for pid in _pids()}
    found = [root]
    for known in found:
        found += [pid for pid, parent in parents.items() if parent == known and pid not in found]
    return found[1:]


def kill_descendants(root: int) -> None:
    """SIGKILL everything below `root`, again and again until nothing new appears; reaps what became our child."""
    for _ in range(100):
        pids = descendants_of(root)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        reap_strangers()


def reap_strangers() -> None:
    """Reap every dead child of this process. Only where no child is waited for by its pid."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Children:
    """The children a keeper or warm process started. `on_exit(pid, status)` comes when a child and all it left are gone.

    `status` is an exit code, or minus the number of the signal. Runs on the hub's thread.
    """

    def __init__(self, hub: Hub, on_exit: Callable[[int, int], None]) -> None:
        self._hub = hub
        self._on_exit = on_exit
        self._pidfds: dict[int, int] = {}
        self._started_s: dict[int, float] = {}
        self._outsiders: set[int] = set()

    def add(self, pid: int) -> None:
        """Watch a child that was just started."""
        pidfd = os.pidfd_open(pid)
        self._pidfds[pid] = pidfd
        self._started_s[pid] = started_s(pid)
        self._hub.watch(pidfd, lambda _events: self._ended(pid))

    def pids(self) -> list[int]:
        """Those that still live."""
        return list(self._pidfds)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a living child; nothing happens when it is not one."""
        if pid in self._pidfds:
            signal.pidfd_send_signal(self._pidfds[pid], number)

    def close_fds(self) -> None:
        """In a forked child: drop the copies."""
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()

    def _ended(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid)
        del self._started_s[pid]
        self._hub.forget(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._end_left_behind(pid)
        self._on_exit(pid, os.waitstatus_to_exitcode(status))

    def _end_left_behind(self, session: int) -> None:
        """Kill what the dead child left: its session, and orphans that nobody who lives can have made."""
        with contextlib.suppress(OSError):
            os.killpg(session, signal.SIGKILL)
        while strangers := self._strangers():
            for pid in strangers:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _strangers(self) -> list[int]:
        """Children of this process that it did not start and that belong to no living child.

        An orphan belongs to the child whose session it has. One that made a session of its own may belong to any
        child that was alive when it began, so it stays until all of those have ended.
        """
        me = os.getpid()
        pids = set(_pids())
        self._outsiders &= pids
        found = []
        for pid in pids - self._outsiders - self._pidfds.keys():
            parent = parent_of(pid)
            if parent == me:
                if not self._may_belong_to_living(pid):
                    found.append(pid)
            elif not self._is_below(parent):
                self._outsiders.add(pid)
        return found

    def _may_belong_to_living(self, pid: int) -> bool:
        try:
            session = os.getsid(pid)
        except OSError:
            return False
        if session != pid:
            return session in self._pidfds
        began_s = started_s(pid)
        return any(started <= began_s for started in self._started_s.values())

    def _is_below(self, pid: int) -> bool:
        """Whether `pid` is this process or one below it, so that its children may become ours."""
        me = os.getpid()
        while pid > 1:
            if pid == me or pid in self._pidfds:
                return True
            pid = parent_of(pid)
        return False

"""The children of a supervisor or warm process: watch their exits, and kill everything that they leave behind.

Processes of a child's tree are found in three ways: by its session (every child starts one); outside of the session, by
the tag in the environment (see `processes`); and without session and tag, by their start time: a plain fork that has
left the session is killed when no child is left that is older. Orphans become children of this process, because
supervisor and warm process are subreapers.

Used on the event loop's thread, in a process with one thread.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from ..links.hub import Hub
from .processes import TAG, all_pids, boot_s, is_in_lineage, started_s, stat_of, tag_of

# A killed process that hangs in the kernel is not waited for. It is reaped when the next child exits.
_DYING_S = 1.0
_POLL_S = 0.0002


class _Child(NamedTuple):
    pidfd: int
    lineage: str
    started_s: float


class Children:
    """The running children of this process.

    Args:
        on_exit: called with pid and status when a child and everything that it left behind are gone. `status` is an
            exit code, or minus the number of the signal.
    """

    def __init__(self, hub: Hub, on_exit: Callable[[int, int], None]) -> None:
        self._hub = hub
        self._on_exit = on_exit
        self._children: dict[int, _Child] = {}
        self._unrelated: set[int] = set()

    def add(self, pid: int, lineage: str) -> None:
        """Watch a child that was just started, whose tag is `lineage`."""
        pidfd = os.pidfd_open(pid)
        self._children[pid] = _Child(pidfd, lineage, started_s(pid))
        self._hub.watch(pidfd, lambda _events: self._on_child_exit(pid))

    def add_idle(self, pid: int, lineage: str) -> None:
        """Watch a child without a job: no other process belongs to it before `begin`."""
        self.add(pid, lineage)
        self._children[pid] = self._children[pid]._replace(started_s=math.inf)

    def begin(self, pid: int) -> None:
        """Record that an idle child gets a job: processes that start from now on may belong to it."""
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
        until_s = time.monotonic() + _DYING_S
        while (orphans := self._orphans(ended)) and time.monotonic() < until_s:
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
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
        if tag and not is_in_lineage(os.environ.get(TAG, ""), tag):
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

"""The children of a supervisor or warm process: their end, and the end of everything they left behind.

A child's tree is found in three ways: by its session (every child begins one); for what left the session, by the mark
in the environment (see `marks`), which all that is executed inherits; and for a plain fork that left the session,
by the time it began: it ends when no child is left that was there before it. Orphans land here, because supervisor and
warm process are subreapers.

Runs on the hub's thread, in a process that has one thread. Knows nothing of jobs.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from ..links.hub import Hub
from .marks import MARK, is_of_line, mark_of
from .processes import all_pids, boot_s, started_s, stat_of

# A killed process that hangs in the kernel must not hold up all others: it is left, and reaped when the next one ends.
_DYING_S = 1.0
_PAUSE_S = 0.0002


class _Child(NamedTuple):
    pidfd: int
    line: str
    started_s: float


class Children:
    """See the module. `on_exit(pid, status)` comes when a child and all it left are gone.

    `status` is an exit code, or minus the number of the signal.
    """

    def __init__(self, hub: Hub, on_exit: Callable[[int, int], None]) -> None:
        self._hub = hub
        self._on_exit = on_exit
        self._children: dict[int, _Child] = {}
        self._outsiders: set[int] = set()

    def add(self, pid: int, line: str) -> None:
        """Watch a child that was just started; `line` is the mark that it and what it starts carry."""
        pidfd = os.pidfd_open(pid)
        self._children[pid] = _Child(pidfd, line, started_s(pid))
        self._hub.watch(pidfd, lambda _events: self._ended(pid))

    def add_idle(self, pid: int, line: str) -> None:
        """As `add`, a child that has nothing to do yet: nothing is its own, until `begin`."""
        self.add(pid, line)
        self._children[pid] = self._children[pid]._replace(started_s=math.inf)

    def begin(self, pid: int) -> None:
        """An idle child gets something to do: what begins from now on may be its own."""
        if pid in self._children:
            self._children[pid] = self._children[pid]._replace(started_s=boot_s())

    def pids(self) -> list[int]:
        """Those that still live."""
        return list(self._children)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a living child; nothing happens when it is not one."""
        if pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._children[pid].pidfd, number)

    def close_fds(self) -> None:
        """In a forked child: drop the copies."""
        for child in self._children.values():
            os.close(child.pidfd)
        self._children.clear()

    def _ended(self, pid: int) -> None:
        child = self._children.pop(pid)
        self._hub.forget(child.pidfd)
        os.close(child.pidfd)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # before it is reaped: until then its number belongs to nobody else
        _, status = os.waitpid(pid, 0)
        self._end_left_behind(pid)
        self._on_exit(pid, os.waitstatus_to_exitcode(status))

    def _end_left_behind(self, ended: int) -> None:
        """Kill orphans that nobody who lives can have made, and what these leave, until there are none."""
        until_s = time.monotonic() + _DYING_S
        while (strangers := self._strangers(ended)) and time.monotonic() < until_s:
            for pid in strangers:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if sum(map(_reap, strangers)) == 0:
                time.sleep(_PAUSE_S)

    def _strangers(self, ended: int) -> list[int]:
        """Children of this process that it did not start and that belong to no living child; reaps dead orphans."""
        me = os.getpid()
        pids = set(all_pids())
        self._outsiders &= pids
        found = []
        for pid in pids - self._outsiders - self._children.keys():
            stat = stat_of(pid)
            if stat.parent != me:
                if not self._is_below(stat.parent):
                    self._outsiders.add(pid)
            elif stat.state == "Z":
                _reap(pid)
            elif not self._may_belong_to_living(pid, stat.started_s, ended):
                found.append(pid)
        return found

    def _may_belong_to_living(self, pid: int, began_s: float, ended: int) -> bool:
        """By session, by mark; where both say nothing, it may belong to any child that is older."""
        try:
            session = os.getsid(pid)
        except OSError:
            return False
        if session == ended or session in self._children:
            return session != ended
        mark = mark_of(pid)
        if mark and not is_of_line(os.environ.get(MARK, ""), mark):
            return any(is_of_line(mark, child.line) for child in self._children.values())
        return any(child.started_s <= began_s for child in self._children.values())

    def _is_below(self, pid: int) -> bool:
        """Whether `pid` is this process or one below it, so that its children may become ours."""
        me = os.getpid()
        while pid > 1:
            if pid == me or pid in self._children:
                return True
            pid = stat_of(pid).parent
        return False


def _reap(pid: int) -> bool:
    """Whether it was dead, and is now reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True

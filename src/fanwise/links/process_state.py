"""Checks whether another process of this host is alive, and whether it is stopped. Linux: reads /proc.

Silence proves nothing: a process that compiles, or holds the interpreter's lock for a minute, is healthy. A stopped
process (SIGSTOP, a suspended container) is different: the kernel reports it, and it may never continue. A process is
frozen if every check for `after_s` seconds found it stopped. A stop by a debugger is another state and does not count.
If the checks paused, because this process was stopped too, counting starts again.

No function raises for a process that ends during the check.
"""

import functools
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FROZEN_AFTER_S = 5.0
LOOK_EVERY_S = 0.5
# Checks further apart than this do not add up.
_GAP_S = 2.5
_STOPPED = "T"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """State of a process as one letter (`Z`: a zombie; empty: gone), its parent, and its start.

    Pid and start together identify a process.
    """

    state: str
    parent: int
    started_ticks: int  # since boot

    @property
    def is_running(self) -> bool:
        return self.state not in ("", "Z", "X")

    @property
    def started_s(self) -> float:
        return self.started_ticks / TICKS_PER_S


def stat_of(pid: int) -> Stat:
    """Return the kernel's current view of a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return Stat("", 0, 0)
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Stat(fields[0].decode(), int(fields[1]), int(fields[19]))


def has_ended(pid: int, started_ticks: int) -> bool:
    """Return True if the process with this pid and start has ended, even if the pid was reused."""
    stat = stat_of(pid)
    return not stat.is_running or stat.started_ticks != started_ticks


@functools.cache
def this_host() -> str:
    """Return a name that all processes with the same pid and network namespaces share: "<host name>/...".

    Containers that share one of the namespaces and not the other count as two hosts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = "/".join(os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net"))
    except OSError:
        boot, spaces = "", ""
    return f"{socket.gethostname()}/{boot}/{spaces}"


@dataclass(slots=True)
class FrozenWatch:
    """Finds processes that have been stopped for too long."""

    after_s: float = FROZEN_AFTER_S
    _stopped_since_s: dict[int, float] = field(default_factory=dict)
    _looked_s: float = float("-inf")

    def look(self, pids: list[int], now_s: float) -> list[int]:
        """Return the processes that are frozen. Call it every `LOOK_EVERY_S`."""
        if now_s - self._looked_s > _GAP_S:
            self._stopped_since_s.clear()
        self._looked_s = now_s
        since_s = self._stopped_since_s
        self._stopped_since_s = {pid: since_s.get(pid, now_s) for pid in pids if stat_of(pid).state == _STOPPED}
        return [pid for pid, stopped_s in self._stopped_since_s.items() if now_s - stopped_s >= self.after_s]

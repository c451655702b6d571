"""Whether another process of this host is alive, and whether it is stopped. Linux: read from /proc.

Silence proves nothing: a process that compiles or holds the interpreter's lock for a minute says nothing and is well.
Stopped is another matter (SIGSTOP, a suspended container): the kernel says so, and nobody knows when it ends. A
process is called frozen when each look for `after_s` seconds found it stopped. A tracing debugger's stop is another
state and is not counted. When the looks themselves paused (this process was stopped too, as by Ctrl-Z in a shell),
counting begins anew: nobody is blamed for time in which nobody looked.

Knows pids and times only. Nothing here raises for a process that ends while we look.
"""

import functools
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FROZEN_AFTER_S = 5.0
LOOK_EVERY_S = 0.5
# Looks further apart than this do not add up.
_GAP_S = 2.5
_STOPPED = "T"
_ENDED = ("", "Z", "X")


class ProcessLook(NamedTuple):
    """One look: the state as one letter (empty: gone), and when it was started, in clock ticks since boot."""

    state: str
    started_ticks: int


def look_at(pid: int) -> ProcessLook:
    """What the kernel says of `pid` now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ProcessLook("", 0)
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessLook(fields[0].decode(), int(fields[19]))


def has_ended(pid: int, started_ticks: int) -> bool:
    """Whether the process of this pid and start has ended; true also when the pid is another's by now."""
    look = look_at(pid)
    return look.state in _ENDED or look.started_ticks != started_ticks


@functools.cache
def this_host() -> str:
    """The same text for all processes that see each other's pids and have one network: the host's name, '/', and more.

    Containers that share the one and not the other count as two hosts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = "/".join(os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net"))
    except OSError:
        boot, spaces = "", ""
    return f"{socket.gethostname()}/{boot}/{spaces}"


@dataclass(slots=True)
class FrozenWatch:
    """Looks at processes now and then, and says which have been stopped for too long."""

    after_s: float = FROZEN_AFTER_S
    _stopped_since_s: dict[int, float] = field(default_factory=dict)
    _looked_s: float = float("-inf")

    def look(self, pids: list[int], now_s: float) -> list[int]:
        """Those of `pids` that every look of the last `after_s` seconds found stopped. Call it every `LOOK_EVERY_S`."""
        if now_s - self._looked_s > _GAP_S:
            self._stopped_since_s.clear()
        self._looked_s = now_s
        since_s = self._stopped_since_s
        self._stopped_since_s = {pid: since_s.get(pid, now_s) for pid in pids if look_at(pid).state == _STOPPED}
        return [pid for pid, stopped_s in self._stopped_since_s.items() if now_s - stopped_s >= self.after_s]

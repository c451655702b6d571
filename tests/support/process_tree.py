"""The processes below this one: their pids, their state, and how to kill them. Linux only, from /proc.

Another process may end at any time, and parts of /proc are closed to ordinary users. Missing facts are left out;
nothing raises.
"""

import contextlib
import os
import signal
from collections.abc import Iterable

# Processes inherit this environment variable, so they are found even if their parent has died.
MARKER = "FANWISE_TEST_ID"


def all_processes() -> set[int]:
    """Return the pids of all processes of the machine, including zombies."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def running_processes(marker: str = "", among: Iterable[int] | None = None) -> set[int]:
    """Return the pids below this process, including zombies, and those with `marker` in FANWISE_TEST_ID.

    Args:
        marker: also find processes that have left the process tree, by this value. Empty: only the tree.
        among: examine only these pids. To examine all processes of a busy machine takes ten milliseconds.
    """
    pids = all_processes() if among is None else set(among)
    is_below = {os.getpid(): True, 0: False}
    for pid in pids:
        line = [pid]
        while line[-1] not in is_below:
            line.append(_parent(line[-1]))
        is_below.update(dict.fromkeys(line, is_below[line[-1]]))
    needle = f"\0{MARKER}={marker}\0".encode()
    found = {pid for pid in pids if is_below[pid] or (marker and needle in b"\0" + _read(pid, "environ"))}
    return found - {os.getpid()}


def describe_process(pid: int) -> str:
    """Return command line, state, kernel wait channel and, if permitted, the kernel stack of a process."""
    command = (_read(pid, "cmdline") or _read(pid, "comm")).decode(errors="replace").replace("\0", " ").strip()
    lines = [f"process {pid}: {command[:300] or '(ended)'}"]
    status = dict(line.split(":", 1) for line in _read(pid, "status").decode(errors="replace").splitlines())
    facts = [f"{key} {' '.join(status[key].split())}" for key in ("State", "PPid", "Threads") if key in status]
    if facts:
        waits_in = _read(pid, "wchan").decode().strip("0")
        lines.append(f"  {', '.join(facts)}{f', waits in {waits_in}' if waits_in else ''}")
    lines += [f"  {frame}" for frame in _read(pid, "stack").decode().splitlines()]
    return "\n".join(lines) + "\n"


def end_process(pid: int) -> None:
    """Kill a process. Block until it has ended if it is a child of this process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _parent(pid: int) -> int:
    # The name is in brackets and may contain brackets and spaces. State and parent follow the last bracket.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""

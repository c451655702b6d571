"""The processes below this one: which there are, what they are doing, and their end. Linux: all from /proc.

Each fact about another process may be missing, because it may end while we look and because parts of /proc are closed
to ordinary users. Then it is left out; nothing raises.
"""

import contextlib
import os
import signal
from collections.abc import Iterable

# A process that is started while this is set is found again by its environment, also when its parent has died.
MARKER = "FANWISE_TEST_ID"


def all_processes() -> set[int]:
    """The pids of all processes of the machine, zombies included. Opens none of them, so it is fast."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def running_processes(marker: str = "", among: Iterable[int] | None = None) -> set[int]:
    """The pids below this process, zombies included, and of all that carry `marker` in FANWISE_TEST_ID.

    Args:
        among: look only at these and at what is above them. To look at all of a busy machine takes ten milliseconds.
    """
    looked_at = all_processes() if among is None else set(among)
    is_below = {os.getpid(): True, 0: False}
    for pid in looked_at:
        line = [pid]
        while line[-1] not in is_below:
            line.append(_parent(line[-1]))
        is_below.update(dict.fromkeys(line, is_below[line[-1]]))
    needle = f"\0{MARKER}={marker}\0".encode()
    found = {pid for pid in looked_at if is_below[pid] or (marker and needle in b"\0" + _read(pid, "environ"))}
    return found - {os.getpid()}


def describe_process(pid: int) -> str:
    """One process: command line, state, what it waits for in the kernel, and the kernel's stack where we may see it."""
    command = (_read(pid, "cmdline") or _read(pid, "comm")).decode(errors="replace").replace("\0", " ").strip()
    lines = [f"process {pid}: {command[:300] or '(gone)'}"]
    status = dict(line.split(":", 1) for line in _read(pid, "status").decode(errors="replace").splitlines())
    facts = [f"{key} {' '.join(status[key].split())}" for key in ("State", "PPid", "Threads") if key in status]
    if facts:
        waits_in = _read(pid, "wchan").decode().strip("0")
        lines.append(f"  {', '.join(facts)}{f', waits in {waits_in}' if waits_in else ''}")
    lines += [f"  {frame}" for frame in _read(pid, "stack").decode().splitlines()]
    return "\n".join(lines) + "\n"


def describe_children() -> str:
    """All processes below this one, or that there are none."""
    return "".join(map(describe_process, sorted(running_processes()))) or "no child processes\n"


def end_process(pid: int) -> None:
    """Kill it, and reap it when it is our own child. Blocks until it has ended in that case."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _parent(pid: int) -> int:
    # The name in brackets may itself hold brackets and blanks; the state and the parent follow the last bracket.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""

"""The processes below this one: which there are, what they are doing, and their end. Linux: all from /proc.

Each fact about another process may be missing, because it may end while we look and because parts of /proc are closed
to ordinary users. Then it is left out; nothing raises.
"""

import contextlib
import os
import signal

# A process that is started while this is set is found again by its environment, also when its parent has died.
MARKER = "FANWISE_TEST_ID"


def all_processes() -> set[int]:
    """The pids of all processes of the machine, zombies included. Opens none of them, so it is fast."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def running_processes(marker: str = "") -> set[int]:
    """The pids below this process, zombies included, and of all that carry `marker` in FANWISE_TEST_ID."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    needle = f"\0{MARKER}={marker}\0".encode()
    for pid in all_processes():
        parents[pid] = _parent(pid)
        if marker and needle in b"\0" + _read(pid, "environ"):
            found.add(pid)
    return (found | _below(os.getpid(), parents)) - {os.getpid()}


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


def _below(root: int, parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    ahead = [root]
    while ahead:
        for child in children.get(ahead.pop(), ()):
            found.add(child)
            ahead.append(child)
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""

"""What a process that hangs is doing, in words: what the kernel says of it, and its Python stack.

    rank        told_on_request(path): a signal writes the stacks of all threads into a file of the supervisor's
    supervisor  Stacks: the file.   doing(pid, stacks, send): "is stopped ...", or "waits" and the stack

The handler is the interpreter's own, in C, so it answers also while a thread holds the interpreter's lock in native
code. A stopped process answers nothing; then its state says why.
"""

import faulthandler
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

# A real-time signal that nobody has a name for.
STACK_SIGNAL = signal.SIGRTMAX - 5
# How long a stack is waited for, and how long it is quiet when it is complete.
_ANSWER_S = 0.5
_QUIET_S = 0.03
_MOST_LINES = 60
_NUMBER_BYTES = 8
# Below the training function, and below what sends its result back; below a sample that is being read.
_OURS = (
    "/fanwise/parallel/launch/worker.py",
    "/fanwise/parallel/run.py",
    "/fanwise/pool/worker.py",
    "/fanwise/parallel/data/reading.py",
)

_STATES = {
    "R": "It is computing",
    "S": "It waits",
    "D": "It waits in the kernel and cannot be interrupted, as for a file system or a device that does not answer",
    "T": "It is stopped by a signal (SIGSTOP, or Ctrl-Z); kill -CONT {pid} lets it go on",
    "t": "It is held by a debugger",
    "Z": "It has ended, and somebody holds it back",
}


class Stacks:
    """A file in memory, into which one process writes its stacks.

    Attributes:
        path: how others open it. name: by which they know that it is this one, and not that of a later process.
    """

    def __init__(self, fd: int, path: str, name: str) -> None:
        self._fd = fd
        self.path = path
        self.name = name

    @classmethod
    def create(cls) -> "Stacks":
        name = f"fanwise-stacks-{os.getpid()}-{secrets.token_hex(8)}"
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        return cls(fd, f"/proc/{os.getpid()}/fd/{fd}", name)

    @classmethod
    def open(cls, path: str, name: str) -> "Stacks | None":
        """That of another process; None if it is gone, or not on this machine."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if os.readlink(f"/proc/self/fd/{fd}") != f"/memfd:{name} (deleted)":
            os.close(fd)
            return None
        return cls(fd, path, name)

    def note(self, number: int) -> None:
        """A number at the beginning of the file, that others may look at."""
        os.pwrite(self._fd, number.to_bytes(_NUMBER_BYTES, "little"), 0)

    def noted(self) -> int:
        return int.from_bytes(os.pread(self._fd, _NUMBER_BYTES, 0), "little")

    def asked(self, send: Callable[[int], None]) -> str:
        """The stacks, when the signal is sent now; empty if none come. Blocks for half a second at most."""
        before = self._size()
        send(STACK_SIGNAL)
        until_s = time.monotonic() + _ANSWER_S
        size, changed_s = before, time.monotonic()
        while (now_s := time.monotonic()) < until_s and (size == before or now_s - changed_s < _QUIET_S):
            time.sleep(0.005)
            if (grown := self._size()) != size:
                size, changed_s = grown, time.monotonic()
        return os.pread(self._fd, size - before, before).decode(errors="replace")

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


def told_on_request(path: str) -> None:
    """From now on this process answers the signal, as long as it lives."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)


def doing(pid: int, stacks: Stacks, send: Callable[[int], None]) -> str:
    """One or more lines. Blocks for half a second at most.

    Args:
        send: a signal to the process; never to another that has got its number.
    """
    state, said = _state_said(pid)
    if state not in ("R", "S", "D"):
        return said
    lines = own(stacks.asked(send).splitlines())
    if not lines:
        return f"{said} It does not answer with its Python stack."
    return _with_stack(said, lines)


def doing_here(thread: threading.Thread) -> str:
    """The same, of another thread of this process."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = [
        f'  File "{each.f_code.co_filename}", line {line} in {each.f_code.co_name}'
        for each, line in traceback.walk_stack(frame)
    ]
    _, said = _state_said(thread.native_id or 0)
    return _with_stack(said, own(["Stack (most recent call first):", *stack]))


def _with_stack(said: str, lines: Sequence[str]) -> str:
    left_out = [f"  ... and {len(lines) - _MOST_LINES} lines more"] if len(lines) > _MOST_LINES else []
    return "\n".join([said, *(f"  {line}" for line in lines[:_MOST_LINES]), *left_out])


def own(lines: Sequence[str]) -> list[str]:
    """Of stacks, most recent call first, what lies above the calls of this library that every process begins with."""
    kept, is_own = [], True
    for line in lines:
        if not line.startswith("  File"):
            is_own = True
        elif any(ours in line for ours in _OURS):
            is_own = False
        if is_own and line.strip():
            kept.append(line)
    return kept


def _state_said(pid: int) -> tuple[str, str]:
    """The letter of the state of a process, or thread, and a sentence."""
    state, place = _state(pid)
    said = _STATES.get(state, f"Its state is {state}" if state else "It is gone").format(pid=pid)
    return state, said + (f" (in {place})." if place else ".")


def _state(pid: int) -> tuple[str, str]:
    """The letter of its state, and where in the kernel it waits; empty: not known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "", ""
    place = ""
    with suppress(OSError), open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
        place = file.read().strip("0")
    return state, place

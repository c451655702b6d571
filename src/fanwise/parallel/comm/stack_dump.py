"""Describes what another process is doing: its state in the kernel, and its Python stacks.

    in the process       install_stack_dump(path): a signal makes it write the stacks of all threads into a file
    in another process   describe_process(pid, stacks, send) returns a sentence such as "It waits." and the stacks

The signal handler is that of faulthandler, in C, so it also works while native code holds the interpreter lock.
"""

import faulthandler
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

STACK_SIGNAL = signal.SIGRTMAX - 5  # reserved for stack dumps
_TIMEOUT_S = 0.5
_SETTLE_S = 0.03  # a dump is complete if the file has not grown for this time
_MAX_LINES = 80

_STATES = {
    "R": "It is computing",
    "S": "It waits",
    "D": "It waits in the kernel and cannot be interrupted, for example for a file system that does not answer",
    "T": "It is stopped by a signal (SIGSTOP, or Ctrl-Z); kill -CONT {pid} continues it",
    "t": "It is stopped by a debugger",
    "Z": "It has exited, but its parent has not reaped it (zombie)",
}


class StackFile:
    """A file in memory, into which one process writes its stacks. `path`: path with which other processes open it."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("fanwise-stacks", os.MFD_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def request_dump(self, send: Callable[[int], None]) -> str:
        """Send the signal and return the stacks. Return "" if there are none after half a second."""
        before = os.fstat(self._fd).st_size
        send(STACK_SIGNAL)
        deadline_s = time.monotonic() + _TIMEOUT_S
        size, changed_s = before, time.monotonic()
        while (now_s := time.monotonic()) < deadline_s and (size == before or now_s - changed_s < _SETTLE_S):
            time.sleep(0.005)
            if (current := os.fstat(self._fd).st_size) != size:
                size, changed_s = current, time.monotonic()
        return os.pread(self._fd, size - before, before).decode(errors="replace")

    def close(self) -> None:
        os.close(self._fd)


def install_stack_dump(path: str) -> None:
    """Install the signal handler in this process. `path`: path of the file for its stacks."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)


def describe_process(pid: int, stacks: StackFile, send: Callable[[int], None]) -> str:
    """Return the state of a process in a sentence, and its stacks. Blocks for half a second at most.

    `send` sends a signal to the process. It is not called if the process is stopped or has ended.
    """
    state, sentence = _state(pid)
    if state not in ("R", "S", "D"):
        return sentence
    lines = [line for line in stacks.request_dump(send).splitlines() if line.strip()]
    if not lines:
        return f"{sentence} It wrote no Python stack within {_TIMEOUT_S} s."
    omitted = [f"  ... and {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else []
    return "\n".join([sentence, *(f"  {line}" for line in lines[:_MAX_LINES]), *omitted])


def _state(pid: int) -> tuple[str, str]:
    """Return (state, sentence). `state` is the letter in /proc/<pid>/stat, or "" if the process has ended."""
    state = wait_channel = ""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        state = file.read().rpartition(")")[2].split()[0]
    with suppress(OSError), open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
        wait_channel = file.read().strip("0")  # 0: not blocked in the kernel
    sentence = _STATES.get(state, f"Its state is {state}" if state else "It has ended").format(pid=pid)
    return state, f"{sentence} (in {wait_channel})." if wait_channel else f"{sentence}."

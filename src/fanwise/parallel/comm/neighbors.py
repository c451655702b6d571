"""Detection of processes of this machine that are late for an exchange, with their stacks.

Each process publishes a `ProcessInfo` once, and writes the number of each exchange into a file in memory. Others read
that file through /proc, which also works while the process is stopped. The state of processes on other machines is not
known.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from .stack_dump import StackFile, describe_process, install_stack_dump


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process, and the path and name of its file."""

    host: str
    pid: int
    path: str
    name: str


# Kept as long as this process lives: a signal that asks for its stacks after the end of a run would kill it otherwise.
_own: StackFile | None = None
_pid = 0


def process_info() -> ProcessInfo:
    """Return that of this process, which answers requests for its stacks from now on."""
    own = _stacks()
    return ProcessInfo(os.uname().nodename, os.getpid(), own.path, own.name)


def _stacks() -> StackFile:
    global _own, _pid
    if _own is None or _pid != os.getpid():
        _own, _pid = StackFile.create(), os.getpid()
        install_stack_dump(_own.path)
    return _own


class Neighbors:
    """The processes of a run, as one of them sees them. `processes`: all of them, by place."""

    def __init__(self, place: int, processes: Sequence[ProcessInfo]) -> None:
        self._place = place
        self._processes = list(processes)
        self._own = _stacks()
        self._own.write_progress(0)

    def note(self, number: int) -> None:
        """This process is at an exchange. All processes number them alike."""
        self._own.write_progress(number)

    def late(self, number: int) -> tuple[list[str], list[str]]:
        """Return the processes that are not at this exchange yet, with their stacks, and those of unknown state."""
        late, unknown = [], []
        for place, process in enumerate(self._processes):
            if place == self._place:
                continue
            name = f"process {place} of {len(self._processes)} (pid {process.pid} on {process.host})"
            stacks = StackFile.open(process.path, process.name)
            if stacks is None:
                unknown.append(name)
                continue
            with closing(stacks):
                if stacks.read_progress() < number:
                    late.append(f"{name} hangs.\n{_doing(process, stacks)}")
        return late, unknown


def _doing(process: ProcessInfo, stacks: StackFile) -> str:
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return "It is gone."

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)

    try:
        return describe_process(process.pid, stacks, send)
    finally:
        os.close(pidfd)

"""Find the processes on this machine that have not reached a collective operation.

Used by teams that have no supervisor process. Each process publishes a `ProcessInfo` once, and writes the sequence
number of each collective operation into a file in memory. Other processes read it through /proc, even while this
process is stopped. Processes on other machines cannot be inspected.
"""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from .stack_dump import StackFile, describe_process, install_stack_dump


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process, with the path and the name of its stack file."""

    host: str
    pid: int
    path: str
    name: str


# Kept for the life of the process, like the signal handler: a peer may request a dump after the run, and without a
# handler the signal would kill this process.
_own_stack_file: StackFile | None = None
_own_pid = 0  # a forked child needs its own file


def process_info() -> ProcessInfo:
    """Return the info of this process. Installs its stack dump."""
    stacks = _stack_file()
    return ProcessInfo(os.uname().nodename, os.getpid(), stacks.path, stacks.name)


def _stack_file() -> StackFile:
    global _own_stack_file, _own_pid
    if _own_stack_file is None or _own_pid != os.getpid():
        _own_stack_file, _own_pid = StackFile.create(), os.getpid()
        install_stack_dump(_own_stack_file.path)
    return _own_stack_file


class LateProcessFinder:
    """Tracks the progress of this process, `index`, and finds the others that are behind."""

    def __init__(self, index: int, processes: Sequence[ProcessInfo]) -> None:
        self._index = index
        self._processes = list(processes)
        self._stacks = _stack_file()
        self._stacks.write_progress(0)

    def arrive(self, seq: int) -> None:
        """Publish that this process has reached the operation `seq`. `seq` is the same in all processes."""
        self._stacks.write_progress(seq)

    def describe_late(self, seq: int) -> tuple[list[str], list[str]]:
        """Return descriptions of processes that have not reached `seq`, and names of those that cannot be inspected."""
        late, unknown = [], []
        for index, process in enumerate(self._processes):
            if index == self._index:
                continue
            name = f"process {index} of {len(self._processes)} (pid {process.pid} on {process.host})"
            stacks = StackFile.open(process.path, process.name)
            if stacks is None:
                unknown.append(name)
                continue
            with closing(stacks):
                if stacks.read_progress() < seq:

                    def send(number: int, pid: int = process.pid) -> None:
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)

                    late.append(
                        f"{name} has not reached this operation.\n{describe_process(process.pid, stacks, send)}"
                    )
        return late, unknown

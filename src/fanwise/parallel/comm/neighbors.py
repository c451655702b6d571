"""Finds the processes of this machine that are late for an exchange, for teams without a supervisor.

Each process publishes a `ProcessInfo` once, and writes the number of each exchange into a file in memory. The others
read the file through /proc, also while the process is stopped. Processes on other machines cannot be inspected.
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


# Never closed: after a run another process may still request a stack dump, and the signal kills a process that has no
# handler for it.
_own: StackFile | None = None
_pid = 0


def process_info() -> ProcessInfo:
    """Return the info of this process. Installs its stack dump."""
    own = _stack_file()
    return ProcessInfo(os.uname().nodename, os.getpid(), own.path, own.name)


def _stack_file() -> StackFile:
    global _own, _pid
    if _own is None or _pid != os.getpid():
        _own, _pid = StackFile.create(), os.getpid()
        install_stack_dump(_own.path)
    return _own


class Neighbors:
    """The processes of a run.

    Args:
        index: index of this process.
        processes: infos of all processes, by index.
    """

    def __init__(self, index: int, processes: Sequence[ProcessInfo]) -> None:
        self._index = index
        self._processes = list(processes)
        self._own = _stack_file()
        self._own.write_progress(0)

    def arrive(self, seq: int) -> None:
        """Publish that this process has reached the exchange `seq`. All processes number exchanges alike."""
        self._own.write_progress(seq)

    def late(self, seq: int) -> tuple[list[str], list[str]]:
        """Return descriptions of the processes that have not reached this exchange, and names of those not inspected.

        Blocks for half a second at most for each late process.
        """
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

                    late.append(f"{name} hangs.\n{describe_process(process.pid, stacks, send)}")
        return late, unknown

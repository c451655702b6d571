"""The processes of a launcher that are on this machine: how far each has come, and what the late ones are doing.

    each:  process_info() --told to all--> comes_to(number) at every exchange --a number in a file in memory-->
    whoever has waited too long:  late(number): who has not come to it, with its state or stack

The file is read through the other process's entry in /proc, so it says something also when that is stopped, and costs
one small write an exchange. Of processes on other machines nothing is known here.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from ..hangs.stack_dump import StackFile, describe_process, install_stack_dump


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Where a process is. `path`, `name`: of its file. `host`: for people."""

    host: str
    pid: int
    path: str
    name: str


# Of this process, for its life: who asks when a run has just ended would end the process otherwise.
_own: StackFile | None = None
_pid = 0


def process_info() -> ProcessInfo:
    """Of this process, which answers from now on."""
    own = _stacks()
    return ProcessInfo(os.uname().nodename, os.getpid(), own.path, own.name)


def _stacks() -> StackFile:
    global _own, _pid
    if _own is None or _pid != os.getpid():
        _own, _pid = StackFile.create(), os.getpid()
        install_stack_dump(_own.path)
    return _own


class Neighbours:
    """See the module. `processes`: all of them, by place."""

    def __init__(self, place: int, processes: Sequence[ProcessInfo]) -> None:
        self._place = place
        self._processes = list(processes)
        self._own = _stacks()
        self._own.write_progress(0)

    def comes_to(self, number: int) -> None:
        """This process is at an exchange; all have the same numbers for them."""
        self._own.write_progress(number)

    def late(self, number: int) -> tuple[list[str], list[str]]:
        """Who has not come to it, with what each is doing; and the others of whom nothing is known."""
        late, unknown = [], []
        for place, its in enumerate(self._processes):
            if place == self._place:
                continue
            called = f"process {place} of {len(self._processes)} (pid {its.pid} on {its.host})"
            stacks = StackFile.open(its.path, its.name)
            if stacks is None:
                unknown.append(called)
                continue
            with closing(stacks):
                if stacks.read_progress() < number:
                    late.append(f"{called} hangs.\n{self._doing(its, stacks)}")
        return late, unknown

    def _doing(self, its: ProcessInfo, stacks: StackFile) -> str:
        def send(number: int) -> None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)

        try:
            pidfd = os.pidfd_open(its.pid)
        except ProcessLookupError:
            return "It is gone."
        try:
            return describe_process(its.pid, stacks, send)
        finally:
            os.close(pidfd)

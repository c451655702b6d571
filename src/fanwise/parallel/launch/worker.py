"""The main function of a rank on this machine, and `train_as_rank`, which ranks on a cluster share with it.

The first process prints to the user's terminal, the output of the others stays with the pool. A report is made once
for all processes, and all get its decision.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

from ...base.errors import TrialStopped
from ...links.codec import pack_error
from ...pool.contract import Reply
from ...pool.current import CurrentJob, current, enter
from ...pool.seeds import seed_everything
from ...tensor.with_torch import random  # noqa: F401  # once, before the fork; each rank's first batch would load it
from ..comm.control_block import FIRST_VIEW, SUPERVISOR, ControlBlock
from ..comm.pipes import MessageSender, MessageSink
from ..comm.shared_memory import SharedMemory
from ..comm.shm_team import Over, SharedMemoryTeam, check_ending, unpack
from ..comm.stack_dump import install_stack_dump
from ..comm.team import Team
from ..comm.torch_group import World, is_lost_peer
from ..comm.torch_team import TorchTeam, opened
from ..config import Plan
from ..context import Run
from ..data.position import DataPosition
from ..process_settings import TorchSettings, run_environment
from ..progress import RemoteScreen, RunSnapshot
from .settings import Settings

# A part of torch's profiler is loaded by the first step of any optimizer: once, before the fork, and not by each rank.
with torch.autograd.profiler.record_function("load"):
    pass


@dataclass(frozen=True, slots=True)
class RankTask:
    """The task of a rank.

    Attributes:
        progress_s: seconds until the progress is first sent, and between two times.
        name: of the training function.
        torch_settings: torch's settings in the process that called `fanwise.run`.
    """

    settings: Settings
    rank: int
    progress_s: tuple[float, float]
    name: str
    torch_settings: TorchSettings

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Those of this rank, as it names them."""
        names = self.settings.devices[self.rank]
        return (torch.device("cuda:0"),) if names[0].startswith("cuda") else tuple(map(torch.device, names))


@dataclass(frozen=True, slots=True)
class Channels:
    """Paths of the supervisor's memory, pipe and stack file, and the port of the store of a process group."""

    memory: str
    pipe: str
    stacks: str
    store_port: int | None


RankTeam = SharedMemoryTeam | TorchTeam


def main(train: Callable[[Run], Any], task: RankTask, channels: Channels) -> Any:  # Any: the user's result
    sender = MessageSender(channels.pipe)
    install_stack_dump(channels.stacks)  # before the supervisor knows the pid: without a handler the signal would kill
    sender.say("here", os.getpid(), current().gpus)
    settings, device = task.settings, task.devices[0]
    try:
        with run_environment(settings.threads, device, exact=settings.reduce != "fast", settings=task.torch_settings):
            memory = SharedMemory.open(channels.memory, settings.all_reduce)
            control, size = ControlBlock(memory), len(settings.devices)
            if settings.backend == "shared memory":
                team = SharedMemoryTeam(memory, control, task.rank, size, sender, reduce=settings.reduce)
                return _result(train, task, team, sender)
            while not control.view:  # the supervisor shows it when all ranks are there: some may wait for a place
                check_ending(control)
                control.wait_view(0)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            port = channels.store_port or 0
            world = World(task.rank, size, lambda: TCPStore("127.0.0.1", port, size), has_supervisor=True)
            monitor = SupervisorMonitor(control, task.rank, sender)
            with opened(world, device, reduce=settings.reduce, backend=settings.backend, monitor=monitor) as torch_team:
                return _result(train, task, torch_team, sender)
    except Over:
        return None
    except TrialStopped:
        sender.say("stopped")
    except BaseException as error:
        sender.say("failed", is_lost_peer(error), time.monotonic(), pack_error(error))
    return None


def _result(
    train: Callable[[Run], Any], task: RankTask, team: RankTeam, sender: MessageSender
) -> Any:  # Any: the user's result
    result, is_first = train_as_rank(train, task, team, sender)
    sender.say("returns", is_first)
    return result if is_first else None


def train_as_rank(
    train: Callable[[Run], Any], task: RankTask, team: RankTeam, sender: MessageSink
) -> tuple[Any, bool]:  # Any: the user's result
    """Call the training function. Return its result, and whether that is the result of the run."""
    settings = task.settings
    seed_everything(settings.seed)
    run = Run(
        Plan(settings.shards, settings.threads, DataPosition(settings.seed), settings.reduce),
        task.devices,
        team=team,
        fixed=settings.fixed,
        names=lambda: [name for rank in team.members for name in settings.devices[rank]],
        verify=settings.verify,
    )
    job, out, err = current(), sys.stdout, sys.stderr

    def show(snapshot: RunSnapshot) -> None:
        if team.place == 0:
            sender.say("progress", snapshot)

    first_s, every_s = task.progress_s
    enter(ReportingJob(job, team))
    sys.stdout, sys.stderr = Forwarding(out, "out", team, sender), Forwarding(err, "err", team, sender)
    try:
        if settings.resume is not None:
            run.restore(settings.resume)
            team.num_reports = len(run.rows)
        with (
            run.show_progress(RemoteScreen(show, first_s=first_s, every_s=every_s), task.name),
            run.writer,
            run.training(),
        ):
            result = train(run)
        sys.stdout.flush()
        sys.stderr.flush()
        return result, team.finish()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = out, err
        enter(job)


class SupervisorMonitor:
    """The `comm.torch_team.Monitor` of a rank with a process group."""

    def __init__(self, control: ControlBlock, rank: int, sender: MessageSender) -> None:
        self._control = control
        self._rank = rank
        self._sender = sender
        self._has_stepped = False
        self._saves = 0

    def report(self, number: int, values: Mapping[str, Any]) -> None:  # Any: numbers
        control = self._control
        self._sender.say("report", number, dict(values))
        while (answered := control.answered) < number:
            check_ending(control)
            control.wait_answered(answered)
        answer = unpack(control.get(SUPERVISOR, number % 2))
        if isinstance(answer, BaseException):
            raise answer
        if answer != "CONTINUE":
            raise TrialStopped("the run was stopped")

    def exchange(self, number: int) -> None:
        self._control.arrive(self._rank, FIRST_VIEW, number)

    def step_ends(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            self._sender.say("stepped")

    def saved(self) -> None:
        self._saves += 1
        self._control.set_saves(self._rank, self._saves)

    def set_writing(self, is_writing: bool) -> None:
        self._control.set_writing(self._rank, is_writing)

    def checkpoint_written(self, path: str) -> None:
        self._sender.say("checkpoint", path)


class ReportingJob(CurrentJob):
    """The current job of a rank. Its reports are made once for all ranks, which get the same decision."""

    def __init__(self, job: CurrentJob, team: Team) -> None:
        self.__dict__.update(job.__dict__)
        self._team = team

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        assert isinstance(values, Mapping), "metrics by name"
        return Reply(self._team.report(values))

    def begin_report(self, values: object) -> "_Reported":
        return _Reported(self.report(values))


@dataclass(frozen=True, slots=True)
class _Reported:
    """A report that is decided already."""

    decision: Reply

    def reply(self, within_s: float) -> Reply:
        return self.decision


class Forwarding(io.TextIOBase):
    """Standard output or error of a rank. `name`: "out" or "err"."""

    def __init__(self, original: TextIO, name: str, team: Team, sender: MessageSink) -> None:
        self._original = original
        self._name = name
        self._team = team
        self._sender = sender
        self._line = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there
        return self._original.encoding

    def write(self, text: str) -> int:
        if self._team.place != 0:
            return self._original.write(text)
        self._line += text
        if "\n" in text or len(self._line) > 4096:
            self.flush()
        return len(text)

    def flush(self) -> None:
        line, self._line = self._line, ""
        if line:
            self._sender.say(self._name, line)
        self._original.flush()

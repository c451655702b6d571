"""The main function of a rank on this machine, and `train_as_rank`, which Ray ranks also use.

Output of the first member appears in the user's terminal. Output of the other ranks stays in the logs of the pool.
A report is made once for all ranks, and all of them get its decision.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

from ...base.errors import TrialStopped
from ...links.codec import pack_error
from ...pool.contract import GO_ON, Reply
from ...pool.current import CurrentJob, current, enter
from ...pool.seeds import seed_everything

# Imported once before the fork, not by the first batch of each rank.
from ...tensor.random import exact  # noqa: F401
from ...tensor.with_torch import exchange  # noqa: F401
from ..comm.control_block import FIRST_VIEW, ControlBlock
from ..comm.pipes import MessageSender
from ..comm.shared_memory import SharedMemory
from ..comm.shm_team import RunEnded, SharedMemoryTeam, check_ending, wait_for_answer
from ..comm.stack_dump import install_stack_dump
from ..comm.team import Monitor, Team
from ..comm.torch_group import World, is_lost_peer
from ..comm.torch_team import TorchTeam, open_team
from ..config import Plan
from ..context import Run
from ..data.position import DataPosition
from ..process_settings import TorchSettings, run_environment
from ..progress import RunSnapshot
from .settings import Settings

# The first step of any optimizer loads a part of torch's profiler. This loads it once before the fork.
with torch.autograd.profiler.record_function("load"):
    pass


@dataclass(frozen=True, slots=True)
class RankTask:
    """The task of a rank.

    Attributes:
        name: name of the training function.
        torch_settings: settings of torch in the process that has called `fanwise.run`.
    """

    settings: Settings
    rank: int
    name: str
    torch_settings: TorchSettings

    @property
    def device(self) -> torch.device:
        return torch.device("cuda:0" if self.settings.devices[self.rank].startswith("cuda") else "cpu")


@dataclass(frozen=True, slots=True)
class Channels:
    """Paths of the supervisor's shared memory, pipe and stack file. `store_port`: of the store of a process group."""

    memory: str
    pipe: str
    stacks: str
    store_port: int | None


RankTeam = SharedMemoryTeam | TorchTeam


def main(train: Callable[[Run], Any], task: RankTask, channels: Channels) -> Any:
    """Run a rank. Return the result of the run in the first member, else None. Errors are sent to the supervisor."""
    sender = MessageSender(channels.pipe)
    # Before the supervisor knows the pid: without a handler, its signal would kill this process.
    install_stack_dump(channels.stacks)
    sender.send("here", os.getpid(), current().gpus)
    settings = task.settings
    try:
        with run_environment(
            settings.threads, task.device, exact=settings.reduce != "fast", settings=task.torch_settings
        ):
            memory = SharedMemory.open(channels.memory, settings.all_reduce)
            control, size = ControlBlock(memory), len(settings.devices)
            if settings.backend == "shared memory":
                team = SharedMemoryTeam(memory, control, task.rank, size, sender.send, reduce=settings.reduce)
                return _result(train, task, team, _monitor(control, task.rank, sender, team.check_members), sender)
            while not control.view:  # some ranks may still wait in the pool's queue
                check_ending(control)
                control.wait_view(0)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            port = channels.store_port or 0
            world = World(task.rank, size, lambda: TCPStore("127.0.0.1", port, size), has_supervisor=True)
            with open_team(
                world,
                task.device,
                reduce=settings.reduce,
                backend=settings.backend,
                on_operation=partial(control.arrive, task.rank, FIRST_VIEW),
                on_first_step=partial(sender.send, "stepped"),
            ) as torch_team:
                monitor = _monitor(control, task.rank, sender, lambda: check_ending(control))
                return _result(train, task, torch_team, monitor, sender)
    except RunEnded:
        return None
    except TrialStopped:
        sender.send("stopped")
    except BaseException as error:
        sender.send("failed", is_lost_peer(error), time.monotonic(), pack_error(error))
    return None


def _result(
    train: Callable[[Run], Any], task: RankTask, team: RankTeam, monitor: Monitor, sender: MessageSender
) -> Any:
    result, is_first = train_as_rank(train, task, team, monitor, sender.send)
    sender.send("returns", is_first)
    return result if is_first else None


def _monitor(control: ControlBlock, rank: int, sender: MessageSender, check: Callable[[], None]) -> Monitor:
    """Return the functions that tell the supervisor what happens. `check`: raises if waiting for an answer must end."""

    def report(number: int, values: Mapping[str, Any]) -> None:
        sender.send("report", number, dict(values))
        answer = wait_for_answer(control, number, check)
        if isinstance(answer, BaseException):
            raise answer
        if answer != "CONTINUE":
            raise TrialStopped("the run was stopped")

    return Monitor(report, partial(control.set_writing, rank), partial(sender.send, "checkpoint"))


def train_as_rank(
    train: Callable[[Run], Any], task: RankTask, team: RankTeam, monitor: Monitor, send: Callable[..., None]
) -> tuple[Any, bool]:
    """Call the training function. Return its result, and True if it is the run's. `send`: sends to the supervisor."""
    settings = task.settings
    seed_everything(settings.seed)
    run = Run(
        Plan(settings.shards, settings.threads, DataPosition(settings.seed), settings.reduce),
        task.device,
        team=team,
        monitor=monitor,
        explicit_settings=settings.explicit_settings,
        device_names=lambda: [settings.devices[rank] for rank in team.members],
        verify=settings.verify,
    )
    job, out, err = current(), sys.stdout, sys.stderr

    def show(snapshot: RunSnapshot) -> None:
        if team.index == 0:
            send("progress", snapshot)

    enter(_ReportingJob(job, run))
    sys.stdout, sys.stderr = _ForwardedStream(out, "out", team, send), _ForwardedStream(err, "err", team, send)
    try:
        if settings.resume is not None:
            run.restore(settings.resume)
        with run.show_progress(show, task.name), run.writer, run.training():
            result = train(run)
        sys.stdout.flush()
        sys.stderr.flush()
        return result, team.finish()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = out, err
        enter(job)


class _ReportingJob(CurrentJob):
    """The current job of a rank. A `fanwise.tune.report` in the training function becomes a `run.report`."""

    def __init__(self, job: CurrentJob, run: Run) -> None:
        self.__dict__.update(job.__dict__)
        self._run = run

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        assert isinstance(values, Mapping), "metrics by name"
        self._run.report(**values)
        return GO_ON

    def begin_report(self, values: object) -> "_DecidedReport":
        self.report(values)
        return _DecidedReport()


class _DecidedReport:
    def reply(self, within_s: float) -> Reply:
        return GO_ON


class _ForwardedStream(io.TextIOBase):
    """Replaces a standard stream of a rank: the first member sends output to the supervisor. `name`: "out" or "err"."""

    def __init__(self, original: TextIO, name: str, team: Team, send: Callable[..., None]) -> None:
        self._original = original
        self._name = name
        self._team = team
        self._send = send
        self._line = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute of the base class
        return self._original.encoding

    def write(self, text: str) -> int:
        if self._team.index != 0:
            return self._original.write(text)
        self._line += text
        if "\n" in text or len(self._line) > 4096:
            self.flush()
        return len(text)

    def flush(self) -> None:
        line, self._line = self._line, ""
        if line:
            self._send(self._name, line)
        self._original.flush()

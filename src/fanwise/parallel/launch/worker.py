"""`run_rank`, the main function of all ranks, and `main`, that of a rank on this machine.

Output of the first member appears in the user's terminal. Output of the other ranks stays in the logs of the pool.
A report is made once for all ranks, and all of them get its decision.
"""

import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

from ...base.errors import ClusterError, TrialStopped
from ...links.codec import pack_error
from ...pool.contract import GO_ON, Reply
from ...pool.current import CurrentJob, current, enter

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
    settings: Settings
    rank: int
    name: str  # of the training function
    torch_settings: TorchSettings  # of the process that has called `fanwise.run`

    @property
    def device(self) -> torch.device:
        return torch.device("cuda:0" if self.settings.devices[self.rank].startswith("cuda") else "cpu")


RankTeam = SharedMemoryTeam | TorchTeam
Send = Callable[..., None]  # send(name, *content) sends a message to the supervisor; see supervisor.py


def main(
    train: Callable[[Run], Any], task: RankTask, memory_path: str, pipe_path: str, stacks_path: str, store_port: int
) -> Any:
    """Run a rank on this machine. Return the result of the run in the first member, else None."""
    sender = MessageSender(pipe_path)
    # Before the supervisor knows the pid: without a handler, its signal would kill this process.
    install_stack_dump(stacks_path)
    sender.send("here", os.getpid(), current().gpus)
    return run_rank(train, task, sender.send, lambda: _join(task, memory_path, store_port, sender.send))


@contextmanager
def _join(task: RankTask, memory_path: str, store_port: int, send: Send) -> Iterator[tuple[RankTeam, Monitor]]:
    settings, rank, size = task.settings, task.rank, len(task.settings.devices)
    memory = SharedMemory.open(memory_path, settings.all_reduce)
    control = ControlBlock(memory)
    team: RankTeam
    with ExitStack() as stack:
        if settings.backend == "shared memory":
            team = SharedMemoryTeam(memory, control, rank, size, send, reduce=settings.reduce)
            check = team.check_members
        else:
            check = partial(check_ending, control)
            while not control.view:  # some ranks may still wait in the pool's queue
                check()
                control.wait_view(0)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            opened_team = open_team(
                World(rank, size, lambda: TCPStore("127.0.0.1", store_port, size), has_supervisor=True),
                task.device,
                reduce=settings.reduce,
                backend=settings.backend,
                on_operation=partial(control.arrive, rank, FIRST_VIEW),
                on_first_step=partial(send, "stepped"),
            )
            team = stack.enter_context(opened_team)

        def ask(number: int, values: dict[str, Any]) -> Any:
            send("report", number, values)
            return wait_for_answer(control, number, check)

        yield team, make_monitor(send, ask)


def make_monitor(send: Send, ask: Callable[[int, dict[str, Any]], Any]) -> Monitor:
    """Return the functions that tell the supervisor what happens. `ask`: makes a report and returns the answer."""

    def report(number: int, values: Mapping[str, Any]) -> None:
        answer = ask(number, dict(values))
        if isinstance(answer, BaseException):
            raise answer
        if answer != "CONTINUE":
            raise TrialStopped("the run was stopped")

    return Monitor(report, partial(send, "checkpoint"))


def run_rank(
    train: Callable[[Run], Any],
    task: RankTask,
    send: Send,
    join: Callable[[], AbstractContextManager[tuple[RankTeam, Monitor]]],
) -> Any:
    """Train, and return the result of the run in the first member, else None. Errors are sent to the supervisor."""
    settings = task.settings
    try:
        _check_device(task.device)
        with (
            run_environment(
                settings.threads, task.device, exact=settings.reduce != "fast", settings=task.torch_settings
            ),
            join() as (team, monitor),
        ):
            result, is_first = _train(train, task, team, monitor, send)
            send("returns", is_first)
            return result if is_first else None
    except RunEnded:
        pass
    except TrialStopped:
        send("stopped")
    except BaseException as error:
        send("failed", is_lost_peer(error), time.time(), pack_error(error))
    return None


def _check_device(device: torch.device) -> None:
    """Raise ClusterError if torch cannot use the GPU that the pool has leased to this process."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClusterError(
            f"the run has leased GPU {', '.join(current().gpus)} of {socket.gethostname()}, and torch "
            f"{torch.__version__} there cannot use it (torch.cuda.is_available() is False).\n"
            f"Install a torch with CUDA that fits the driver on that node, or train on CPU devices: "
            f'devices=["cpu"] * 4.'
        )


def _train(
    train: Callable[[Run], Any], task: RankTask, team: RankTeam, monitor: Monitor, send: Send
) -> tuple[Any, bool]:
    """Call the training function. Return its result, and True if it is that of the run."""
    settings = task.settings
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
        result = run.execute(train, task.name, settings.resume, show)
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

    def __init__(self, original: TextIO, name: str, team: Team, send: Send) -> None:
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

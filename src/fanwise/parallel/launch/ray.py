"""The supervisor of a run whose ranks are on a Ray cluster, as jobs of the cluster's pool, and their main function.

    jobs --> "here" from each rank --> address of rank 0 to all --> they connect and train

Messages are reports of the jobs. They arrive in the thread of the pool, which puts them into a queue. The ranks
exchange gradients through a process group of torch.distributed, so the loss of one rank ends the attempt.
"""

import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psutil
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported
from torch.utils._pytree import tree_map

from ...base.errors import TrialStopped
from ...base.text import counted
from ...pool.cluster.engine import ClusterEngine
from ...pool.contract import GO_ON, Ending, Job, JobRequest, Outcome, Ready, Reply, Report
from ...pool.current import current
from ...pool.functions import pack
from ...pool.leases import Resources
from ...pool.outcomes import value_of
from ...rendezvous.addresses import address_towards
from ..comm.control_block import STOPPED
from ..comm.team import Monitor
from ..comm.torch_group import World
from ..comm.torch_team import TorchTeam, open_team
from ..context import Run
from ..progress import Display
from .settings import Settings
from .supervisor import Message, Rank, RunLost, Supervisor
from .worker import RankTask, Send, make_monitor, run_rank

# Time for a rank to end after the run was stopped.
_STOPPING_S = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class RayRank(Rank):
    """See `Rank`. The pool calls the methods on_..., in its thread."""

    engine: ClusterEngine
    events: "queue.SimpleQueue[tuple[RayRank, Report | None]]"  # of the supervisor. None: another event than a report
    job: Job | None = None
    outcome: Outcome | None = None
    is_free: bool = False  # the pool has taken back the CPUs and GPUs of the job

    def on_ready(self, job: Job, ready: Ready) -> None:
        self.node, self.pid = ready.node, ready.pid or 0

    def on_report(self, report: Report) -> None:
        self.events.put((self, report))

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self.outcome = outcome

    def on_free(self, job: Job) -> None:
        self.is_free = True
        self.events.put((self, None))

    def has_ended(self) -> bool:
        if self.is_free and self.outcome is not None:
            try:
                self.value = value_of(self.outcome)
            except (Exception, TrialStopped) as error:
                self.error = error
        return self.is_free or self.job is None  # None: the pool has refused it, or an earlier one

    def is_queued(self) -> bool:
        return self.job is not None and self.job.state == "queued"

    def kill(self) -> None:
        self.end("kill")

    def end(self, how: Ending, grace_s: float | None = None) -> None:
        if self.job is not None:
            self.engine.loop.call_soon(partial(self.engine.end, self.job, how, grace_s=grace_s))


class RaySupervisor(Supervisor[RayRank]):
    """See the module and `Supervisor`. A restart has fewer ranks if hosts were lost."""

    def __init__(
        self, engine: ClusterEngine, train: Callable[[Run], Any], settings: Settings, display: Display
    ) -> None:
        self._engine = engine
        self._needs = Resources(cpus=settings.threads, gpus=settings.gpus)
        room = engine.capacity().fits(self._needs)
        if settings.is_restart and 0 < room < len(settings.devices):
            settings = replace(settings, devices=settings.devices[:room])
        super().__init__(train, settings, display)
        self._events: queue.SimpleQueue[tuple[RayRank, Report | None]] = queue.SimpleQueue()
        self._ranks = [
            RayRank(number=number, count=self._count, engine=engine, events=self._events)
            for number in range(self._count)
        ]
        self._here: dict[int, Report] = {}  # by rank, which waits for the address of rank 0
        self._question: Report | None = None  # waits for a decision
        self._has_stopped = False  # all ranks know that the run is stopped

    def _room(self) -> tuple[int, str]:
        capacity = self._engine.capacity()
        gpus = f" and {counted(capacity.gpus, 'GPU')}" if self._needs.gpus else ""
        hosts = counted(len(capacity.machines), "host")
        return capacity.fits(self._needs), f"the cluster has {counted(capacity.cpus, 'CPU')}{gpus} on {hosts}"

    def _start(self) -> None:
        """Submit all ranks in one call in the pool's thread, so that two runs never wait for each other's resources."""
        towards = self._engine.hosts[0].address if self._engine.hosts else "127.0.0.1"
        group = secrets.token_hex(8)
        requests = []
        for rank in self._ranks:
            packed = pack(main, (self._train, self._task(rank.number), towards), caller="fanwise.run")
            requests.append(JobRequest(packed, self._needs, number=rank.number, group=group))
        errors: list[BaseException] = []
        done = threading.Event()

        def submit() -> None:
            try:
                for rank, request in zip(self._ranks, requests, strict=True):
                    rank.job = self._engine.submit(request, rank)
            except BaseException as error:
                errors.append(error)
            done.set()

        self._engine.loop.check_usable()
        self._engine.loop.call_soon(submit)
        done.wait()
        if errors:
            raise errors[0]

    def _messages(self, within_s: float) -> list[tuple[RayRank, Message]]:
        messages: list[tuple[RayRank, Message]] = []
        with suppress(queue.Empty):
            rank, report = self._events.get(timeout=within_s)
            while True:
                if report is not None and self._is_for_supervisor(rank, report):
                    messages.append((rank, report.values))
                rank, report = self._events.get_nowait()
        return messages

    def _is_for_supervisor(self, rank: RayRank, report: Report) -> bool:
        """Answer a report that needs no decision. Return False if it has been handled."""
        match report.values[0]:
            case "here":
                self._here[rank.number] = report
                if len(self._here) == self._count:  # until then some may wait in the queue
                    for waiting in self._here.values():
                        self._reply(waiting, Reply("CONTINUE", {"answer": self._here[0].values[1]}))
                return False
            case "report":
                self._question = report
            case _:
                self._reply(report, GO_ON)
        return True

    def _send_answer(self, rank: RayRank, request: int, answer: str | Exception) -> None:
        assert self._question is not None, "a report waits"
        if isinstance(answer, Exception):
            self._engine.loop.call_soon(partial(self._question.refuse, answer))
        else:
            self._has_stopped = answer == "STOP"
            self._reply(self._question, Reply("CONTINUE", {"answer": answer}))

    def _reply(self, report: Report, reply: Reply) -> None:
        self._engine.loop.call_soon(partial(report.answer, reply))

    def _on_loss(self, rank: RayRank, text: str) -> None:
        raise RunLost(f"{text}\nThe run ends with it: a process group does not survive the loss of a process.")

    def _end(self, reason: int) -> None:
        if reason == STOPPED and not self._has_stopped:
            self._has_stopped = True
            for rank in self._ranks:
                rank.end("terminate", _STOPPING_S)


def main(train: Callable[[Run], Any], task: RankTask, towards: str) -> Any:
    """Run a rank. Return the result of the run, in main memory, in process 0, else None.

    Rank 0 listens at its own address in the network of the address `towards`.
    """
    job = current()  # the training function has another one

    def send(name: str, *content: Any) -> None:
        # The supervisor must know of a checkpoint before another rank can fail after it.
        (job.report if name == "checkpoint" else job.begin_report)((name, *content))

    def ask(name: str, *content: Any) -> Any:
        """Return the answer of the launcher."""
        return (job.report((name, *content)).body or {})["answer"]

    result = run_rank(train, task, send, lambda: _join(task, towards, send, ask))
    return result if task.device.type == "cpu" else tree_map(_off_device, result)


@contextmanager
def _join(task: RankTask, towards: str, send: Send, ask: Callable[..., Any]) -> Iterator[tuple[TorchTeam, Monitor]]:
    settings, size = task.settings, len(task.settings.devices)
    address = address_towards(towards)
    _use_interface(address)
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False) if task.rank == 0 else None
    host, port = ask("here", [address, 0 if store is None else store.port])
    with open_team(
        World(task.rank, size, lambda: store or TCPStore(host, port, size)),
        task.device,
        reduce=settings.reduce,
        backend=None if settings.backend == "shared memory" else settings.backend,
        step_timeout_s=settings.step_timeout_s,
    ) as team:
        team.limit_operations()
        yield team, make_monitor(send, partial(ask, "report"))


def _use_interface(address: str) -> None:
    """Make Gloo and NCCL use the network interface of this address, unless the environment names one."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in [interface.address for interface in addresses]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _off_device(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor | torch.nn.Module) else leaf

"""The supervisor of a run on a Ray cluster: it submits a job for each rank. It does not train itself.

    jobs --> "store" from each rank --> address of rank 0 to all --> "joined" from each --> they train --> result

The ranks exchange gradients through a process group of torch.distributed, so the loss of one rank ends the attempt.
Events arrive in the thread of the pool, which puts them into a queue. The thread that has called `run` handles them.
"""

import logging
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ...base.errors import LeaseError, WorkerLostError
from ...base.text import counted
from ...pool.cluster.engine import ClusterEngine
from ...pool.contract import GO_ON, Ending, Job, JobRequest, Outcome, Ready, Reply, Report
from ...pool.functions import pack
from ...pool.leases import Resources
from ...pool.outcomes import value_of
from ...pool.reporting import begin_report
from ..context import Run
from ..process_settings import read_settings
from ..progress import Display, RankStatus, function_name
from .ray_worker import main
from .settings import Settings
from .worker import RankTask

_log = logging.getLogger(__name__)

_POLL_S = 0.5
# Time until a warning that processes wait for CPUs or GPUs of the cluster.
_QUEUED_S = 2.0
# Time in which the cause of a lost connection must show.
_CAUSE_S = 10.0
# Time for writing checkpoints after the run has failed.
_SAVING_S = 30.0
# Time for killed or finished processes to end.
_LEAVING_S = 10.0

_Kind = Literal["ready", "report", "ended", "free"]


@dataclass(slots=True, eq=False)
class _Rank:
    """A rank. The methods are called by the pool.

    Attributes:
        question: report that waits for its answer.
        is_free: the pool has taken back the CPUs and GPUs of the job.
    """

    number: int
    events: "queue.SimpleQueue[tuple[_Rank, _Kind, Any]]"
    job: Job | None = None
    node: str = ""
    pid: int = 0
    question: Report | None = None
    has_joined: bool = False
    outcome: Outcome | None = None
    is_free: bool = False

    def on_ready(self, job: Job, ready: Ready) -> None:
        self.events.put((self, "ready", ready))

    def on_report(self, report: Report) -> None:
        self.events.put((self, "report", report))

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self.events.put((self, "ended", outcome))

    def on_free(self, job: Job) -> None:
        self.events.put((self, "free", None))

    def __str__(self) -> str:
        pid = f", pid {self.pid}" if self.pid else ""
        return f"rank {self.number} (node {self.node or 'not known yet'}{pid})"


class _Result(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class RaySupervisor:
    """See the module. The attributes are those of `Supervisor`."""

    def __init__(
        self, engine: ClusterEngine, train: Callable[[Run], Any], settings: Settings, display: Display
    ) -> None:
        self._engine = engine
        self._train = train
        self._needs = Resources(cpus=settings.threads, gpus=settings.gpus)
        self._settings = settings
        self.is_lost = False
        self.checkpoint: str | None = None
        self.reports_made = settings.reports_made
        self._events: queue.SimpleQueue[tuple[_Rank, _Kind, Any]] = queue.SimpleQueue()
        self._ranks = [_Rank(number, self._events) for number in range(len(settings.devices))]
        self._address: list[str | int] = []  # host and port of the store of rank 0
        self._check_lease()
        self._display = display
        display.ranks = self._rank_statuses

    def _check_lease(self) -> None:
        """Raise LeaseError if not all processes can run at once, because they would wait for each other forever."""
        capacity, count = self._engine.capacity(), len(self._settings.devices)
        if (room := capacity.fits(self._needs)) < count:
            needs, gpus = "", ""
            if self._needs.gpus:
                needs, gpus = " and a GPU each", f" and {counted(capacity.gpus, 'GPU')}"
            raise LeaseError(
                f"{count} processes with threads={self._settings.threads}{needs} are needed at once, and the cluster "
                f"has room for {room}: {counted(capacity.cpus, 'CPU')}{gpus} on "
                f"{counted(len(capacity.machines), 'host')}.\nGive fewer devices."
            )

    def run(self) -> Any:
        """Return the result of the training function. Blocks until all processes have ended.

        Raises:
            WorkerLostError: a process was lost.
            The first error of the training function.
        """
        try:
            self._submit()
            began_s, may_warn = time.monotonic(), True
            while True:
                if (rank := self._next_end(_POLL_S)) is not None:
                    self._on_end(rank)
                if may_warn and time.monotonic() - began_s > _QUEUED_S:
                    may_warn = False
                    self._warn_of_queue()
        except _Result as result:
            self._wait_for_ends(_LEAVING_S)
            return result.value
        except KeyboardInterrupt:
            raise
        except BaseException:
            if all(rank.has_joined for rank in self._ranks):  # else no checkpoint was begun
                self._end("terminate", _SAVING_S)
                self._wait_for_ends(_SAVING_S)
            raise
        finally:
            self._end("kill", None)
            self._wait_for_ends(_LEAVING_S)

    def _submit(self) -> None:
        """Submit all ranks in one call in the pool's thread, so that two runs never wait for each other's resources."""
        task = RankTask(self._settings, 0, function_name(self._train), read_settings())
        towards = self._engine.hosts[0].address if self._engine.hosts else "127.0.0.1"
        group = secrets.token_hex(8)
        requests = [
            JobRequest(
                pack(main, (self._train, replace(task, rank=rank.number), towards), caller="fanwise.run"),
                self._needs,
                number=rank.number,
                group=group,
            )
            for rank in self._ranks
        ]
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

    # -- events ----------------------------------------------------------------------------------------------------

    def _next_end(self, within_s: float) -> _Rank | None:
        """Handle one event. Return the rank if it has ended, else None, also if there is no event in this time."""
        try:
            rank, kind, content = self._events.get(timeout=within_s)
        except queue.Empty:
            return None
        match kind:
            case "ready":
                rank.node, rank.pid = content.node, content.pid or 0
            case "report":
                self._on_report(rank, content)
            case "ended":
                rank.outcome, rank.question = content, None
                return rank
            case "free":
                rank.is_free = True
        return None

    def _on_report(self, rank: _Rank, report: Report) -> None:
        name, *content = report.values
        match name:
            case "store":
                host, port, rank.pid = content[0]
                rank.question = report
                if rank.number == 0:
                    self._address = [host, port]
                if all(one.question is not None for one in self._ranks):  # else some wait in the queue
                    for waiting in self._ranks:
                        assert waiting.question is not None
                        self._reply(waiting.question, Reply("CONTINUE", {"address": self._address}))
                        waiting.question = None
                return
            case "joined":
                rank.has_joined = True
            case "out" | "err":
                stream = sys.stdout if name == "out" else sys.stderr
                stream.write(content[0])
                stream.flush()
            case "progress":
                self._display.show(content[0])
            case "checkpoint":
                self.checkpoint = content[0]
            case "report":
                number, values = content
                if number > self.reports_made:  # else an earlier attempt has made it
                    self.reports_made = number
                    begin_report(values)
        self._reply(report, GO_ON)

    def _reply(self, report: Report, reply: Reply) -> None:
        self._engine.loop.call_soon(lambda: report.answer(reply))

    # -- ends ------------------------------------------------------------------------------------------------------

    def _on_end(self, rank: _Rank) -> None:
        """Raise the error with which the rank has ended, or the result of the run."""
        assert rank.outcome is not None, "the rank has ended"
        try:
            value, is_first = value_of(rank.outcome)
        except WorkerLostError as error:
            self._raise_cause(rank, error)
        except BaseException as error:
            error.add_note(f"in {rank}")
            raise
        else:
            if is_first:
                raise _Result(value)

    def _raise_cause(self, rank: _Rank, error: WorkerLostError) -> None:
        """Raise WorkerLostError for the process that is gone, or the error that another rank has raised."""
        assert rank.outcome is not None, "the rank has ended"
        until_s = time.monotonic() + _CAUSE_S
        # An outcome with a payload contains an error that the rank has raised, because it lost its connection.
        while rank.outcome.payload and (left_s := until_s - time.monotonic()) > 0:
            peer = self._next_end(left_s)
            if peer is None or peer.outcome is None:
                continue
            try:
                value_of(peer.outcome)
            except WorkerLostError as lost:
                if not peer.outcome.payload:
                    rank, error = peer, lost
                    break
            except BaseException as cause:
                cause.add_note(f"in {peer}")
                raise cause from None
        self.is_lost = True
        raise WorkerLostError(
            f"{rank}: {error.message}\nThe run ends with it: a process group does not survive the loss of a process."
        ) from error

    def _warn_of_queue(self) -> None:
        queued = sum(rank.job is not None and rank.job.state == "queued" for rank in self._ranks)
        if queued:
            capacity = self._engine.capacity()
            _log.warning(
                "%d of %d processes of the run wait for a place: the cluster has %s, and other jobs or runs hold "
                "them.\nThe run begins when these end.",
                queued,
                len(self._ranks),
                counted(capacity.gpus, "GPU") if self._needs.gpus else counted(capacity.cpus, "CPU"),
            )

    def _rank_statuses(self) -> list[RankStatus]:
        return [
            RankStatus(
                rank.number,
                rank.pid,
                (self._settings.devices[rank.number],),
                "lost" if rank.outcome is not None else "running" if rank.has_joined else "starting",
            )
            for rank in self._ranks
        ]

    def _end(self, how: Ending, grace_s: float | None) -> None:
        for rank in self._ranks:
            if rank.outcome is None and rank.job is not None:
                self._engine.loop.call_soon(partial(self._engine.end, rank.job, how, grace_s=grace_s))

    def _wait_for_ends(self, within_s: float) -> None:
        """Handle events until the pool has taken back the resources of all ranks, or for this time."""
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0:
            if all(rank.is_free or rank.job is None for rank in self._ranks):
                return
            with suppress(Exception):  # an error that was raised before is more important
                self._next_end(left_s)

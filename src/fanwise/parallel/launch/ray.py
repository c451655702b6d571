"""The supervisor of a run on a Ray cluster: it submits a job for each rank and trains nothing.

    submit --> "store" of rank 0 --> its address to all --> "joined" from each --> they train --> the first one's result

The ranks exchange gradients by a process group of torch.distributed, so the loss of one ends the attempt. Events come
on the pool's thread and are put into a queue. Everything is decided in the thread that called `run`.
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
from ..process_settings import torch_settings
from ..progress import Screen, function_name, open_screen
from ..run_status import RankStatus, StatusScreen
from .ray_worker import main
from .settings import Settings
from .worker import RankTask

_log = logging.getLogger(__name__)

_POLL_S = 0.5
_QUEUED_S = 2.0
# Time to learn why a rank has lost the connection to another one.
_CAUSE_S = 10.0
# Time for checkpoints that were requested before the run failed.
_SAVING_S = 30.0
# Time for killed or finished processes to end.
_LEAVING_S = 10.0

_Kind = Literal["ready", "report", "ended", "free"]


@dataclass(slots=True, eq=False)
class _Rank:
    """One process. `question`: the one that is not answered yet. `is_free`: nothing of its job is left."""

    number: int
    events: "queue.SimpleQueue[tuple[_Rank, _Kind, Any]]"  # Any: as the event
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
    """The training function has returned in the first process."""

    def __init__(self, value: Any) -> None:  # Any: the user's result
        super().__init__()
        self.value = value


class RaySupervisor:
    """See the module. The attributes are those of `Supervisor`."""

    def __init__(self, engine: ClusterEngine, train: Callable[[Run], Any], settings: Settings) -> None:
        self._engine = engine
        self._train = train
        self._needs = Resources(cpus=settings.threads, gpus=settings.gpus)
        self._settings = settings
        self.is_lost = False
        self.checkpoint: str | None = None
        self.reports_made = settings.reports_made
        self._events: queue.SimpleQueue[tuple[_Rank, _Kind, Any]] = queue.SimpleQueue()  # Any: as the event
        self._ranks = [_Rank(number, self._events) for number in range(len(settings.devices))]
        self._address: list[str | int] = []  # of the store of rank 0
        self._check_fits()
        self._screen: Screen = StatusScreen(open_screen(settings.progress, notice=settings.notice), self._shown_ranks)

    def _check_fits(self) -> None:
        """Raise LeaseError if the processes can never all run at once: those that do would wait forever."""
        capacity, count = self._engine.capacity(), len(self._settings.devices)
        if (room := capacity.fits(self._needs)) < count:
            if self._needs.gpus:
                needs, gpus, sharing = " and a GPU each", f" and {counted(capacity.gpus, 'GPU')}", ""
            else:
                needs, gpus, sharing = "", "", ", or let several share a process, as devices=4, processes=2"
            raise LeaseError(
                f"{count} processes with threads={self._settings.threads}{needs} are needed at once, and the cluster "
                f"has room for {room}: {counted(capacity.cpus, 'CPU')}{gpus} on "
                f"{counted(len(capacity.machines), 'host')}.\nGive fewer devices{sharing}."
            )

    def run(self) -> Any:  # Any: the user's result
        """Block until the run is over.

        Raises:
            WorkerLostError: a process was lost. The first error of the training function.
        """
        try:
            self._submit()
            began_s, is_told = time.monotonic(), False
            while True:
                if (rank := self._next_end(_POLL_S)) is not None:
                    self._judge(rank)
                if not is_told and time.monotonic() - began_s > _QUEUED_S:
                    is_told = self._warn_of_queue()
        except _Result as result:
            self._let_end(_LEAVING_S)
            return result.value
        except KeyboardInterrupt:
            raise
        except BaseException:
            if all(rank.has_joined for rank in self._ranks):  # else nobody trains yet
                self._end("terminate", _SAVING_S)
                self._let_end(_SAVING_S)
            raise
        finally:
            self._end("kill", None)
            self._let_end(_LEAVING_S)
            self._screen.close()

    def _submit(self) -> None:
        """Submit all ranks in one turn of the pool, so that two runs never wait for each other's places."""
        progress_s = self._screen.first_s, self._screen.every_s
        task = RankTask(self._settings, 0, progress_s, function_name(self._train), torch_settings.read_settings())
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
        """Handle one event, if one comes in time. Return the rank if it has ended."""
        try:
            rank, kind, content = self._events.get(timeout=within_s)
        except queue.Empty:
            return None
        match kind:
            case "ready":
                rank.node, rank.pid = content.node, content.pid or 0
            case "report":
                self._receive(rank, content)
            case "ended":
                rank.outcome, rank.question = content, None
                return rank
            case "free":
                rank.is_free = True
        return None

    def _receive(self, rank: _Rank, report: Report) -> None:
        name, *content = report.values
        match name:
            case "store":
                host, port, rank.pid = content[0]
                rank.question = report
                if rank.number == 0:
                    self._address = [host, port]
                if all(each.question is not None for each in self._ranks):  # some may wait for a place
                    for waiting in self._ranks:
                        self._answer(waiting, Reply("CONTINUE", {"address": self._address}))
                return
            case "joined":
                rank.has_joined = True
            case "out" | "err":
                stream = sys.stdout if name == "out" else sys.stderr
                stream.write(content[0])
                stream.flush()
            case "progress":
                self._screen.show(content[0])
            case "checkpoint":
                self.checkpoint = content[0]
            case "report":
                number, values = content
                if number > self.reports_made:  # else an attempt before this one has made it
                    self.reports_made = number
                    begin_report(values)
        self._reply(report, GO_ON)

    def _answer(self, rank: _Rank, reply: Reply) -> None:
        report, rank.question = rank.question, None
        if report is not None:
            self._reply(report, reply)

    def _reply(self, report: Report, reply: Reply) -> None:
        self._engine.loop.call_soon(lambda: report.answer(reply))

    # -- ends ------------------------------------------------------------------------------------------------------

    def _judge(self, rank: _Rank) -> None:
        """Raise the result or the error of a rank that has ended."""
        assert rank.outcome is not None, "it has ended"
        try:
            value, is_first = value_of(rank.outcome)
        except WorkerLostError as error:
            self._find_cause(rank, error)
        except BaseException as error:
            error.add_note(f"in {rank}")
            raise
        else:
            if is_first:
                raise _Result(value)

    def _find_cause(self, rank: _Rank, error: WorkerLostError) -> None:
        """Raise WorkerLostError for the process that is gone, or what another one has raised before."""
        assert rank.outcome is not None, "it has ended"
        until_s = time.monotonic() + _CAUSE_S
        # A rank that has lost the connection to another one raises, and so has an outcome with an error in it.
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

    def _warn_of_queue(self) -> bool:
        """Warn if the run waits for others that use the pool. Returns True, because this is done once."""
        waiting = sum(rank.job is not None and rank.job.state == "queued" for rank in self._ranks)
        if waiting:
            capacity = self._engine.capacity()
            _log.warning(
                "%d of %d processes of the run wait for a place: the cluster has %s, and other jobs or runs hold "
                "them.\nThe run begins when these end.",
                waiting,
                len(self._ranks),
                counted(capacity.gpus, "GPU") if self._needs.gpus else counted(capacity.cpus, "CPU"),
            )
        return True

    def _shown_ranks(self) -> list[RankStatus]:
        """The processes for other programs, such as the board."""
        return [
            RankStatus(
                rank.number,
                rank.pid,
                self._settings.devices[rank.number],
                "lost" if rank.outcome is not None else "running" if rank.has_joined else "starting",
            )
            for rank in self._ranks
        ]

    def _end(self, how: Ending, grace_s: float | None) -> None:
        """End the ranks that still run."""
        for rank in self._ranks:
            if rank.outcome is None and rank.job is not None:
                self._engine.loop.call_soon(_ending(self._engine, rank.job, how, grace_s))

    def _let_end(self, within_s: float) -> None:
        """Wait until nothing is left of the ranks. Their messages are still handled, their ends are not judged."""
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0:
            if all(rank.is_free or rank.job is None for rank in self._ranks):
                return
            with suppress(Exception):  # the first one is raised
                self._next_end(left_s)


def _ending(engine: ClusterEngine, job: Job, how: Ending, grace_s: float | None) -> Callable[[], None]:
    return lambda: engine.end(job, how, grace_s=grace_s)

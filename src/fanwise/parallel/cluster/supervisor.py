"""The program's side of a run on a cluster: a job for each process; it trains nothing, and outlives them all.

    submit --> "here" from each --> who is where, to each --> "linked" from each --> they train --> "over" --> a result
       ^                                   |
       '---- all begin anew, when one is lost before all are linked -----

From then on the processes go on by themselves when one is lost, as those of a launcher do (hosts/), and this only notes
it. A result is asked of who is the first of them at the end, and of the next one, should that die before it came.

Events come on the pool's thread and are put into a queue; everything is decided in the thread that called `run`.
"""

import logging
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...base.errors import LeaseError, WorkerLostError
from ...base.text import counted
from ...links.shared_secret import new_secret
from ...pool.cluster.engine import ClusterEngine
from ...pool.contract import GO_ON, Job, JobRequest, Outcome, Ready, Reply, Report
from ...pool.contract import Ending as HowToEnd
from ...pool.functions import pack
from ...pool.leases import Resources
from ...pool.outcomes import value_of
from ...pool.reporting import begin_report
from ..context import Run
from ..hosts.meeting import PeerInfo
from ..process_settings import torch_settings
from ..progress import Screen, function_name, open_screen
from ..run_status import RankStatus, StatusScreen
from ..supervisor.settings import Settings
from .rank import Orders, main
from .talking import as_peers

_log = logging.getLogger(__name__)

# How often the processes begin anew when some are lost before all are linked.
_MOST_STARTS = 4
_QUEUED_S = 2.0
# What the others get when one has failed: to come to their next exchange, where they learn of it; then for checkpoints.
_ECHO_S, _SAVING_S = 10.0, 30.0
# What processes get to be gone that have returned, or were killed.
_LEAVING_S = 10.0

What = Literal["ready", "report", "ended", "free"]


@dataclass(slots=True, eq=False)
class _Rank:
    """One process, and what its job tells. `node`: for people. `waits`: its question that is not answered yet."""

    number: int
    news: "queue.SimpleQueue[tuple[_Rank, What, Any]]"  # Any: as the event
    job: Job | None = None
    node: str = ""
    info: PeerInfo | None = None
    waits: Report | None = None
    is_linked: bool = False
    is_over: bool = False
    is_first: bool = False
    is_asked: bool = False
    outcome: Outcome | None = None
    is_free: bool = False

    def on_ready(self, job: Job, ready: Ready) -> None:
        self.news.put((self, "ready", ready))

    def on_report(self, report: Report) -> None:
        self.news.put((self, "report", report))

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self.news.put((self, "ended", outcome))

    def on_free(self, job: Job) -> None:
        self.news.put((self, "free", None))

    @property
    def called(self) -> str:
        pid = "" if self.info is None else f", pid {self.info.pid}"
        return f"rank {self.number} (node {self.node or 'not known yet'}{pid})"


class _LostEarly(Exception):
    """A process was lost before all were linked."""


class _Result(Exception):
    """The training function has returned, and this is here."""

    def __init__(self, value: Any) -> None:  # Any: what it returned
        super().__init__()
        self.value = value


class ClusterSupervisor:
    """See the module. `settings`: a name or more of CPU devices for each process, or one of a GPU."""

    def __init__(self, engine: ClusterEngine, train: Callable[[Run], Any], settings: Settings) -> None:
        self._engine = engine
        self._train = train
        self._settings = settings
        self._needs = Resources(cpus=settings.threads, gpus=settings.gpus)
        self._news: queue.SimpleQueue[tuple[_Rank, What, Any]] = queue.SimpleQueue()  # Any: as the event
        self._ranks: list[_Rank] = []
        self._screen: Screen | None = None
        self._has_result = False
        self._check_fits()

    def _check_fits(self) -> None:
        """Raises LeaseError when the processes can never all be there: those that are would wait for ever."""
        there, count, threads = self._engine.capacity(), len(self._settings.devices), self._settings.threads
        if (room := there.fits(self._needs)) < count:
            if self._needs.gpus:
                wants, has, share = " and a GPU each", f" and {counted(there.gpus, 'GPU')}", ""
            else:
                wants, has, share = "", "", ", or let several share a process, as devices=4, processes=2"
            raise LeaseError(
                f"{count} processes with threads={threads}{wants} are needed at once, and the cluster has room for "
                f"{room}: {counted(there.cpus, 'CPU')}{has} on {counted(len(there.machines), 'host')}.\n"
                f"Give fewer devices{share}."
            )

    def run(self) -> Any:  # Any: what the training function returns
        """Block until the run is over.

        Raises:
            What the training function raised; WorkerLostError when processes were lost and the run cannot go on.
        """
        settings = self._settings
        self._screen = StatusScreen(open_screen(settings.progress, notice=settings.notice), self._shown_ranks)
        try:
            for start in range(_MOST_STARTS):
                # What is not there any more is not waited for: the bits do not depend on it.
                room = self._engine.capacity().fits(self._needs) if start else len(settings.devices)
                try:
                    return self._play(settings.devices[: max(1, room)], start)
                except _LostEarly as lost:
                    _log.warning("%s\nThe run has not begun yet, and begins anew without it.", lost)
            raise WorkerLostError(f"in {_MOST_STARTS} tries the processes of the run did not all come to begin it")
        finally:
            self._screen.close()

    def _play(self, devices: Sequence[tuple[str, ...]], start: int) -> Any:  # Any: as `run`
        self._ranks = [_Rank(number, self._news) for number in range(len(devices))]
        try:
            self._submit(devices, start)
            began_s, is_told = time.monotonic(), False
            while True:
                self._judge(self._take(0.5))
                if not is_told and time.monotonic() - began_s > _QUEUED_S:
                    is_told = self._tell_of_queue()
        except _Result as result:
            self._has_result = True
            self._ask_for_result()
            self._let_end(_LEAVING_S)
            return result.value
        except (_LostEarly, KeyboardInterrupt):
            raise
        except BaseException:
            if all(rank.is_linked for rank in self._ranks):  # else nobody trains yet
                self._let_end(_ECHO_S)
                self._end("terminate", _SAVING_S)
                self._let_end(_SAVING_S)
            raise
        finally:
            self._end("kill", None)
            self._let_end(_LEAVING_S)

    def _submit(self, devices: Sequence[tuple[str, ...]], start: int) -> None:
        """All in one turn of the pool, so that two runs never wait for the places of each other."""
        assert self._screen is not None, "opened before"
        orders = Orders(
            settings=replace(self._settings, devices=tuple(devices)),
            rank=0,
            size=len(devices),
            start=start,
            secret=new_secret(),
            towards=self._engine.hosts[0].address if self._engine.hosts else "127.0.0.1",
            drawn=(self._screen.first_s, self._screen.every_s),
            name=function_name(self._train),
            switches=torch_settings.read_settings(),
        )
        group = secrets.token_hex(8)
        requests = [
            JobRequest(
                pack(main, (self._train, replace(orders, rank=rank.number)), caller="fanwise.run"),
                self._needs,
                number=rank.number,
                group=group,
            )
            for rank in self._ranks
        ]
        trouble: list[BaseException] = []
        done = threading.Event()

        def submit() -> None:
            try:
                for rank, request in zip(self._ranks, requests, strict=True):
                    rank.job = self._engine.submit(request, rank)
            except BaseException as error:
                trouble.append(error)
            done.set()

        self._engine.loop.check_usable()
        self._engine.loop.call_soon(submit)
        done.wait()
        if trouble:
            raise trouble[0]

    # -- what comes ------------------------------------------------------------------------------------------------

    def _take(self, within_s: float) -> _Rank | None:
        """One piece of news, if there is any in time; the process that has ended, if it is that."""
        try:
            rank, what, content = self._news.get(timeout=within_s)
        except queue.Empty:
            return None
        if rank not in self._ranks:
            if what == "report":
                self._tell(content, Reply("STOP"))
            return None  # of an earlier start
        match what:
            case "ready":
                rank.node = content.node
            case "report":
                self._heard(rank, content)
            case "ended":
                rank.outcome, rank.waits = content, None
                return rank
            case "free":
                rank.is_free = True
        return None

    def _heard(self, rank: _Rank, report: Report) -> None:
        name, *content = report.values
        match name:
            case "here":
                rank.info = replace(PeerInfo(**content[0]), host=f"{rank.node}/{rank.node}")
                rank.waits = report
                if all(each.info is not None for each in self._ranks):
                    peers = {each.number: each.info for each in self._ranks if each.info is not None}
                    for each in self._ranks:
                        self._answer(each, Reply("CONTINUE", as_peers(peers)))
                return
            case "over":
                rank.is_over, rank.is_first, rank.waits = True, content[0], report
                self._ask_for_result()
                return
            case "linked":
                rank.is_linked = True
            case "out" | "err":
                stream = sys.stdout if name == "out" else sys.stderr
                stream.write(content[0])
                stream.flush()
            case "progress":
                assert self._screen is not None, "opened before"
                self._screen.show(content[0])
            case "report":
                begin_report(content[0])
        self._tell(report, GO_ON)

    def _ask_for_result(self) -> None:
        """Of one at a time, until it is here."""
        if self._has_result:
            for rank in self._ranks:
                if rank.is_over:
                    self._answer(rank, Reply("CONTINUE", {"value": False}))
            return
        living = [rank for rank in self._ranks if rank.outcome is None]
        over = [rank for rank in living if rank.is_over]
        first = [rank for rank in over if rank.is_first] or (over if len(over) == len(living) else [])
        if first and not any(rank.is_asked for rank in living):
            first[0].is_asked = True
            self._answer(first[0], Reply("CONTINUE", {"value": True}))

    def _judge(self, rank: _Rank | None) -> None:
        """What it means for the run that this process has ended."""
        if rank is None or rank.outcome is None:
            return
        try:
            value = value_of(rank.outcome)
        except WorkerLostError as lost:
            self._lost(rank, lost)
        except BaseException as error:
            if not any(note.startswith("raised in ") for note in getattr(error, "__notes__", [])):
                error.add_note(f"in {rank.called}")
            raise
        else:
            if rank.is_asked:
                raise _Result(value)

    def _lost(self, rank: _Rank, lost: WorkerLostError) -> None:
        text = f"{rank.called}: {lost.message}"
        living = [each for each in self._ranks if each.outcome is None]
        if not all(each.is_linked for each in self._ranks):
            raise _LostEarly(text)
        if self._settings.on_loss == "stop":
            raise WorkerLostError(f"{text}\non_loss='stop' ends the run with it.")
        if not living:
            raise WorkerLostError(f"{text}\nNo other process of the run is left.")
        self._ask_for_result()

    def _tell_of_queue(self) -> bool:
        """Say once that the run waits for others that use the pool. Whether there is nothing more to say."""
        waiting = sum(rank.job is not None and rank.job.state == "queued" for rank in self._ranks)
        if waiting:
            _log.warning(
                "%d of %d processes of the run wait for a place: the cluster has %s, and other jobs or runs hold "
                "them.\nThe run begins when these end.",
                waiting,
                len(self._ranks),
                counted(self._engine.capacity().gpus, "GPU")
                if self._needs.gpus
                else counted(self._engine.capacity().cpus, "CPU"),
            )
        return True

    def _shown_ranks(self) -> list[RankStatus]:
        """For those who look from other programs."""
        return [
            RankStatus(
                rank.number,
                0 if rank.info is None else rank.info.pid,
                self._settings.devices[rank.number],
                "lost" if rank.outcome is not None else "running" if rank.is_linked else "starting",
            )
            for rank in self._ranks
        ]

    # -- what goes -------------------------------------------------------------------------------------------------

    def _answer(self, rank: _Rank, reply: Reply) -> None:
        """What it has asked, if it waits for that."""
        report, rank.waits = rank.waits, None
        if report is not None:
            self._tell(report, reply)

    def _tell(self, report: Report, reply: Reply) -> None:
        self._engine.loop.call_soon(lambda: report.answer(reply))

    def _end(self, how: HowToEnd, grace_s: float | None) -> None:
        """Those that have not ended."""
        for rank in self._ranks:
            if rank.outcome is None and rank.job is not None:
                self._engine.loop.call_soon(_ending(self._engine, rank.job, how, grace_s))

    def _let_end(self, within_s: float) -> None:
        """Wait until nothing is left of them. What they still say is heard; how they end is not judged any more."""
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0:
            if all(rank.is_free or rank.job is None for rank in self._ranks):
                return
            with suppress(Exception):  # the first one is told
                self._take(left_s)


def _ending(engine: ClusterEngine, job: Job, how: HowToEnd, grace_s: float | None) -> Callable[[], None]:
    return lambda: engine.end(job, how, grace_s=grace_s)

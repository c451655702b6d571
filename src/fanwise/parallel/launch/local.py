"""The supervisor of a run on this machine: it starts the ranks, and outlives them. It does not train itself.

It notices deaths through pidfds, and receives messages from the ranks through pipes, so it can raise the first error of
any rank, in its own type. When `run` returns or raises, all processes of the run have ended. Then the shared memory is
freed.
"""

import logging
import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

from ...base.errors import LeaseError, TrialStopped, WorkerLostError
from ...links.codec import unpack_error
from ...pool import Pool
from ...pool.contract import Reply
from ...pool.current import Reported, in_job
from ...pool.reporting import begin_report
from ..comm.control_block import FAILED, STOPPED, SUPERVISOR, ControlBlock
from ..comm.pipes import MessageReceiver
from ..comm.shared_memory import SharedMemory
from ..comm.shm_team import pack
from ..comm.stack_dump import StackFile, describe_process
from ..comm.stragglers import StragglerDetector, Stragglers, limit_s
from ..context import Run
from ..process_settings import read_settings
from ..progress import Display, RankStatus, function_name
from .jobs import RankJob
from .membership import Membership, Order, Pause
from .settings import Settings
from .worker import Channels, RankTask, main

_log = logging.getLogger(__name__)

_POLL_S = 0.05
# Time in which other ranks may report an earlier error than the one received first.
_ERRORS_S = 0.1
# Time in which the cause of a lost connection must show.
_CAUSE_S = 5.0
# Time for `finally` blocks of the training function after the run was stopped.
_GRACE_S = 2.0
# Time for writing checkpoints after the run has failed.
_SAVING_S = 30.0
# Time for killed processes to end.
_DYING_S = 10.0
# Number of deaths, or hangs, in one step that end the run, because the work of the step probably causes them.
_MAX_DEATHS = 3
_MAX_HANGS = 2
# Time until a warning that processes wait for CPUs or GPUs of the pool.
_QUEUED_S = 2.0

# A pool serves requests in order. The lock keeps the jobs of one run together. Otherwise two runs could each get only
# some of their processes, and wait for each other forever.
_submitting = threading.Lock()


@dataclass(slots=True, eq=False)
class _Failure:
    """An error of a rank. `is_lost_peer`: the rank has only lost the connection to another one."""

    is_lost_peer: bool
    at_s: float
    packed: bytes


@dataclass(slots=True, eq=False)
class _Rank:
    """A rank.

    Attributes:
        device: name of its device, for messages.
        pidfd: -1 until the process has sent its pid.
        is_over: its end was handled.
        hung: message about the hang for which it was killed. Empty: none.
        returned: None until its training function has returned. Then True if it returns the result of the run.
    """

    number: int
    job: RankJob
    receiver: MessageReceiver
    stacks: StackFile
    device: str
    pidfd: int = -1
    pid: int = 0
    is_over: bool = False
    has_stepped: bool = False
    hung: str = ""
    killed_s: float = 0.0
    returned: bool | None = None
    is_stopped: bool = False
    failure: _Failure | None = None

    def is_gone(self) -> bool:
        """Return True if its process has ended and the pool knows how."""
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(0):
                return False
        return self.job.is_over(is_dead=self.pidfd >= 0)

    def kill(self) -> None:
        if self.pidfd >= 0:
            self.send_signal(signal.SIGKILL)
        else:
            self.job.kill()

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        self.receiver.close()
        self.stacks.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


class _Result(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Supervisor:
    """See the module.

    Attributes:
        is_lost: `run` has raised WorkerLostError because processes were lost, so the run may be restarted.
        checkpoint: last checkpoint that is on the disk. None: there is none.
        reports_made: number of reports so far, including those of earlier attempts.
    """

    def __init__(self, pool: Pool, train: Callable[[Run], Any], settings: Settings, display: Display) -> None:
        self._pool = pool
        self._train = train
        self._settings = settings
        self._count = len(settings.devices)
        self._check_lease()
        self.is_lost = False
        self.checkpoint: str | None = None
        self.reports_made = settings.reports_made
        self._memory = SharedMemory.create()
        self._control = ControlBlock(self._memory)
        self._store: Any = None
        if settings.backend != "shared memory":
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ranks: dict[int, _Rank] = {}
        self._membership = Membership(tuple(range(self._count)), self._control.arrived)
        self._stragglers = StragglerDetector()
        self._began_s = time.monotonic()
        self._may_warn_of_queue = True
        self._deaths: Counter[tuple[str, int]] = Counter()  # by kind and exchange
        self._asked: tuple[int, int] | None = None  # number and rank of the report that waits for a decision
        self._reported: Reported | None = None
        self._answered = 0
        self._poll = select.poll()
        self._display = display
        display.ranks = self._rank_statuses
        self._torch_settings = read_settings()

    def _check_lease(self) -> None:
        """Raise LeaseError if not all processes can run at once, because they would wait for each other forever."""
        threads, cpus = self._settings.threads, self._pool.machine.cpus
        if self._count * threads > cpus:
            raise LeaseError(
                f"{self._count} processes, threads={threads}, need {self._count * threads} CPUs at once, and "
                f"{'this job' if in_job() else 'the pool'} has {cpus}.\n"
                f"Give fewer devices. The result is the same if shards={self._settings.shards} is given, too."
            )

    def run(self) -> Any:
        """Return the result of the training function. Blocks until all processes have ended.

        Raises:
            WorkerLostError: processes were lost, and the run cannot continue.
            TrialStopped: the run was stopped.
            The first error of the training function in any rank.
        """
        grace_s = 0.0
        try:
            self._control.decide(self._membership.view, self._membership.members, 0)
            if self._store is None:
                self._control.set_view(self._membership.view)
            with _submitting:
                for number in range(self._count):
                    self._start(number)
            self._supervise()
        except _Result as result:
            grace_s = _GRACE_S
            return result.value
        except TrialStopped:
            self._control.end(STOPPED, self._count)
            self._wait_for_ends(_GRACE_S)
            raise
        finally:
            self._end_all(grace_s)

    def _start(self, number: int) -> None:
        settings, receiver, stacks = self._settings, MessageReceiver(), StackFile.create()
        task = RankTask(settings, number, function_name(self._train), self._torch_settings)
        store_port = None if self._store is None else self._store.port
        channels = Channels(self._memory.path, receiver.path, stacks.path, store_port)
        try:
            needs = self._pool.needs(cpus=settings.threads, gpus=settings.gpus)
            handle = needs.submit(main, self._train, task, channels)
        except BaseException:
            receiver.close()
            stacks.close()
            raise
        self._ranks[number] = _Rank(number, RankJob(handle), receiver, stacks, settings.devices[number])
        self._poll.register(receiver.fd, select.POLLIN)

    def _supervise(self) -> NoReturn:
        while True:
            self._receive(_POLL_S if self._asked is None else 0)
            self._check_decision(_POLL_S)
            self._check_failures()
            for rank in self._living():
                if rank.is_gone():
                    self._receive_from(rank)
                    self._check_failures()
                    self._on_end(rank)
            self._warn_of_queue()
            self._check_hangs()

    # -- messages --------------------------------------------------------------------------------------------------

    def _receive(self, within_s: float) -> None:
        """Handle all messages that have arrived. Wait for the first one for `within_s` seconds at most."""
        fds = {fd for fd, _ in self._poll.poll(within_s * 1000)}
        for rank in self._ranks.values():
            if rank.receiver.fd in fds:
                self._receive_from(rank)

    def _receive_from(self, rank: _Rank) -> None:
        for name, *content in rank.receiver.read():
            match name:
                case "here":
                    self._on_here(rank, *content)
                case "out" | "err":
                    stream = sys.stdout if name == "out" else sys.stderr
                    stream.write(content[0])
                    stream.flush()
                case "progress":
                    self._display.show(content[0])
                case "acknowledged":
                    self._obey(self._membership.acknowledged(rank.number, content[0]))
                case "report":
                    self._on_report(rank, *content)
                case "checkpoint":
                    self.checkpoint = content[0]
                case "failed":
                    rank.failure = _Failure(*content)
                case "stopped":
                    rank.is_stopped = True
                    self._control.end(STOPPED, self._count)
                case "returns":
                    rank.returned = content[0]
                case "stepped":
                    rank.has_stepped = True

    def _on_here(self, rank: _Rank, pid: int, gpus: Sequence[str]) -> None:
        if gpus:
            rank.device = dict(self._settings.gpu_names).get(gpus[0], gpus[0])
        with suppress(ProcessLookupError):
            rank.pidfd, rank.pid = os.pidfd_open(pid), pid
            self._poll.register(rank.pidfd, select.POLLIN)
        if len(self._ranks) == self._count and all(one.pid for one in self._ranks.values()):
            self._control.set_view(self._membership.view)  # ranks with a process group wait for this

    def _on_report(self, rank: _Rank, request: int, values: dict[str, Any]) -> None:
        # A rank that takes over for a lost one repeats its last request.
        if request <= self._answered:
            return
        is_new, self._asked = self._asked is None, (request, rank.number)
        if not is_new:
            return
        if request <= self.reports_made:  # by an earlier attempt
            self._answer("CONTINUE")
            return
        self.reports_made = request
        try:
            self._reported = begin_report(values)
        except Exception as error:
            self._answer(error)
            return
        self._check_decision(_POLL_S)

    def _check_decision(self, within_s: float) -> None:
        """Answer the report if it is decided. Does not wait longer, because a process may die or hang meanwhile."""
        if self._asked is None:
            return
        try:
            reply = Reply() if self._reported is None else self._reported.reply(within_s)
        except TrialStopped:
            self._answer("STOP")
        except Exception as error:
            self._answer(error)
        else:
            if reply is not None:
                self._answer("STOP" if reply.ends else "CONTINUE")

    def _answer(self, answer: str | Exception) -> None:
        assert self._asked is not None, "a report waits"
        request, _ = self._asked
        self._asked = self._reported = None
        self._stragglers = StragglerDetector()  # the rank was not late, it waited for this answer
        self._control.put(SUPERVISOR, request % 2, pack(answer))
        self._answered = request
        self._control.set_answered(request)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _check_failures(self) -> None:
        """Raise the first error that any rank has sent. Return if no rank has."""
        if not any(rank.failure for rank in self._ranks.values()):
            return
        until_s = time.monotonic() + _ERRORS_S
        while (left_s := until_s - time.monotonic()) > 0:
            self._receive(left_s)
        first = self._first_failed()
        if first.failure is not None and first.failure.is_lost_peer:
            self._find_lost_peer()
            first = self._first_failed()
        assert first.failure is not None, "this rank has failed"
        self.is_lost = first.failure.is_lost_peer
        if self.is_lost and any(rank.is_stopped for rank in self._ranks.values()):
            raise TrialStopped("the run was stopped")
        error = unpack_error(first.failure.packed)
        error.add_note(f"in {self._describe(first)}{first.job.output()}")
        raise error

    def _first_failed(self) -> _Rank:
        """Return the rank with the first error. A lost connection counts only if there is no other error."""
        failed = [(rank.failure.is_lost_peer, rank.failure.at_s, rank) for rank in self._ranks.values() if rank.failure]
        return min(failed, key=lambda failure: failure[:2])[2]

    def _find_lost_peer(self) -> None:
        """Raise WorkerLostError if a rank is gone. Return if one has failed or stopped instead, or after 5 s."""
        until_s = time.monotonic() + _CAUSE_S
        ranks = self._ranks.values()
        while time.monotonic() < until_s and not any(rank.is_stopped for rank in ranks):
            if any(rank.failure is not None and not rank.failure.is_lost_peer for rank in ranks):
                return
            self._receive(_POLL_S)
            for rank in self._living():
                if rank.failure is None and rank.is_gone():
                    self._receive_from(rank)
                    if rank.failure is None and not rank.is_stopped:
                        self._on_end(rank)

    def _living(self) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if not rank.is_over]

    def _rank_statuses(self) -> list[RankStatus]:
        return [
            RankStatus(
                rank.number,
                rank.pid,
                (rank.device,),
                "lost" if rank.is_over else "hangs" if rank.hung else "running" if rank.pid else "starting",
            )
            for rank in self._ranks.values()
        ]

    def _describe(self, rank: _Rank) -> str:
        on = f" on {rank.device}" if self._settings.gpus else ""
        return f"rank {rank.number} of {self._count} (pid {rank.pid}){on}"

    def _on_end(self, rank: _Rank) -> None:
        """Handle the end of a process, all of whose messages were handled."""
        self._set_over(rank)
        job, ranks = rank.job, self._ranks.values()
        if rank.returned and job.error is None:
            raise _Result(job.value)
        if job.error is not None and not isinstance(job.error, WorkerLostError):
            job.error.add_note(f"in {self._describe(rank)}{job.output()}")
            raise job.error
        if any(one.is_stopped for one in ranks):
            if all(one.is_over for one in ranks):
                raise TrialStopped("the run was stopped")
        elif rank.returned is None or job.error is not None:
            self._on_loss(rank, str(job.error or "left the run before its end"))

    def _on_loss(self, rank: _Rank, reason: str) -> None:
        text = rank.hung or f"{self._describe(rank)} {reason}"
        if not self._settings.survives_losses:
            self._end_as_lost(f"{text}\n{self._why_it_ends()}")
        if not rank.hung:  # a hang was counted when the process was killed
            self._count_death("death", text)
        self._obey(self._membership.lost(rank.number))
        if not self._membership.living:
            self._end_as_lost(f"{text}\nNo other process of the run is left.")
        left = len(self._membership.living)
        _log.warning("%s; %d %s over its shards", text, left, "process takes" if left == 1 else "processes take")

    def _end_as_lost(self, text: str) -> NoReturn:
        self.is_lost = True
        raise WorkerLostError(text)

    def _why_it_ends(self) -> str:
        if self._settings.backend == "shared memory":
            return "on_loss='stop' ends the run with it."
        return "The run ends with it: a process group does not survive the loss of a process."

    def _count_death(self, kind: str, text: str) -> None:
        """End the run if processes die, or hang, again and again in one step. Otherwise it would repeat it forever."""
        last_exchange = max(self._control.arrived(rank)[1] for rank in range(self._count))
        self._deaths[kind, last_exchange] += 1
        if (count := self._deaths[kind, last_exchange]) >= (_MAX_HANGS if kind == "hang" else _MAX_DEATHS):
            self._end_as_lost(
                f"{text}\n{count} {'hangs' if kind == 'hang' else 'processes died'} without one finished step between "
                f"them, so the work of the step is the likely cause. Run it on one device to see where: devices=1."
            )

    # -- queues and hangs ------------------------------------------------------------------------------------------

    def _warn_of_queue(self) -> None:
        """Warn once if processes of the run have not begun, because the pool has no free CPUs or GPUs."""
        if not self._may_warn_of_queue or time.monotonic() - self._began_s < _QUEUED_S:
            return
        self._may_warn_of_queue = False
        if queued := sum(rank.job.is_queued() for rank in self._living()):
            _log.warning(
                "%d of %d processes of the run wait for a place: the pool has %d CPUs, and other jobs or runs hold "
                "them.\nThe run begins when these end. For all at once: a pool with more cpus=, or fewer devices= for "
                "each.",
                queued,
                self._count,
                self._pool.machine.cpus,
            )

    def _check_hangs(self) -> None:
        """Find the processes for which the others wait. Kill them if the run can continue without them."""
        now_s = time.monotonic()
        for rank in self._living():
            if rank.hung and now_s - rank.killed_s > _DYING_S:
                # The kernel does not end it, but it executes no more instructions.
                self._set_over(rank)
                self._on_loss(rank, rank.hung)
        stragglers = self._stragglers.update(now_s, *self._progress())
        timeout_s = self._settings.step_timeout_s
        if timeout_s is None:
            for number in stragglers.ranks if stragglers.should_warn else ():
                _log.warning(
                    "%s\nThe run waits, because no step_timeout_s= was given.", self._describe_hang(number, stragglers)
                )
            return
        hung = [
            rank
            for rank in stragglers.ranks
            if stragglers.late_s >= limit_s(timeout_s, has_stepped=self._ranks[rank].has_stepped)
        ]
        if hung:
            self._on_hang(hung, stragglers, timeout_s)

    def _progress(self) -> tuple[int, dict[int, int], set[int]]:
        """Return the arguments of `StragglerDetector.update`."""
        membership, control = self._membership, self._control
        ranks = [self._ranks[number] for number in membership.living]
        # While a rank waits in the pool's queue, or a killed one has not ended, no other rank is to blame.
        if any(rank.pidfd < 0 or (rank.hung and not rank.is_over) for rank in ranks):
            return membership.view, {}, set()
        numbers = [rank.number for rank in ranks if not rank.is_over]
        if membership.is_changing:
            acknowledged = {number: int(control.acknowledged(number) == membership.view) for number in numbers}
            return membership.view, acknowledged, set()
        arrived = {number: control.arrived(number) for number in numbers}
        progress = {number: seq if view == membership.view else -1 for number, (view, seq) in arrived.items()}
        if self._asked is not None and (asked_at := progress.pop(self._asked[1], None)) is not None:
            # The rank that reports waits for a decision, and the ranks ahead wait for that rank.
            progress = {number: seq for number, seq in progress.items() if seq <= asked_at}
        return membership.view, progress, {number for number in numbers if control.is_idle(number)}

    def _on_hang(self, hung: Sequence[int], stragglers: Stragglers, timeout_s: float) -> None:
        texts = {
            number: f"{self._describe_hang(number, stragglers)}\nstep_timeout_s={timeout_s:g} has passed"
            for number in hung
        }
        for number, text in texts.items():
            self._ranks[number].hung = text
        if not self._settings.survives_losses:
            self._end_as_lost("\n".join(f"{text}.\n{self._why_it_ends()}" for text in texts.values()))
        joined = "\n".join(f"{text}." for text in texts.values())
        if set(hung) >= self._membership.living:
            self._end_as_lost(f"{joined}\nNo other process of the run is left.")
        self._count_death("hang", joined)
        for number, text in texts.items():
            rank = self._ranks[number]
            rank.hung, rank.killed_s = f"{text}, and it was killed", time.monotonic()
            rank.kill()

    def _describe_hang(self, number: int, stragglers: Stragglers) -> str:
        rank, count = self._ranks[number], stragglers.num_waiting
        waiting = "no other process waits for it yet"
        if count:
            waiting = "1 process waits for it" if count == 1 else f"{count} processes wait for it"
        return (
            f"{self._describe(rank)} hangs: for {stragglers.late_s:.1f} s it has not come to the next exchange of the "
            f"run, and {waiting}.\n{describe_process(rank.pid, rank.stacks, rank.send_signal)}"
        )

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if not isinstance(order, Pause):
                self._control.decide(order.view, order.members, order.committed)
            self._control.set_view(order.view)

    # -- the end of the run ----------------------------------------------------------------------------------------

    def _wait_for_ends(self, within_s: float) -> None:
        """Handle messages until all processes have ended, or for this time."""
        until_s = time.monotonic() + within_s
        while self._living() and time.monotonic() < until_s:
            self._receive(_POLL_S)
            for rank in self._living():
                if rank.is_gone():
                    self._receive_from(rank)
                    self._set_over(rank)

    def _end_all(self, grace_s: float) -> None:
        self._control.end(FAILED, self._count)
        try:
            self._wait_for_ends(grace_s)
            self._wait_for_checkpoints()
        finally:
            for rank in self._living():
                rank.kill()
            self._wait_for_ends(_DYING_S)
            for rank in self._ranks.values():
                rank.close()
            self._control.clear()  # an error that the program keeps refers to this object, and so to the memory
            self._memory.close()
            self._store = None

    def _wait_for_checkpoints(self) -> None:
        until_s = time.monotonic() + _SAVING_S
        while writing := [r for r in self._living() if not r.hung and self._control.is_writing(r.number)]:
            if time.monotonic() > until_s:
                for rank in writing:
                    _log.warning(
                        "%s has not written its last checkpoint within %g s after the run had failed, and is killed. "
                        "The file stays as it was before.",
                        self._describe(rank),
                        _SAVING_S,
                    )
                return
            self._wait_for_ends(_POLL_S)

    def _set_over(self, rank: _Rank) -> None:
        rank.is_over = True
        self._poll.unregister(rank.receiver.fd)
        if rank.pidfd >= 0:
            self._poll.unregister(rank.pidfd)

"""The supervisor of a run on this machine: it starts the ranks, trains nothing, and outlives them.

    Supervisor(pool, train, settings).run() --> what `train` returns in the first rank, or the first error

It sees deaths through pidfds, and failures as messages on a pipe, so it raises the error of the rank that failed first,
in its own type. When `run` returns or raises, all processes of the run have ended. The shared memory ends with them.
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
from ..progress import RankStatus, StatusScreen, function_name, open_screen
from .jobs import Ended, RankJob
from .membership import Membership, Order, Pause
from .settings import Settings
from .worker import Channels, RankTask, main

_log = logging.getLogger(__name__)

_POLL_S = 0.05
# Time for the other ranks to fail too. The first error counts.
_ECHO_S = 0.1
# Time to see what ended the rank whose lost connection the others report.
_CAUSE_S = 5.0
# Time for the `finally` blocks of a stopped training function.
_GRACE_S = 2.0
# Time for checkpoints that were requested before the run failed.
_SAVING_S = 30.0
# Time for killed processes to end.
_DYING_S = 10.0
# Number of deaths without a finished step between them from which on they are blamed on the work.
_MAX_DEATHS = {"crash": 2, "kill": 4, "hang": 2}

# Time until a warning that processes wait for places of the pool. Inside a job this can only be guessed.
_QUEUED_S = 2.0
_MAYBE_QUEUED_S = 20.0

# A pool serves requests in order. The jobs of one run are submitted together, because two runs that each had a part of
# their processes would wait for each other forever.
_starting = threading.Lock()


@dataclass(slots=True, eq=False)
class _Failure:
    """An error of a rank. `is_lost_peer`: it has only lost the connection to another one."""

    is_lost_peer: bool
    at_s: float
    packed: bytes


@dataclass(slots=True, eq=False)
class _Rank:
    """One process.

    Attributes:
        pidfd: -1 until the process has said where it is.
        gpu: its name for people; empty on CPUs.
        hung: the message with which it was killed because it hung; empty: it was not.
        has_returned: its training function has. is_first: its result is that of the run.
    """

    number: int
    job: RankJob
    receiver: MessageReceiver
    stacks: StackFile
    pidfd: int = -1
    pid: int = 0
    gpu: str = ""
    is_over: bool = False
    has_stepped: bool = False
    hung: str = ""
    killed_s: float = 0.0
    has_returned: bool = False
    is_first: bool = False
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
            self.send(signal.SIGKILL)
        else:
            self.job.kill()

    def send(self, number: int) -> None:
        """Send a signal, once the process has said where it is."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        self.receiver.close()
        self.stacks.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


class _Result(Exception):
    def __init__(self, value: Any) -> None:  # Any: the user's result
        super().__init__()
        self.value = value


class Supervisor:
    """See the module.

    Attributes:
        is_lost: `run` raised WorkerLostError because processes were lost, so the run may start again.
        checkpoint: the last one that is on the disk; None: there is none.
        reports_made: reports that were made so far.
    """

    def __init__(self, pool: Pool, train: Callable[[Run], Any], settings: Settings) -> None:  # Any: its result
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
        self._store: Any = None  # Any: a TCPStore, which torch has not annotated
        if settings.backend != "shared memory":
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ranks: dict[int, _Rank] = {}
        self._views = Membership(tuple(range(self._count)), self._control.arrived)
        self._stragglers = StragglerDetector()
        self._began_s = time.monotonic()
        self._is_placed = False
        self._deaths: Counter[tuple[str, int]] = Counter()
        self._asked: tuple[int, int] | None = None  # the report that is to be decided: its number, and the rank
        self._reported: Reported | None = None
        self._answered = 0
        self._poll = select.poll()
        self._screen = StatusScreen(open_screen(settings.progress, notice=settings.notice), self._shown_ranks)
        self._switches = read_settings()

    def _check_lease(self) -> None:
        """Raise LeaseError if the processes can never all run at once: those that do would wait forever."""
        threads, cpus = self._settings.threads, self._pool.machine.cpus
        if self._count * threads > cpus:
            raise LeaseError(
                f"{self._count} processes, threads={threads}, need {self._count * threads} CPUs at once, and "
                f"{'this job' if in_job() else 'the pool'} has {cpus}.\n"
                f"Give fewer devices, or let several share a process: processes={max(1, cpus // threads)}."
            )

    def run(self) -> Any:  # Any: the user's result
        """Block until the run is over.

        Raises:
            WorkerLostError: processes were lost, and the run cannot continue. TrialStopped: it was stopped. The first
            error of the training function in any rank.
        """
        grace_s = 0.0
        try:
            self._control.decide(self._views.view, self._views.members, 0)
            if self._store is None:
                self._control.set_view(self._views.view)
            with _starting:
                for number in range(self._count):
                    self._start(number)
            self._until_over()
        except _Result as result:
            grace_s = _GRACE_S
            return result.value
        except TrialStopped:
            self._control.end(STOPPED, self._count)
            self._let_end(_GRACE_S)
            raise
        finally:
            self._end_all(grace_s)

    def _start(self, number: int) -> None:
        settings, receiver, stacks = self._settings, MessageReceiver(), StackFile.create()
        progress_s = self._screen.first_s, self._screen.every_s
        task = RankTask(settings, number, progress_s, function_name(self._train), self._switches)
        store_port = None if self._store is None else self._store.port
        channels = Channels(self._memory.path, receiver.path, stacks.path, store_port)
        try:
            needs = self._pool.needs(cpus=settings.threads, gpus=settings.gpus)
            handle = needs.submit(main, self._train, task, channels)
        except BaseException:
            receiver.close()
            stacks.close()
            raise
        self._ranks[number] = _Rank(number, RankJob(handle), receiver, stacks)
        self._poll.register(receiver.fd, select.POLLIN)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _until_over(self) -> NoReturn:
        while True:
            self._listen(_POLL_S if self._asked is None else 0)
            self._look_for_decision(_POLL_S)
            self._look_for_failures()
            self._look_for_ends()
            self._look_for_places()
            self._look_for_hangs()

    def _look_for_ends(self) -> None:
        for rank in list(self._ranks.values()):
            if not rank.is_over and rank.is_gone():
                self._listen_to(rank)
                self._look_for_failures()
                self._over(rank)

    def _listen(self, within_s: float) -> None:
        """Receive messages, and wait a little for them."""
        fds = {fd for fd, _ in self._poll.poll(within_s * 1000)}
        for rank in self._ranks.values():
            if rank.receiver.fd in fds:
                self._listen_to(rank)

    def _listen_to(self, rank: _Rank) -> None:
        for name, *content in rank.receiver.read():
            match name:
                case "here":
                    self._is_here(rank, *content)
                case "out" | "err":
                    stream = sys.stdout if name == "out" else sys.stderr
                    stream.write(content[0])
                    stream.flush()
                case "progress":
                    self._screen.show(content[0])
                case "agreed":
                    self._obey(self._views.agreed(rank.number, content[0]))
                case "report":
                    self._report(rank, *content)
                case "checkpoint":
                    self.checkpoint = content[0]
                case "failed":
                    rank.failure = _Failure(*content)
                case "stopped":
                    rank.is_stopped = True
                    self._control.end(STOPPED, self._count)  # stops the others, wherever they wait
                case "returns":
                    rank.has_returned, rank.is_first = True, content[0]
                case "stepped":
                    rank.has_stepped = True

    def _is_here(self, rank: _Rank, pid: int, gpus: Sequence[str]) -> None:
        names = dict(self._settings.gpu_names)
        rank.gpu = " ".join(names.get(visible, visible) for visible in gpus)
        with suppress(ProcessLookupError):
            rank.pidfd, rank.pid = os.pidfd_open(pid), pid
            self._poll.register(rank.pidfd, select.POLLIN)
        if len(self._ranks) == self._count and all(rank.pid for rank in self._ranks.values()):
            self._control.set_view(self._views.view)  # lets ranks with a process group meet

    def _report(self, rank: _Rank, request: int, values: dict[str, Any]) -> None:  # Any: numbers
        """Report for all, once: a second request of the same number comes from a rank that took over for a lost one."""
        if request <= self._answered:
            return
        is_new, self._asked = self._asked is None, (request, rank.number)
        if not is_new:
            return
        if request <= self.reports_made:  # by an attempt before this one
            self._answer("CONTINUE")
            return
        self.reports_made = request
        try:
            self._reported = begin_report(values)
        except Exception as error:
            self._answer(error)
            return
        self._look_for_decision(_POLL_S)

    def _look_for_decision(self, within_s: float) -> None:
        """The submitter of this job may take its time to decide; meanwhile a process may die, or hang."""
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
        assert self._asked is not None, "it was asked for"
        request, _ = self._asked
        self._asked = self._reported = None
        self._stragglers = StragglerDetector()  # the rank that asked was waiting for this process
        self._control.put(SUPERVISOR, request % 2, pack(answer))
        self._answered = request
        self._control.set_answered(request)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _look_for_failures(self) -> None:
        """Raise the error of a rank; of several, the first."""
        if not any(rank.failure for rank in self._ranks.values()):
            return
        until_s = time.monotonic() + _ECHO_S
        while (left_s := until_s - time.monotonic()) > 0:
            self._listen(left_s)
        first = self._first_failure()
        if first.failure is not None and first.failure.is_lost_peer:
            self._find_lost_peer()
            first = self._first_failure()
        assert first.failure is not None, "only ranks that have failed"
        self.is_lost = first.failure.is_lost_peer
        if self.is_lost and any(rank.is_stopped for rank in self._ranks.values()):
            raise TrialStopped("the run was stopped")
        error = unpack_error(first.failure.packed)
        error.add_note(self._where(first) + first.job.output())
        raise error

    def _first_failure(self) -> _Rank:
        """Prefer a rank whose error is not the consequence of a lost connection."""
        failed = [(rank.failure.is_lost_peer, rank.failure.at_s, rank) for rank in self._ranks.values() if rank.failure]
        return min(failed, key=lambda failure: failure[:2])[2]

    def _find_lost_peer(self) -> None:
        """Raise WorkerLostError for the rank that is gone. Return if another one has failed or stopped, or none has."""
        until_s = time.monotonic() + _CAUSE_S
        ranks = self._ranks.values()
        while time.monotonic() < until_s and not any(rank.is_stopped for rank in ranks):
            if any(rank.failure is not None and not rank.failure.is_lost_peer for rank in ranks):
                return
            self._listen(_POLL_S)
            for rank in self._living():
                if rank.failure is None and rank.is_gone():
                    self._listen_to(rank)
                    if rank.failure is None and not rank.is_stopped:
                        self._over(rank)

    def _living(self) -> list[_Rank]:
        return [rank for rank in self._ranks.values() if not rank.is_over]

    def _where(self, rank: _Rank) -> str:
        return f"in {self._describe(rank)}"

    def _shown_ranks(self) -> list[RankStatus]:
        """The processes for other programs, such as the board."""
        shown = []
        for rank in self._ranks.values():
            state = "lost" if rank.is_over else "hangs" if rank.hung else "running" if rank.pid else "starting"
            devices = (rank.gpu,) if rank.gpu else self._settings.devices[rank.number]
            shown.append(RankStatus(rank.number, rank.pid, devices, state))
        return shown

    def _describe(self, rank: _Rank) -> str:
        on = f" on {rank.gpu}" if rank.gpu else ""
        return f"rank {rank.number} of {self._count} (pid {rank.pid}){on}"

    def _over(self, rank: _Rank) -> None:
        """Its process has ended, and all its messages were received."""
        rank.is_over = True
        self._silence(rank)
        ended = rank.job.ended()
        if rank.is_first and ended.is_returned:
            raise _Result(ended.value)
        if ended.error is not None and not ended.is_lost:
            ended.error.add_note(self._where(rank) + rank.job.output())
            raise ended.error
        ranks = self._ranks.values()
        if any(one.is_stopped for one in ranks):
            if all(one.is_over for one in ranks):
                raise TrialStopped("the run was stopped")
            return
        if rank.has_returned and ended.is_returned:
            return
        self._lost(rank, ended)

    def _lost(self, rank: _Rank, ended: Ended) -> None:
        text = rank.hung or f"{self._describe(rank)} {ended.text or 'left the run before its end'}"
        if not self._settings.survives_losses:
            self._end_as_lost(f"{text}\n{self._why_it_ends()}")
        if not rank.hung:  # else this was done when it was killed
            self._check_deaths(text, "crash" if ended.is_crash else "kill")
        self._obey(self._views.lost(rank.number))
        if not self._views.living:
            self._end_as_lost(f"{text}\nNo other process of the run is left.")
        left = len(self._views.living)
        _log.warning("%s; %d %s over its shards", text, left, "process takes" if left == 1 else "processes take")

    def _end_as_lost(self, text: str) -> NoReturn:
        self.is_lost = True
        raise WorkerLostError(text)

    def _why_it_ends(self) -> str:
        if self._settings.backend == "shared memory":
            return "on_loss='stop' ends the run with it."
        return "The run ends with it: a process group does not survive the loss of a process."

    def _check_deaths(self, text: str, kind: str) -> None:
        """End the run if processes die again and again in the same place, which would never end."""
        place = max(self._control.arrived(rank)[1] for rank in range(self._count))
        self._deaths[kind, place] += 1
        if self._deaths[kind, place] >= _MAX_DEATHS[kind]:
            self._end_as_lost(
                f"{text}\n{self._deaths[kind, place]} {'hangs' if kind == 'hang' else 'processes died'} without one "
                f"finished step between them, so it is the work that {'hangs' if kind == 'hang' else 'kills'}. Run it "
                f"on one device to see where: devices=1."
            )

    # -- places and hangs ------------------------------------------------------------------------------------------

    def _look_for_places(self) -> None:
        """Warn once, at the beginning, if the run waits for others that use the pool."""
        if self._is_placed:
            return
        missing = [rank for rank in self._living() if rank.pidfd < 0]
        queued = [rank.job.is_queued() for rank in missing]  # inside a job, None: unknown
        waited_s = time.monotonic() - self._began_s
        self._is_placed = not missing
        if (True in queued and waited_s >= _QUEUED_S) or (None in queued and waited_s >= _MAYBE_QUEUED_S):
            self._is_placed = True
            _log.warning(
                "%d of %d processes of the run %s a place: the pool has %d CPUs, and other jobs or runs hold them.\n"
                "The run begins when these end. For all at once: a pool with more cpus=, or fewer devices= for each.",
                queued.count(True) or len(missing),
                self._count,
                "wait for" if True in queued else f"have not begun for {waited_s:.0f} s, perhaps for lack of",
                self._pool.machine.cpus,
            )

    def _look_for_hangs(self) -> None:
        """Name the process for which the others wait, and end it if the run can continue without it."""
        now_s = time.monotonic()
        for rank in self._living():
            if rank.hung and now_s - rank.killed_s > _DYING_S:
                # It is dying in the kernel, and will not run another instruction.
                rank.is_over = True
                self._silence(rank)
                self._lost(rank, Ended(text=rank.hung))
        late = self._stragglers.update(now_s, *self._places())
        limit = self._settings.step_timeout_s
        if limit is not None:
            hung = [rank for rank in late.ranks if late.late_s >= self._limit_s(rank, limit)]
            if hung:
                self._hang(hung, late, limit)
        elif late.should_warn:
            for number in late.ranks:
                _log.warning(
                    "%s\nThe run waits, because no step_timeout_s= was given.", self._describe_hang(number, late)
                )

    def _limit_s(self, number: int, limit: float) -> float:
        return limit_s(limit, has_stepped=self._ranks[number].has_stepped)

    def _places(self) -> tuple[int, dict[int, int], set[int]]:
        """Return the view, the turn of each rank in it, and the ranks that wait for something else."""
        views, control = self._views, self._control
        ranks = [self._ranks[number] for number in views.living]
        # A rank that has not begun waits for a place in the pool. The others still wait for one that was killed
        # because it hung, and nobody is to blame for that.
        if any(rank.pidfd < 0 or (rank.hung and not rank.is_over) for rank in ranks):
            return views.view, {}, set()
        numbers = [rank.number for rank in ranks if not rank.is_over]
        if views.is_changing:
            return views.view, {number: int(control.agreed(number) == views.view) for number in numbers}, set()
        arrived = {number: control.arrived(number) for number in numbers}
        places = {number: turn if view == views.view else -1 for number, (view, turn) in arrived.items()}
        if self._asked is not None and (place := places.pop(self._asked[1], None)) is not None:
            # It waits for a decision, and ranks that are further wait for it.
            places = {number: turn for number, turn in places.items() if turn <= place}
        return views.view, places, {number for number in numbers if control.is_idle(number)}

    def _hang(self, hung: Sequence[int], late: Stragglers, limit: float) -> None:
        texts = {number: f"{self._describe_hang(number, late)}\nstep_timeout_s={limit:g} has passed" for number in hung}
        for number, text in texts.items():
            self._ranks[number].hung = text
        if not self._settings.survives_losses:
            self._end_as_lost("\n".join(f"{text}.\n{self._why_it_ends()}" for text in texts.values()))
        if set(hung) >= self._views.living:
            joined = "\n".join(f"{text}." for text in texts.values())
            self._end_as_lost(f"{joined}\nNo other process of the run is left.")
        self._check_deaths("\n".join(texts.values()) + ".", "hang")
        for number, text in texts.items():
            rank = self._ranks[number]
            rank.hung, rank.killed_s = f"{text}, and it was killed", time.monotonic()
            rank.kill()

    def _describe_hang(self, number: int, late: Stragglers) -> str:
        rank = self._ranks[number]
        waiting = "no other process waits for it yet"
        if late.num_waiting:
            waiting = "1 process waits for it" if late.num_waiting == 1 else f"{late.num_waiting} processes wait for it"
        return (
            f"{self._describe(rank)} hangs: for {late.late_s:.1f} s it has not come to the next exchange of the run, "
            f"and {waiting}.\n{describe_process(rank.pid, rank.stacks, rank.send)}"
        )

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if not isinstance(order, Pause):
                self._control.decide(order.view, order.members, order.committed)
            self._control.set_view(order.view)

    # -- the end of all --------------------------------------------------------------------------------------------

    def _let_end(self, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while self._living() and time.monotonic() < until_s:
            self._listen(_POLL_S)
            for rank in self._living():
                if rank.is_gone():
                    self._listen_to(rank)
                    rank.is_over = True
                    self._silence(rank)

    def _end_all(self, grace_s: float) -> None:
        self._control.end(FAILED, self._count)
        try:
            self._let_end(grace_s)
            self._let_save()
        finally:
            for rank in self._living():
                rank.kill()
            self._let_end(_DYING_S)
            for rank in self._ranks.values():
                rank.close()
            self._control.clear()  # else an error that somebody keeps would hold the memory
            self._memory.close()
            self._store = None
            self._screen.close()

    def _let_save(self) -> None:
        """Wait for the checkpoints that any rank had come to when the run failed.

        All ranks come to the same ones, and the first one writes them, so it must come to as many as the others.
        """
        until_s = time.monotonic() + _SAVING_S
        while saving := self._saving():
            if time.monotonic() > until_s:
                for rank in saving:
                    _log.warning(
                        "%s has not written its last checkpoint within %g s after the run had failed, and is "
                        "killed: the file stays as it was before.",
                        self._describe(rank),
                        _SAVING_S,
                    )
                return
            self._let_end(_POLL_S)

    def _saving(self) -> list[_Rank]:
        """The ranks that write checkpoints, or must still come to one, unless they hang or are gone."""
        control, first = self._control, self._views.members[0]
        saves = max(map(control.saves, range(self._count)))
        return [
            rank
            for rank in self._living()
            if not rank.hung
            and (control.is_writing(rank.number) or (rank.number == first and control.saves(first) < saves))
        ]

    def _silence(self, rank: _Rank) -> None:
        self._poll.unregister(rank.receiver.fd)
        if rank.pidfd >= 0:
            self._poll.unregister(rank.pidfd)

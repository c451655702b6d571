"""The process that starts the others and outlives them: it sees deaths, changes views, and takes messages.

    Supervisor(pool, train, settings).run() --> what train returns in the first process, or the error that came first

It does no training. Deaths come as the end of a process (pidfd), failures as a message on its pipe before the process
ends, so the error that is raised is that of the rank that failed first, in its original type. Whatever happens, when
`run` returns or raises, every process of the run is gone; the memory goes with the last of them.
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

from ...base.errors import LeaseError, TrialStopped, WorkerLostError
from ...links.codec import unpack_error
from ...pool import Pool
from ...pool.contract import Reply
from ...pool.current import Reported, in_job
from ...pool.reporting import begin_report
from ..context import Run
from ..hangs.stack_dump import StackFile, describe_process
from ..hangs.stragglers import StragglerDetector, Stragglers, limit_s
from ..process_settings import torch_settings
from ..progress import function_name, open_screen
from ..run_status import RankStatus, StatusScreen
from ..shared_memory.control_block import FAILED, STOPPED, SUPERVISOR, ControlBlock
from ..shared_memory.memory import SharedMemory
from ..shared_memory.pipes import MessageReceiver
from ..shared_memory.team import pack
from .jobs import Ended, RankJob
from .membership import Membership, Order, Pause
from .ranks import Orders, main
from .settings import Settings

_log = logging.getLogger(__name__)

_LOOK_S = 0.05
# What the others get to say why they failed too, when one has: the earliest is the cause.
_ECHO_S = 0.1
# What a stopped training function gets for its `finally`.
_GRACE_S = 2.0
# What checkpoints get that were asked for before the run failed.
_SAVING_S = 30.0
# What killed processes get to be gone.
_DYING_S = 10.0
# Deaths in one and the same place: by then the work, and not chance, kills.
_MOST_DEATHS = {"crash": 2, "kill": 4, "hang": 2}

# When it is said that processes wait for places of the pool; where that is not known, as inside a job, only guessed.
_QUEUED_S = 2.0
_PERHAPS_QUEUED_S = 20.0

# A pool serves first who comes first. So the jobs of one run come one after another: two runs that each had some of
# their processes, and waited for the places of the other, would wait for ever. As it is, whoever waits waits for a run
# that has all of its places, or for jobs before it, and these end.
_starting = threading.Lock()


@dataclass(slots=True, eq=False)
class _Rank:
    """One process. `pidfd`: -1 until it has said where it is. `gpu`: which, for people; empty on CPUs.

    `has_stepped`: its first step is done. `hung`: what was said when it was killed because it did; empty: it was not.
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
    returns: bool = False
    stopped: bool = False
    failed: tuple[float, bytes] | None = None

    def is_gone(self) -> bool:
        """Whether its process has ended, and the pool knows how."""
        if self.pidfd >= 0:
            looked = select.poll()
            looked.register(self.pidfd, select.POLLIN)
            if not looked.poll(0):
                return False
        return self.job.is_over(is_dead=self.pidfd >= 0)

    def kill(self) -> None:
        if self.pidfd >= 0:
            self.send(signal.SIGKILL)
        else:
            self.job.kill()

    def send(self, number: int) -> None:
        """A signal, once it has said where it is."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        self.receiver.close()
        self.stacks.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


class _Result(Exception):
    """The training function has returned in the first process."""

    def __init__(self, value: Any) -> None:  # Any: what it returned
        super().__init__()
        self.value = value


class Supervisor:
    """See the module."""

    def __init__(self, pool: Pool, train: Callable[[Run], Any], settings: Settings) -> None:  # Any: its result
        self._pool = pool
        self._train = train
        self._settings = settings
        self._count = len(settings.devices)
        self._check_lease()
        self._memory = SharedMemory.create()
        self._control = ControlBlock(self._memory)
        self._ranks: dict[int, _Rank] = {}
        self._views = Membership(tuple(range(self._count)), self._control.arrived)
        self._stalls = StragglerDetector()
        self._began_s = time.monotonic()
        self._is_placed = False
        self._deaths: Counter[tuple[str, int]] = Counter()
        self._asked: tuple[int, int] | None = None  # the report that is to be decided: its number, and who asks
        self._reported: Reported | None = None
        self._answered = 0
        self._poll = select.poll()
        self._screen = StatusScreen(open_screen(settings.progress, notice=settings.notice), self._shown_ranks)
        self._switches = torch_settings.read_settings()

    def _check_lease(self) -> None:
        """Raises LeaseError when the processes could never all be there: those that are would wait for ever."""
        threads, cpus = self._settings.threads, self._pool.machine.cpus
        if self._count * threads > cpus:
            raise LeaseError(
                f"{self._count} processes, threads={threads}, need {self._count * threads} CPUs at once, and "
                f"{'this job' if in_job() else 'the pool'} has {cpus}.\n"
                f"Give fewer devices, or let several share a process: processes={max(1, cpus // threads)}."
            )

    def run(self) -> Any:  # Any: what the training function returns
        """Block until the run is over.

        Raises:
            What the training function raised, in the rank where that happened first; WorkerLostError when processes
            died and the run cannot go on; TrialStopped when it was stopped.
        """
        grace_s = 0.0
        try:
            self._control.decide(self._views.view, self._views.members, 0)
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
        orders = Orders(
            settings=settings,
            memory=self._memory.path,
            pipe=receiver.path,
            stacks=stacks.path,
            rank=number,
            devices=("cuda:0",) if settings.devices[number][0].startswith("cuda") else settings.devices[number],
            drawn=(self._screen.first_s, self._screen.every_s),
            name=function_name(self._train),
            switches=self._switches,
        )
        try:
            needs = self._pool.needs(cpus=settings.threads, gpus=settings.gpus)
            handle = needs.submit(main, self._train, orders)
        except BaseException:
            receiver.close()
            stacks.close()
            raise
        self._ranks[number] = _Rank(number, RankJob(handle), receiver, stacks)
        self._poll.register(receiver.fd, select.POLLIN)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _until_over(self) -> NoReturn:
        while True:
            self._listen(_LOOK_S if self._asked is None else 0)
            self._look_for_decision(_LOOK_S)
            self._look_for_failures()
            for rank in list(self._ranks.values()):
                if not rank.is_over and rank.is_gone():
                    self._listen_to(rank)
                    self._look_for_failures()
                    self._over(rank)
            self._look_for_places()
            self._look_for_hangs()

    def _listen(self, within_s: float) -> None:
        """Take what was said, and wait for it a little."""
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
                case "failed":
                    rank.failed = (content[0], content[1])
                case "stopped":
                    rank.stopped = True
                    self._control.end(STOPPED, self._count)  # so the others are, too, wherever they wait
                case "returns":
                    rank.returns = True
                case "stepped":
                    rank.has_stepped = True

    def _is_here(self, rank: _Rank, pid: int, gpus: Sequence[str]) -> None:
        called = dict(self._settings.called)
        rank.gpu = " ".join(called.get(visible, visible) for visible in gpus)
        with suppress(ProcessLookupError):
            rank.pidfd, rank.pid = os.pidfd_open(pid), pid
            self._poll.register(rank.pidfd, select.POLLIN)

    def _report(self, rank: _Rank, request: int, values: dict[str, Any]) -> None:  # Any: numbers
        """Report for all, once: a second request of the same number comes from one who asks for the dead."""
        if request <= self._answered:
            return
        is_new, self._asked = self._asked is None, (request, rank.number)
        if not is_new:
            return
        try:
            self._reported = begin_report(values)
        except Exception as error:
            self._answer(error)
            return
        self._look_for_decision(_LOOK_S)

    def _look_for_decision(self, within_s: float) -> None:
        """Of the submitter of this job, which may take its time: meanwhile a process may die, or hang."""
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
        self._stalls = StragglerDetector()  # who has asked was waiting for us
        self._control.put(SUPERVISOR, request % 2, pack(answer))
        self._answered = request
        self._control.set_answered(request)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _look_for_failures(self) -> None:
        """Raise what a rank has raised; of several, the first."""
        if not any(rank.failed for rank in self._ranks.values()):
            return
        until_s = time.monotonic() + _ECHO_S
        while (left_s := until_s - time.monotonic()) > 0:
            self._listen(left_s)
        failed = [rank for rank in self._ranks.values() if rank.failed is not None]
        first = min(failed, key=lambda rank: rank.failed or (0.0, b""))
        assert first.failed is not None, "only those"
        error = unpack_error(first.failed[1])
        error.add_note(self._where(first) + first.job.said())
        raise error

    def _where(self, rank: _Rank) -> str:
        return f"in {self._called(rank)}"

    def _shown_ranks(self) -> list[RankStatus]:
        """For those who look from other programs."""
        found = []
        for rank in self._ranks.values():
            state = "lost" if rank.is_over else "hangs" if rank.hung else "running" if rank.pid else "starting"
            devices = (rank.gpu,) if rank.gpu else self._settings.devices[rank.number]
            found.append(RankStatus(rank.number, rank.pid, devices, state))
        return found

    def _called(self, rank: _Rank) -> str:
        on = f" on {rank.gpu}" if rank.gpu else ""
        return f"rank {rank.number} of {self._count} (pid {rank.pid}){on}"

    def _over(self, rank: _Rank) -> None:
        """Its process is gone, and it was heard to the end."""
        rank.is_over = True
        self._silence(rank)
        ended = rank.job.ended()
        if rank.returns and ended.is_returned:
            raise _Result(ended.value)
        if ended.error is not None and not ended.is_lost:
            ended.error.add_note(self._where(rank) + rank.job.said())
            raise ended.error
        if any(other.stopped for other in self._ranks.values()):
            if all(other.is_over for other in self._ranks.values()):
                raise TrialStopped("the run was stopped")
            return
        self._lost(rank, ended)

    def _lost(self, rank: _Rank, ended: Ended) -> None:
        text = rank.hung or f"{self._called(rank)} {ended.text or 'left the run before its end'}"
        if self._settings.on_loss == "stop":
            raise WorkerLostError(f"{text}\non_loss='stop' ends the run with it.")
        if not rank.hung:  # else it was looked at when it was killed
            self._check_place(text, "crash" if ended.is_crash else "kill")
        self._obey(self._views.lost(rank.number))
        if not self._views.living:
            raise WorkerLostError(f"{text}\nNo other process of the run is left.")
        left = len(self._views.living)
        _log.warning("%s; %d %s over its shards", text, left, "process takes" if left == 1 else "processes take")

    def _check_place(self, text: str, kind: str) -> None:
        """What dies again and again in the same place would do so for ever."""
        place = max(self._control.arrived(rank)[1] for rank in range(self._count))
        self._deaths[kind, place] += 1
        if self._deaths[kind, place] >= _MOST_DEATHS[kind]:
            raise WorkerLostError(
                f"{text}\n{self._deaths[kind, place]} {'hangs' if kind == 'hang' else 'processes died'} without one "
                f"finished step between them, so it is the work that {'hangs' if kind == 'hang' else 'kills'}. Run it "
                f"on one device to see where: devices=1."
            )

    # -- places and hangs ------------------------------------------------------------------------------------------

    def _look_for_places(self) -> None:
        """Say once, at the beginning, that the run waits for others that use the pool."""
        if self._is_placed:
            return
        missing = [rank for rank in self._ranks.values() if rank.pidfd < 0 and not rank.is_over]
        waited_s = time.monotonic() - self._began_s
        queued = [rank.job.is_queued() for rank in missing]
        self._is_placed = not missing
        cpus = self._pool.machine.cpus
        if True in queued and waited_s >= _QUEUED_S:
            self._is_placed = True
            _log.warning(
                "%d of %d processes of the run wait for a place: the pool has %d CPUs, and other jobs or runs hold "
                "them.\nThe run begins when these end. For all at once: a pool with more cpus=, or fewer devices= for "
                "each.",
                queued.count(True),
                self._count,
                cpus,
            )
        elif None in queued and waited_s >= _PERHAPS_QUEUED_S:
            self._is_placed = True
            _log.warning(
                "%d of %d processes of the run have not begun for %.0f s. Either other jobs of this job hold its %d "
                "CPUs, and the run begins when these end; or processes are slow to start.",
                len(missing),
                self._count,
                waited_s,
                cpus,
            )

    def _look_for_hangs(self) -> None:
        """Name whom the others wait for, and end it when the run is to go on without it."""
        now_s = time.monotonic()
        for rank in list(self._ranks.values()):
            if rank.hung and not rank.is_over and now_s - rank.killed_s > _DYING_S:
                # The kernel holds it, and its end is pending: no instruction of it will run.
                rank.is_over = True
                self._silence(rank)
                self._lost(rank, Ended(text=rank.hung))
        late = self._stalls.update(now_s, *self._places())
        limit = self._settings.step_timeout_s
        if limit is not None:
            hung = [rank for rank in late.ranks if late.late_s >= self._limit_s(rank, limit)]
            if hung:
                self._hang(hung, late, limit)
        elif late.should_warn:
            for number in late.ranks:
                _log.warning("%s\nThe run waits, because no step_timeout_s= was given.", self._hanging(number, late))

    def _limit_s(self, number: int, limit: float) -> float:
        return limit_s(limit, has_stepped=self._ranks[number].has_stepped)

    def _places(self) -> tuple[int, dict[int, int], set[int]]:
        """Of those that take part: view, how far each has come in it, and who waits for something else."""
        views, control = self._views, self._control
        ranks = [self._ranks[number] for number in views.living]
        if any(rank.pidfd < 0 for rank in ranks):
            return views.view, {}, set()  # one has not begun: it waits for a place in the pool
        # Who was killed because it hung is still waited for by the others, and nobody is to be blamed for that.
        if any(rank.hung and not rank.is_over for rank in ranks):
            return views.view, {}, set()
        numbers = [rank.number for rank in ranks if not rank.is_over]
        if views.is_changing:
            return views.view, {number: int(control.agreed(number) == views.view) for number in numbers}, set()
        arrived = {number: control.arrived(number) for number in numbers}
        places = {number: turn if view == views.view else -1 for number, (view, turn) in arrived.items()}
        if self._asked is not None and (place := places.pop(self._asked[1], None)) is not None:
            # It waits for a decision, and whoever has come further waits for it.
            places = {number: its for number, its in places.items() if its <= place}
        return views.view, places, {number for number in numbers if control.is_idle(number)}

    def _hang(self, hung: Sequence[int], late: Stragglers, limit: float) -> None:
        said = {number: f"{self._hanging(number, late)}\nstep_timeout_s={limit:g} has passed" for number in hung}
        for number, text in said.items():
            self._ranks[number].hung = text
        if self._settings.on_loss == "stop":
            raise WorkerLostError("\n".join(f"{text}; on_loss='stop' ends the run with it." for text in said.values()))
        if set(hung) >= self._views.living:
            each = "\n".join(f"{text}." for text in said.values())
            raise WorkerLostError(f"{each}\nNo other process of the run is left to go on.")
        self._check_place("\n".join(said.values()) + ".", "hang")
        for number, text in said.items():
            rank = self._ranks[number]
            rank.hung, rank.killed_s = f"{text}, and it was killed", time.monotonic()
            rank.kill()

    def _hanging(self, number: int, late: Stragglers) -> str:
        """In words, with what it is doing."""
        rank = self._ranks[number]
        others = "no other process waits for it yet"
        if late.num_waiting:
            others = "1 process waits for it" if late.num_waiting == 1 else f"{late.num_waiting} processes wait for it"
        return (
            f"{self._called(rank)} hangs: for {late.late_s:.1f} s it has not come to the next exchange of the run, and "
            f"{others}.\n{describe_process(rank.pid, rank.stacks, rank.send)}"
        )

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Pause):
                self._control.set_view(order.view)
            else:
                self._control.decide(order.view, order.members, order.committed)
                self._control.set_view(order.view)

    def _let_end(self, within_s: float) -> None:
        """Wait until all ranks are gone."""
        until_s = time.monotonic() + within_s
        while any(not rank.is_over for rank in self._ranks.values()) and time.monotonic() < until_s:
            self._listen(_LOOK_S)
            for rank in self._ranks.values():
                if not rank.is_over and rank.is_gone():
                    self._listen_to(rank)
                    rank.is_over = True
                    self._silence(rank)

    def _end_all(self, grace_s: float) -> None:
        """No process of the run is left after it."""
        self._control.end(FAILED, self._count)
        try:
            self._let_end(grace_s)
            self._let_save()
        finally:
            for rank in self._ranks.values():
                if not rank.is_over:
                    rank.kill()
            self._let_end(_DYING_S)
            for rank in self._ranks.values():
                rank.close()
            self._control.clear()  # an error that somebody keeps would hold the memory else
            self._memory.close()
            self._screen.close()

    def _let_save(self) -> None:
        """Wait until checkpoints are on the disk that any process had come to when the run failed.

        All take the same way, and the first one writes: it comes to as many as another one has come to.
        """
        until_s = time.monotonic() + _SAVING_S
        while late := self._saving():
            if time.monotonic() > until_s:
                for rank in late:
                    _log.warning(
                        "%s has not written its last checkpoint within %g s after the run had failed, and is "
                        "killed: the file stays as it was before.",
                        self._called(rank),
                        _SAVING_S,
                    )
                return
            self._let_end(_LOOK_S)

    def _saving(self) -> list[_Rank]:
        """Those that write checkpoints, or are to come to one. Who hangs, or is gone, is not waited for."""
        control, first = self._control, self._views.members[0]
        saves = max(map(control.saves, range(self._count)))
        return [
            rank
            for rank in self._ranks.values()
            if not (rank.is_over or rank.hung)
            and (control.is_writing(rank.number) or (rank.number == first and control.saves(first) < saves))
        ]

    def _silence(self, rank: _Rank) -> None:
        self._poll.unregister(rank.receiver.fd)
        if rank.pidfd >= 0:
            self._poll.unregister(rank.pidfd)

"""The supervisor of a run whose ranks are on this machine, as jobs of a pool.

It notices deaths through pidfds. Ranks send messages through pipes and get answers through shared memory. CPU ranks
survive the loss of others, and the supervisor decides which ones are members. GPU ranks have a process group.
"""

import logging
import math
import os
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

from ...base.errors import DeadlineExceeded, TrialStopped, WorkerLostError
from ...base.text import counted
from ...pool import Pool
from ...pool.current import NestedHandle, in_job
from ...pool.handles import JobHandle
from ..comm.control_block import SUPERVISOR, ControlBlock
from ..comm.pipes import MessageReceiver
from ..comm.shared_memory import SharedMemory
from ..comm.shm_team import pack
from ..comm.stack_dump import StackFile, describe_process
from ..comm.stragglers import StragglerDetector, Stragglers, limit_s
from ..context import Run
from ..progress import Display
from .membership import Membership, View
from .settings import Settings
from .supervisor import DYING_S, Message, Rank, RunLost, Supervisor
from .worker import main

_log = logging.getLogger(__name__)

_JOB_POLL_S = 0.002  # a `NestedHandle` receives the end of its job only while it waits
_NUM_OUTPUT_LINES = 20
# Number of deaths, or hangs, in one step that end the run, because the work of the step probably causes them.
_MAX_DEATHS = 3
_MAX_HANGS = 2

# A pool serves requests in order. The lock keeps the jobs of one run together. Otherwise two runs could each get only
# some of their processes, and wait for each other forever.
_submitting = threading.Lock()


@dataclass(slots=True, eq=False, kw_only=True)
class LocalRank(Rank):
    handle: JobHandle | NestedHandle  # a job in a pool of this process or, inside a job, in the pool of that job
    receiver: MessageReceiver
    stacks: StackFile
    pidfd: int = -1  # -1 until the process has sent its pid
    killed_s: float = math.inf

    def has_ended(self) -> bool:
        if time.monotonic() - self.killed_s > DYING_S:
            # The kernel does not end it, but it executes no more instructions.
            self.error = WorkerLostError("it was killed, and has not ended")
            return True
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(0):
                return False
        try:
            self.value = self.handle.result(0.0 if self.pidfd < 0 else _JOB_POLL_S)
        except DeadlineExceeded:
            return False
        except TrialStopped as stopped:
            # A job that is killed before it begins raises this. Otherwise this process itself must stop.
            if self.killed_s == math.inf or not self.handle.done():
                raise
            self.error = stopped
        except Exception as error:
            self.error = error
        return True

    def is_queued(self) -> bool:
        return isinstance(self.handle, JobHandle) and self.handle.queued()

    def kill(self) -> None:
        self.killed_s = time.monotonic()
        if self.pidfd >= 0:
            self.send_signal(signal.SIGKILL)
        elif isinstance(self.handle, JobHandle):
            self.handle.kill()
        else:
            self.handle.stop(0.0)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def output(self) -> str:
        if not isinstance(self.handle, JobHandle):
            return ""
        lines = "".join(self.handle.output()).rstrip().split("\n")[-_NUM_OUTPUT_LINES:]
        return "; its last output:\n" + "\n".join(lines) if lines != [""] else ""

    def close(self) -> None:
        self.receiver.close()
        self.stacks.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)


class LocalSupervisor(Supervisor[LocalRank]):
    def __init__(self, pool: Pool, train: Callable[[Run], Any], settings: Settings, display: Display) -> None:
        self._pool = pool
        super().__init__(train, settings, display)
        self._memory = SharedMemory.create()
        self._control = ControlBlock(self._memory)
        self._store: Any = None
        if settings.backend != "shared memory":
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._membership = Membership(tuple(range(self._count)), self._control.arrived)
        self._stragglers = StragglerDetector()
        self._deaths: Counter[tuple[str, int]] = Counter()  # by kind and operation

    def _room(self) -> tuple[int, str]:
        cpus = self._pool.machine.cpus
        return cpus // self._settings.threads, f"{'this job' if in_job() else 'the pool'} has {counted(cpus, 'CPU')}"

    def _start(self) -> None:
        self._control.decide(self._membership.view, self._membership.members, 0)
        if self._store is None:
            self._control.set_view(self._membership.view)
        with _submitting:
            for number in range(self._count):
                self._start_rank(number)

    def _start_rank(self, number: int) -> None:
        settings, receiver, stacks = self._settings, MessageReceiver(), StackFile()
        paths = self._memory.path, receiver.path, stacks.path
        try:
            needs = self._pool.needs(cpus=settings.threads, gpus=settings.gpus)
            handle = needs.submit(main, self._train, self._task(number), *paths, self._store.port if self._store else 0)
        except BaseException:
            receiver.close()
            stacks.close()
            raise
        rank = LocalRank(number=number, count=self._count, handle=handle, receiver=receiver, stacks=stacks)
        rank.gpu = settings.devices[number] if settings.gpus else ""
        self._ranks.append(rank)

    def _messages(self, within_s: float) -> list[tuple[LocalRank, Message]]:
        poll, living = select.poll(), [rank for rank in self._ranks if not rank.is_over]
        for rank in living:
            poll.register(rank.receiver.fd, select.POLLIN)
            if rank.pidfd >= 0:
                poll.register(rank.pidfd, select.POLLIN)
        fds = {fd for fd, _ in poll.poll(within_s * 1000)}
        messages: list[tuple[LocalRank, Message]] = []
        for rank in living:
            for message in rank.receiver.read() if rank.receiver.fd in fds else ():
                match message:
                    case "here", pid, gpus:
                        self._on_here(rank, pid, gpus)
                    case "acknowledged", view:
                        self._obey(self._membership.acknowledged(rank.number, view))
                    case _:
                        messages.append((rank, message))
        return messages

    def _on_here(self, rank: LocalRank, pid: int, gpus: Sequence[str]) -> None:
        if gpus:
            rank.gpu = dict(self._settings.gpu_names).get(gpus[0], gpus[0])
        with suppress(ProcessLookupError):
            rank.pidfd, rank.pid = os.pidfd_open(pid), pid
        if len(self._ranks) == self._count and all(one.pid for one in self._ranks):
            self._control.set_view(self._membership.view)  # ranks with a process group wait for this

    def _send_answer(self, rank: LocalRank, request: int, answer: str | Exception) -> None:
        self._stragglers = StragglerDetector()  # the rank was not late, it waited for this answer
        self._control.put(SUPERVISOR, request % 2, pack(answer))
        self._control.set_answered(request)

    def _end(self, reason: int) -> None:
        self._control.end(reason, self._count)

    def _close(self) -> None:
        self._control.clear()  # an error that the program keeps refers to this object, and so to the memory
        self._memory.close()
        self._store = None

    def _on_loss(self, rank: LocalRank, text: str) -> None:
        if not self._settings.survives_losses:
            raise RunLost(f"{text}\n{self._why_it_ends()}")
        if not rank.hung:  # a hang was counted when the process was killed
            self._count_death("death", text)
        self._obey(self._membership.lost(rank.number))
        if not self._membership.living:
            raise RunLost(f"{text}\nNo other process of the run is left.")
        left = len(self._membership.living)
        _log.warning("%s; %d %s over its shards", text, left, "process takes" if left == 1 else "processes take")

    def _why_it_ends(self) -> str:
        if self._store is None:
            return "on_loss='stop' ends the run with it."
        return "The run ends with it: a process group does not survive the loss of a process."

    def _count_death(self, kind: str, text: str) -> None:
        """End the run if processes die, or hang, again and again in one step. Otherwise it would repeat it forever."""
        last_operation = max(self._control.arrived(rank)[1] for rank in range(self._count))
        self._deaths[kind, last_operation] += 1
        if (count := self._deaths[kind, last_operation]) >= (_MAX_HANGS if kind == "hang" else _MAX_DEATHS):
            raise RunLost(
                f"{text}\n{count} {'hangs' if kind == 'hang' else 'processes died'} without one finished step between "
                f"them, so the work of the step is the likely cause. Run it on one device to see where: devices=1."
            )

    def _obey(self, view: View | None) -> None:
        if view is not None:
            if view.members:
                self._control.decide(view.number, view.members, view.committed)
            self._control.set_view(view.number)

    def _check_hangs(self) -> None:
        stragglers = self._stragglers.update(time.monotonic(), *self._progress())
        late = [self._ranks[number] for number in stragglers.ranks]
        timeout_s = self._settings.step_timeout_s
        if timeout_s is None:
            for rank in late if stragglers.should_warn else ():
                text = self._describe_hang(rank, stragglers)
                _log.warning("%s\nThe run waits, because no step_timeout_s= was given.", text)
            return
        hung = [rank for rank in late if stragglers.late_s >= limit_s(timeout_s, has_stepped=rank.has_stepped)]
        if hung:
            self._on_hang(hung, stragglers, timeout_s)

    def _progress(self) -> tuple[int, dict[int, int], set[int]]:
        """Return the arguments of `StragglerDetector.update`."""
        membership, control = self._membership, self._control
        ranks = [self._ranks[number] for number in membership.living]
        # While a rank waits in the pool's queue, or a killed one has not ended, no other rank is to blame.
        if any(not rank.pid or (rank.hung and not rank.is_over) for rank in ranks):
            return membership.view, {}, set()
        numbers = [rank.number for rank in ranks if not rank.is_over]
        if membership.is_changing:
            acknowledged = {number: int(control.acknowledged(number) == membership.view) for number in numbers}
            return membership.view, acknowledged, set()
        arrived = {number: control.arrived(number) for number in numbers}
        progress = {number: seq if view == membership.view else -1 for number, (view, seq) in arrived.items()}
        if self._asked is not None and (asked_at := progress.pop(self._asked[1].number, None)) is not None:
            # The rank that reports waits for a decision, and the ranks ahead wait for that rank.
            progress = {number: seq for number, seq in progress.items() if seq <= asked_at}
        return membership.view, progress, {number for number in numbers if control.is_idle(number)}

    def _on_hang(self, hung: Sequence[LocalRank], stragglers: Stragglers, timeout_s: float) -> None:
        for rank in hung:
            rank.hung = f"{self._describe_hang(rank, stragglers)}\nstep_timeout_s={timeout_s:g} has passed"
        if not self._settings.survives_losses:
            raise RunLost("\n".join(f"{rank.hung}.\n{self._why_it_ends()}" for rank in hung))
        joined = "\n".join(f"{rank.hung}." for rank in hung)
        if {rank.number for rank in hung} >= self._membership.living:
            raise RunLost(f"{joined}\nNo other process of the run is left.")
        self._count_death("hang", joined)
        for rank in hung:
            rank.hung += ", and it was killed"
            rank.kill()

    def _describe_hang(self, rank: LocalRank, stragglers: Stragglers) -> str:
        count = stragglers.num_waiting
        waiting = "no other process waits for it yet"
        if count:
            waiting = "1 process waits for it" if count == 1 else f"{count} processes wait for it"
        return (
            f"{rank} hangs: for {stragglers.late_s:.1f} s it has not reached the next collective operation of the run, "
            f"and {waiting}.\n{describe_process(rank.pid, rank.stacks, rank.send_signal)}"
        )

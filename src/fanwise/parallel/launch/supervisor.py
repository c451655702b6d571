"""`Supervisor`: starts the ranks of a run in several processes, and outlives them. It does not train itself.

    start --> messages of the ranks --> result of the first member, or the first error --> all processes end

The subclasses start and end ranks: local.py on this machine, ray.py on a Ray cluster.
"""

import logging
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from ...base.errors import LeaseError, TrialStopped, WorkerLostError
from ...links.codec import unpack_error
from ...pool.contract import Reply
from ...pool.current import Reported
from ...pool.reporting import begin_report
from ..comm.control_block import FAILED, STOPPED
from ..context import Run
from ..process_settings import read_settings
from ..progress import Display, function_name
from .settings import Settings
from .worker import RankTask

_log = logging.getLogger(__name__)

_POLL_S = 0.05
# Time in which other ranks may report an earlier error than the one received first.
_ERRORS_S = 0.1
# Time in which the cause of a lost connection must show.
_CAUSE_S = 10.0
# Time for `finally` blocks of the training function after the run was stopped.
_GRACE_S = 2.0
# Time for killed processes to end.
DYING_S = 10.0
# Time until a warning that processes wait for CPUs or GPUs.
_QUEUED_S = 2.0

Message = tuple[Any, ...]  # name and content


@dataclass(slots=True, eq=False, kw_only=True)
class Rank(ABC):
    number: int
    count: int
    value: Any = None  # result of its job
    error: BaseException | None = None  # with which its job has ended, WorkerLostError if it was killed
    node: str = ""  # of a cluster
    gpu: str = ""  # the leased GPU, for messages
    pid: int = 0  # 0 until it is known
    is_over: bool = False  # its end was handled
    has_stepped: bool = False
    hung: str = ""  # message about the hang for which it was killed
    returned: bool | None = None  # True once its training function has returned the result of the run; False: another
    is_stopped: bool = False
    failure: tuple[bool, float, bytes] | None = None  # has only lost a connection, time, packed error

    def __str__(self) -> str:
        node = f"node {self.node}, " if self.node else ""
        return f"rank {self.number} of {self.count} ({node}pid {self.pid})" + f" on {self.gpu}" * bool(self.gpu)

    @abstractmethod
    def has_ended(self) -> bool:
        """Return True if its job has ended. `value` and `error` are then set."""

    @abstractmethod
    def is_queued(self) -> bool:
        """Return True if its job waits for CPUs or GPUs."""

    @abstractmethod
    def kill(self) -> None: ...

    def output(self) -> str:
        """Return the last lines of its output for messages, or "" if they are unknown."""
        return ""

    def close(self) -> None:  # noqa: B027  # a default
        """Free what belongs to this rank. Called when it has ended."""


R = TypeVar("R", bound=Rank)


class RunLost(Exception):
    """Processes were lost, and the run cannot continue without them."""


class _Result(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Supervisor(ABC, Generic[R]):
    """See the module.

    The constructor raises LeaseError if not all processes can run at once, so they would wait for each other forever.
    """

    def __init__(self, train: Callable[[Run], Any], settings: Settings, display: Display) -> None:
        self.is_lost = False  # `run` has raised an error because processes were lost, so the run may be restarted
        self.checkpoint: str | None = None  # last one that is on the disk
        self.reports_made = settings.reports_made  # including those of earlier attempts
        self._train = train
        self._settings = settings
        self._count = len(settings.devices)
        self._ranks: list[R] = []  # those that were started
        self._asked: tuple[int, R] | None = None  # the report that waits for a decision
        self._reported: Reported | None = None
        self._answered = 0
        self._check_room()
        self._display = display
        display.rank_states = lambda: ["lost" if rank.is_over else "running" for rank in self._ranks]

    def _task(self, number: int) -> RankTask:
        return RankTask(self._settings, number, function_name(self._train), read_settings())

    def _check_room(self) -> None:
        room, capacity = self._room()
        if room < self._count:
            settings = self._settings
            gpu = " and a GPU each" if settings.gpus else ""
            raise LeaseError(
                f"{self._count} processes with threads={settings.threads}{gpu} are needed at once, and there is room "
                f"for {room}: {capacity}.\n"
                f"Give fewer devices. The result is the same if shards={settings.shards} is given, too."
            )

    @abstractmethod
    def _start(self) -> None:
        """Start all ranks."""

    @abstractmethod
    def _messages(self, within_s: float) -> list[tuple[R, Message]]:
        """Return all messages that have arrived. Wait for the first one for `within_s` seconds at most."""

    @abstractmethod
    def _send_answer(self, rank: R, request: int, answer: str | Exception) -> None:
        """Answer a report with CONTINUE, STOP, or the error that it raises."""

    @abstractmethod
    def _on_loss(self, rank: R, text: str) -> None:
        """Let the other ranks continue without this one, or raise RunLost. `text`: how it was lost."""

    @abstractmethod
    def _end(self, reason: int) -> None:
        """Tell all ranks to end. `reason`: FAILED or STOPPED."""

    @abstractmethod
    def _room(self) -> tuple[int, str]:
        """Return how many ranks can run at once, and a clause for messages, such as "the pool has 4 CPUs"."""

    def _check_hangs(self) -> None:
        """Warn of ranks for which the others wait, kill them, or raise RunLost."""

    def _close(self) -> None:
        """Free all resources. Called when all processes have ended."""

    def run(self) -> Any:
        """Return the result of the training function. Blocks until all processes have ended.

        Raises:
            WorkerLostError: processes were lost, and the run cannot continue.
            TrialStopped: the run was stopped.
            The first error of the training function in any rank.
        """
        grace_s = 0.0
        try:
            self._start()
            self._supervise()
        except _Result as result:
            grace_s = _GRACE_S
            return result.value
        except RunLost as lost:
            self.is_lost = True
            raise WorkerLostError(str(lost)) from None
        except TrialStopped:
            self._end(STOPPED)
            self._wait_for_ends(_GRACE_S)
            raise
        finally:
            self._end_all(grace_s)

    def _supervise(self) -> NoReturn:
        warns_s = time.monotonic() + _QUEUED_S
        while True:
            self._receive(_POLL_S if self._asked is None else 0)
            self._check_decision(_POLL_S)
            self._check_failures()
            if ended := self._newly_ended():
                self._check_failures()
            for rank in ended:
                self._on_end(rank)
            if time.monotonic() > warns_s:
                warns_s = math.inf
                self._warn_of_queue()
            self._check_hangs()

    def _receive(self, within_s: float) -> None:
        """Handle all messages that have arrived. Wait for the first one for `within_s` seconds at most."""
        for rank, (name, *content) in self._messages(within_s):
            match name:
                case "out" | "err":
                    stream = sys.stdout if name == "out" else sys.stderr
                    stream.write(content[0])
                    stream.flush()
                case "progress":
                    self._display.show(content[0])
                case "report":
                    self._on_report(rank, *content)
                case "checkpoint":
                    self.checkpoint = content[0]
                case "stepped":
                    rank.has_stepped = True
                case "failed":
                    rank.failure = content[0], content[1], content[2]
                case "stopped":
                    rank.is_stopped = True
                    self._end(STOPPED)
                case "returns":
                    rank.returned = content[0]

    def _on_report(self, rank: R, request: int, values: dict[str, Any]) -> None:
        # A rank that takes over for a lost one repeats its last request.
        if request <= self._answered:
            return
        is_new, self._asked = self._asked is None, (request, rank)
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
        request, rank = self._asked
        self._asked = self._reported = None
        self._answered = request
        self._send_answer(rank, request, answer)

    def _living(self) -> list[R]:
        return [rank for rank in self._ranks if not rank.is_over]

    def _newly_ended(self) -> list[R]:
        """Return the ranks that have ended since the last call. Handle all that they have sent before."""
        ended = [rank for rank in self._living() if rank.has_ended()]
        if ended:
            self._receive(0)
        return ended

    def _check_failures(self) -> None:
        """Raise the first error that any rank has sent. Return if no rank has."""
        if not any(rank.failure for rank in self._ranks):
            return
        until_s = time.monotonic() + _ERRORS_S
        while (left_s := until_s - time.monotonic()) > 0:
            self._receive(left_s)
        failure, rank = self._first_failure()
        if failure[0]:
            self._find_lost_peer()
            failure, rank = self._first_failure()
        self.is_lost = failure[0]
        if self.is_lost and any(rank.is_stopped for rank in self._ranks):
            raise TrialStopped("the run was stopped")
        error = unpack_error(failure[2])
        error.add_note(f"in {rank}{rank.output()}")
        raise error

    def _first_failure(self) -> tuple[tuple[bool, float, bytes], R]:
        """Return the first error. A lost connection counts only if there is no other error."""
        return min(((rank.failure, rank) for rank in self._ranks if rank.failure), key=lambda failed: failed[0])

    def _find_lost_peer(self) -> None:
        """Raise RunLost if a rank has ended. Return if one has failed or stopped instead, or after 10 s."""
        until_s = time.monotonic() + _CAUSE_S
        while time.monotonic() < until_s:
            self._receive(_POLL_S)
            ended = self._newly_ended()
            if any(rank.is_stopped or (rank.failure and not rank.failure[0]) for rank in self._ranks):
                return
            for rank in ended:
                if rank.failure is None:
                    self._on_end(rank)
                else:
                    self._set_over(rank)

    def _on_end(self, rank: R) -> None:
        """Handle the end of a rank, all of whose messages were handled."""
        self._set_over(rank)
        if rank.returned and rank.error is None:
            raise _Result(rank.value)
        if rank.error is not None and not isinstance(rank.error, WorkerLostError):
            rank.error.add_note(f"in {rank}{rank.output()}")
            raise rank.error
        if any(one.is_stopped for one in self._ranks):
            if not self._living():
                raise TrialStopped("the run was stopped")
        elif rank.returned is None or rank.error is not None:
            reason = " left the run before its end" if rank.error is None else f": {rank.error.message}"
            self._on_loss(rank, rank.hung or f"{rank}{reason}")

    def _set_over(self, rank: R) -> None:
        rank.is_over = True
        rank.close()

    def _wait_for_ends(self, within_s: float) -> None:
        """Handle messages until all processes have ended, or for this time."""
        until_s = time.monotonic() + within_s
        while self._living() and time.monotonic() < until_s:
            self._receive(_POLL_S)
            for rank in self._newly_ended():
                self._set_over(rank)

    def _end_all(self, grace_s: float) -> None:
        self._end(FAILED)
        try:
            self._wait_for_ends(grace_s)
        finally:
            for rank in self._living():
                rank.kill()
            self._wait_for_ends(DYING_S)
            for rank in self._living():
                rank.close()
            self._close()

    def _warn_of_queue(self) -> None:
        if queued := sum(rank.is_queued() for rank in self._living()):
            _log.warning(
                "%d of %d processes of the run wait for a place: %s, and other jobs or runs hold them.\nThe run begins "
                "when these end.",
                queued,
                self._count,
                self._room()[1],
            )

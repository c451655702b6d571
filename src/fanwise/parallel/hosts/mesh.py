"""The links of one process to all others of a run over several hosts, and what comes over them.

    main thread:  exchange(content) -> everybody's contents      send(rank, key, value), receive(rank, key) -> value
    hub thread:   messages of `turns`, values for `receive`, links that end, errors of others

All decisions are those of `turns`; this carries them out. The thread that trains waits on one condition, for its turn,
for a value, or for what ends that: another view, an error of another process, or that it is out.
"""

import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...base.errors import ClosedError, WorkerLostError
from ...links import Ending, Hub, Link, Request
from ...links.codec import unpack_error
from .turns import Known, Message, Send, Turns, Unreachable

_log = logging.getLogger(__name__)

# A process that one has lost is given so long to be lost to the coordinator, too: silence of a host takes 5 s.
_CUT_OFF_S = 8.0
# How long a process that waits may take to say so.
_SAY_S = 2.0
# Who dies is known by all; a wait that lasts longer than this looks again.
_LOOK_S = 5.0

Key = tuple[object, ...]


class Again(BaseException):
    """The view has changed: what was being done together begins again. No Exception, so that user code lets it pass."""


class Mesh:
    """See the module. `take` gets what comes over the links, on the hub's thread, from before `begin` on.

    Args:
        links: one to each of the other ranks. called: each process for people, by rank.
        goes_on: after a loss; else every loss is an error of all.
    """

    def __init__(
        self, hub: Hub, rank: int, links: Mapping[int, Link], called: Mapping[int, str], *, goes_on: bool
    ) -> None:
        self.rank = rank
        self.called = called
        self._hub = hub
        self._links = dict(links)
        self._goes_on = goes_on
        self._changed = threading.Condition(threading.RLock())
        self._turns = Turns(rank, Known(1, tuple(sorted([rank, *links]))))
        self._view = self._turns.known
        self._values: dict[tuple[int, int, Key], Any] = {}  # Any: as sent; by view and rank
        self._failed: tuple[int, bytes] | None = None
        self._left: set[int] = set()
        self._is_waiting = False
        self._asked_who_waits: set[int] | None = None  # those that have said so

    def begin(self) -> None:
        """From now on a link that ends is a process that is lost."""
        for rank, link in self._links.items():
            link.on_ended(self._end_of(rank))

    # -- what the thread that trains asks -----------------------------------------------------------------------------

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in what is being done now, by place."""
        return self._view.members

    @property
    def turn(self) -> int:
        """The last one that was released; a name for what is sent until the next."""
        return self._turns.known.turn

    def enter_view(self) -> None:
        """What is done from now on is done by those that take part now.

        Raises:
            WorkerLostError: this process does not.
        """
        with self._changed:
            if self._turns.is_out:
                self._look()
            before, self._view = self._view, self._turns.known
            for key in [key for key in self._values if key[0] < self._view.view]:
                del self._values[key]
        gone = [self.called[rank] for rank in before.members if rank not in self._view.members]
        if gone and self.rank == self._view.members[0]:
            left = len(self._view.members)
            take = "process takes" if left == 1 else "processes take"
            its = "its" if len(gone) == 1 else "their"
            _log.warning("%s: lost; %d %s over %s shards", ", ".join(gone), left, take, its)

    def exchange(self, content: bytes, within_s: float | None = None) -> tuple[bytes, ...]:
        """The contents of all members, by place. Blocks until all have come to this turn.

        Raises:
            Again: a member was lost meanwhile. WorkerLostError: the others have gone on without this process, or a loss
            is to end the run. What another process has raised, in its own type.
        """
        with self._changed:
            self._look()
            turn = self._turns.known.turn + 1
            self._carry_out(self._turns.arrive(content))
            self._wait(lambda: self._turns.known.turn >= turn, within_s)
            return self._turns.known.contents

    def send(self, rank: int, key: Key, value: Any) -> None:  # Any: what a link carries
        """To another member, for its `receive` in the same view. Its memory may be changed afterwards."""
        try:
            self._links[rank].notify("value", self._view.view, key, value)
        except (WorkerLostError, ClosedError):
            pass  # the view will change

    def receive(self, rank: int, key: Key, within_s: float | None = None) -> Any:  # Any: as sent
        """What another member has sent under this key. Blocks. Raises as `exchange`."""
        full = (self._view.view, rank, key)
        with self._changed:
            self._wait(lambda: full in self._values, within_s)
            return self._values.pop(full)

    def _wait(self, is_there: Callable[[], bool], within_s: float | None) -> None:
        until_s = None if within_s is None else time.monotonic() + within_s
        self._is_waiting = True
        try:
            while not is_there():
                self._look()
                left_s = _LOOK_S if until_s is None else min(_LOOK_S, until_s - time.monotonic())
                if within_s is not None and left_s <= 0:
                    self._go_on_without_the_hung(is_there, within_s)
                    until_s = time.monotonic() + within_s
                else:
                    self._changed.wait(left_s)
        finally:
            self._is_waiting = False

    def _go_on_without_the_hung(self, is_there: Callable[[], bool], waited_s: float) -> None:
        """Ask all whether they wait, too; who does not say so hangs, or is stopped."""
        known, waiting = self._turns.known, set[int]()
        self._asked_who_waits = waiting
        others = set(known.members) - {self.rank}
        for rank in others - self._turns.lost:
            self._notify(self._links[rank], "do you wait")
        until_s = time.monotonic() + _SAY_S
        while (left_s := until_s - time.monotonic()) > 0 and waiting | self._turns.lost < others and not is_there():
            self._changed.wait(left_s)
        self._asked_who_waits = None
        hung = others - waiting - self._turns.lost
        if hung and self._turns.known == known:
            who = ", ".join(self.called[rank] for rank in sorted(hung))
            _log.warning("%s: hangs, or is stopped. Others have waited for %g s (step_timeout_s=).", who, waited_s)
            self._carry_out(self._turns.give_up(hung))

    def _look(self) -> None:
        """Raise what ends whatever is waited for."""
        turns = self._turns
        if self._failed is not None:
            rank, packed = self._failed
            error = unpack_error(packed)
            error.add_note(f"raised in {self.called[rank]}")
            raise error
        if turns.is_out:
            raise WorkerLostError(
                f"the other processes of the run have gone on without {self.called[self.rank]}: its links to some of "
                f"them had ended, or it was stopped for longer than step_timeout_s.\n"
                f"Look at the network between the hosts. What the others have saved is whole."
            )
        if turns.known.view != self._view.view:
            if not self._goes_on:
                gone = ", ".join(self.called[rank] for rank in self._view.members if rank not in turns.known.members)
                raise WorkerLostError(f"{gone}: lost.\non_loss='stop' ends the run with it")
            raise Again

    # -- the end ---------------------------------------------------------------------------------------------------

    def fail(self, packed: bytes) -> None:
        """Tell all what was raised here."""
        for link in self._links.values():
            self._notify(link, "failed", packed)

    @property
    def tells_failures(self) -> bool:
        """Whether what is raised here concerns the others: none has told of an error, and they wait for this one."""
        return self._failed is None and not self._turns.is_out

    def leave(self, within_s: float) -> None:
        """Say that nothing more comes from here, and wait until the others have said so. Then close all links.

        Who is out says nothing: to the others it is lost.
        """
        if not self._turns.is_out:
            for link in self._links.values():
                self._notify(link, "left")
        until_s = time.monotonic() + within_s
        with self._changed:
            while (left_s := until_s - time.monotonic()) > 0:
                if set(self._links) <= self._left | self._turns.lost or self._turns.is_out:
                    break
                self._changed.wait(left_s)
        for link in self._links.values():
            link.close("the run is over")

    def _notify(self, link: Link, method: str, *args: object) -> None:
        try:
            link.notify(method, *args)
        except (WorkerLostError, ClosedError):
            pass

    # -- what comes ------------------------------------------------------------------------------------------------

    def take(self, rank: int, request: Request) -> None:
        """What this rank says."""
        with self._changed:
            self._take(rank, request.method, *request.args)
            self._changed.notify_all()

    def _take(self, rank: int, method: str, *args: Any) -> None:  # Any: as sent
        match method:
            case "turn":
                message: Message = pickle.loads(args[0])
                self._carry_out(self._turns.heard(rank, message))
                if isinstance(message, Unreachable):
                    self._hub.call_at(self._hub.now_s() + _CUT_OFF_S, lambda: self._cut_off(rank, message.rank))
            case "value":
                view, key, value = args
                if view >= self._view.view:
                    self._values[view, rank, key] = value
            case "do you wait":
                if self._is_waiting:
                    self._notify(self._links[rank], "waits")
            case "waits":
                if self._asked_who_waits is not None:
                    self._asked_who_waits.add(rank)
            case "failed":
                if self._failed is None and rank in self._turns.known.members:
                    self._failed = rank, args[0]
            case "left":
                self._left.add(rank)

    def _cut_off(self, rank: int, other: int) -> None:
        with self._changed:
            self._carry_out(self._turns.cut_off(rank, other))
            self._changed.notify_all()

    def _end_of(self, rank: int) -> Callable[[Link, Ending], None]:
        def ended(link: Link, ending: Ending) -> None:
            with self._changed:
                if rank in self._left:
                    self._turns.lost.add(rank)
                else:
                    self._carry_out(self._turns.lose(rank))
                self._changed.notify_all()

        return ended

    def _carry_out(self, orders: list[Send]) -> None:
        packed: dict[int, bytes] = {}
        for order in orders:
            data = packed.setdefault(id(order.message), pickle.dumps(order.message, protocol=5))
            self._notify(self._links[order.rank], "turn", data)

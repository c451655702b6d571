"""Calls on credit, as a link makes them: `flow` says who may, this waits, sends, and gives back what was not used.

    ask, call      begin a call when the peer has room for it; until then wait, or say that nobody may wait here
    credited, wanted, tell      what frames about credit lead to

Credit that was taken and whose call has not left is returned, whatever was in the way: the end of the link, values that
cannot be copied, Ctrl-C. A call counts as having left when the sender begins to write it, which empties the list of its
parts. CPython lets an interrupt in where a function begins or one of C's has returned: so none comes between credit
that is taken, or a call that is opened, and the note of that in the next statement.

One with its link, in a file of its own: it uses what the link keeps private.
"""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ...base.errors import ClosedError, WindowFullError
from .. import frames
from ..asking import Cancelled, NotSentCancelled, Reply
from ..counts import TIMED_EVERY, TIMED_SINGLY
from ..frames import Buffer, Frame
from ..hub import Hub
from .credits import CALL_COST, cost_of
from .flow import Flow

if TYPE_CHECKING:
    from ..link import Link

Waiting = Callable[[], contextlib.AbstractContextManager[None]]
# Is told of each reply that this thread is about to wait for, so that another one can cancel it.
Watch = Callable[[Reply], None]


class CreditCalls:
    """See the module. One for each link."""

    def __init__(self, link: "Link", hub: Hub) -> None:
        self._link = link
        self._hub = hub
        self.flow = Flow(hub)
        _all.add(self)

    def ask(
        self, method: str, *, within_s: float | None = None, watch: Watch | None = None
    ) -> Any:  # Any: the peer's answer
        """As `Link.ask`, when the peer has room for it. Waiting for that counts; then `NotSent` is raised.

        Raises `Cancelled` when the reply that it waits for was cancelled; `NotSentCancelled` if nothing has left.
        """
        link, parts = self._link, None
        link._check_may_wait(method)
        head, buffers = link._dumped((method, ()))
        cost = cost_of(head, buffers) if buffers else CALL_COST + len(head)
        reply = Reply(link, method)
        try:
            with link._lock:  # as most: there is room
                if link.ending is None and self.flow.spend(cost):
                    reply.cost = cost
                    reply.call_id = link._calls.open(reply)
            if not (reply.cost or self._open(reply, cost)):
                began_s = self._hub.clock.now_s()
                self._wait_and_open(reply, cost, within_s, watch=watch)
                if within_s is not None:
                    within_s = max(0.0, within_s - (self._hub.clock.now_s() - began_s))
            if reply.call_id <= TIMED_SINGLY or not reply.call_id % TIMED_EVERY:
                reply.began_s = self._hub.clock.now_s()
            parts = (link._encode if buffers else frames.encode)(frames.CALL, reply.call_id, head, buffers)
            return link._ask(reply, parts, within_s, watch)
        except BaseException:
            if reply.cost and (parts is None or parts):
                self._not_sent(reply)
            raise
        finally:
            del reply  # else an error would keep this frame, and so what was sent, until the collector comes

    def call(
        self,
        method: str,
        *,
        deadline_s: float | None = None,
        waiting: Waiting = contextlib.nullcontext,
        overdraws: bool = False,
        watch: Watch | None = None,
        on_item: Callable[[Any, int], None] | None = None,  # Any: what the peer gives
    ) -> Reply:
        """As `Link.call`, when the peer has room for it; until then it waits here, within `waiting()`.

        Nobody waits on a thread that reads, nor with `overdraws`, as long as the window is not overdrawn too far.
        Raises `NotSent` at the deadline; `WindowFullError` on a thread that must not wait; as `ask` when cancelled.

        `on_item`: asks for an answer in many parts, and takes them; see `Reply`.
        """
        link, parts = self._link, None
        head, buffers = link._dumped((method, ()))
        cost = cost_of(head, buffers) if buffers else CALL_COST + len(head)
        reply = Reply(link, str(method))
        reply.on_item = on_item
        if deadline_s is not None:
            reply._due_s = self._hub.clock.now_s() + deadline_s
        try:
            if not self._open(reply, cost, overdraws):
                self._wait_and_open(reply, cost, deadline_s, waiting, watch)
            if reply._due_s is not None:
                link._alarm.set(reply._due_s)
            if reply.call_id <= TIMED_SINGLY or not reply.call_id % TIMED_EVERY:
                reply.began_s = self._hub.clock.now_s()
            parts = (link._encode if buffers else frames.encode)(frames.CALL, reply.call_id, head, buffers)
            link._send(parts)
            return reply
        except BaseException:
            if reply.cost and (parts is None or parts):
                self._not_sent(reply)
            raise

    # -- waiting for room ------------------------------------------------------------------------------------------

    def _open(self, reply: Reply, cost: int, overdraws: bool = False) -> bool:
        """A call begins, if it may now."""
        link = self._link
        self._hub.check_usable()
        with link._lock:
            if link.ending is not None:
                raise link._gone(reply.method, "cannot be asked")
            if self.flow.spend(cost) or (overdraws and self.flow.overdraw(cost)):
                reply.cost = cost
                reply.call_id = link._calls.open(reply, reply._due_s)
                return True
        return False

    def _wait_and_open(
        self,
        reply: Reply,
        cost: int,
        within_s: float | None,
        waiting: Waiting = contextlib.nullcontext,
        watch: Watch | None = None,
    ) -> None:
        """Block until a call may begin, and begin it. Where nobody may block, spend more than there is."""
        link, may_wait, turn = self._link, may_wait_for(self._hub), Reply(self._link, str(reply.method))
        if self._open(reply, cost, not may_wait):
            return
        if not may_wait:
            link.refused["window_full"] += 1
            raise WindowFullError(
                f"{turn.method!r} was not sent: as many calls as {link.peer} has room for wait there to be begun, "
                f"and this thread reads the answers, so it must not wait.\n"
                f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
            )
        try:
            with link._lock:
                if link.ending is not None:
                    raise link._gone(turn.method, "cannot be asked")
                turns, wanted = self.flow.wait(turn, cost)
                turn.cost = cost
            self._give_turns(turns, wanted)
            if watch is not None:
                watch(turn)
            with waiting():
                link._wait(turn, within_s)
            if isinstance(turn._error, Cancelled):
                raise NotSentCancelled(turn._error.message)
            if turn._error is not None:
                raise turn._error
            with link._lock:
                if link.ending is not None:
                    raise link._gone(turn.method, "was not sent")
                reply.call_id = link._calls.open(reply, reply._due_s)
                reply.cost = cost
        except BaseException:
            if not reply.cost:
                with link._lock:
                    turns = self.flow.give_up(turn, cost) if turn.cost else self.flow.withdraw(turn, cost)
                    wanted = self.flow.want()
                self._give_turns(turns, wanted)
            raise
        finally:
            del turn  # as in `ask`

    def _not_sent(self, reply: Reply) -> None:
        """A call that had begun was not written."""
        link = self._link
        with link._lock:
            cost, reply.cost = reply.cost, 0
            link._num_not_calls += 1
            link._calls.give_up(reply.call_id)
            turns, wanted = self.flow.refund(cost), self.flow.want()
        self._give_turns(turns, wanted)

    def _give_turns(self, turns: Sequence[Reply], wanted: list[Buffer]) -> None:
        link = self._link
        for turn in turns:
            turn._settle(None, None)
            link._waiters.wake(turn)
            turn._tell()
        if wanted and link.ending is None:
            link._send(wanted)

    # -- frames about credit ---------------------------------------------------------------------------------------

    def credited(self, frame: Frame) -> None:
        """CREDIT came. Raises `WireError`."""
        with self._link._lock:
            turns, wanted = self.flow.credited(frame.head), self.flow.want()
        self._give_turns(turns, wanted)

    def wanted(self, frame: Frame) -> None:
        """WANT came. Raises `WireError`."""
        with self._link._lock:
            credit = self.flow.wanted(frame.head)
        if credit:
            self._link._send(credit)

    def tell(self) -> None:
        """Tell the other side how much of its calls was taken up here."""
        link = self._link
        with link._lock:
            credit = self.flow.tell()
        if link.ending is None:
            with contextlib.suppress(ClosedError):  # there is no hub any more
                link._send(credit)


_all: "weakref.WeakSet[CreditCalls]" = weakref.WeakSet()


def may_wait_for(hub: Hub) -> bool:
    """Whether this thread may wait for what comes in: it is in no turn of the hub, nor called by what reads a link.

    Looks at all links, as nobody has to tell anything then who reads: it is asked only when there is no credit.
    """
    if hub.is_loop_thread:
        return False
    while True:
        try:
            return all(calls._link._reader_id != get_ident() for calls in list(_all))
        except RuntimeError:  # another thread has just made a link
            continue

"""The caller's half of a link: open calls, their replies and deadlines, and the credit that calls cost.

A call on credit waits until the peer has room for it (`credits`). Other calls, and replies, never wait.

Invariants
- A reply is resolved exactly once, by the thread that reads the answer, misses the deadline, cancels, or ends the link.
  Its callbacks run on that thread afterwards. A callback that raises is logged and stops nothing else.
- Credit that was taken for a call that was not sent is always returned: at the end of the link, for values that cannot
  be copied, after Ctrl-C. A call counts as sent when the `Writer` begins to write it, which empties its list of parts.
  CPython delivers interrupts only where a function begins or a C function has returned, so none can come between taking
  credit, or opening a call, and recording that in the next statement.
"""

import contextlib
import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..base.errors import CancelledError, ClosedError, DeadlineExceeded, WindowFullError, WireError, WorkerLostError
from . import frames
from .codec import unpack_error
from .counts import Latencies
from .credits import Spending, cost_of
from .frames import Buffer, Frame
from .hub import Alarm
from .peers import LinkState
from .reader import Reader, may_wait_for

_log = logging.getLogger(__name__)

TAKEN = struct.Struct("<QQ")
_CREDIT, _WANT = struct.Struct("<QQ"), struct.Struct("<Q")

Waiting = Callable[[], contextlib.AbstractContextManager[None]]
# Called with each reply that a thread is about to wait for, so that another thread can cancel it.
Watch = Callable[["Reply"], None]


def was_never_sent(error: BaseException) -> bool:
    """Return True if `call_on_credit` or `ask_on_credit` raised this before any byte of the call was sent.

    Also for errors that did not come from the link, such as a KeyboardInterrupt during the wait for credit.
    """
    return getattr(error, "_was_never_sent", False)


class Expired(DeadlineExceeded):
    """The time limit of a call has passed on this side. A `DeadlineExceeded` of the peer is not of this class."""


class NotSent(Expired):
    """As `Expired`, for a call that still waited for credit."""


class Cancelled(CancelledError):
    """The call was canceled on this side. A `CancelledError` of the peer is not of this class."""


class NotSentCancelled(Cancelled):
    """As `Cancelled`, for a call that still waited for credit."""


class Reply:
    """The future result of one call."""

    __slots__ = (
        *("_callback", "_calls", "_done", "_due_s", "_error", "_more", "_value"),
        *("began_s", "call_id", "cost", "link", "method", "on_item"),
    )

    def __init__(self, calls: "Calls", method: str) -> None:
        self._calls = calls
        self.link = calls.link
        self.method = method
        self.call_id = self.cost = 0  # the cost is set when it was spent
        self.began_s: float | None = None  # set for calls on credit
        self._due_s: float | None = None
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        # Most replies have one callback, and thousands may be open: no list, which the garbage collector would visit.
        self._callback: Callable[[Reply], None] | None = None
        self._more: tuple[Callable[[Reply], None], ...] = ()
        # Called with each item of a streamed answer and its cost, by the reading thread. ValueError: too many.
        self.on_item: Callable[[Any, int], None] | None = None

    def done(self) -> bool:
        return self._done

    def result(self, within_s: float | None = None) -> Any:
        """Block until the answer is here, at most `within_s` seconds, then raise `DeadlineExceeded`.

        Raises the error of the peer; `WorkerLostError` or `ClosedError` if the link ends first.
        """
        self.wait(within_s)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # otherwise the error would keep this frame, and this frame the error
        return self._value

    def wait(self, within_s: float | None = None) -> None:
        """Block until it is done, and return nothing. `DeadlineExceeded` as `result`."""
        if not self._done:
            self._calls.check_may_wait(self.method)
            self._calls.wait(self, within_s)

    def add_done_callback(self, callback: "Callable[[Reply], None]") -> None:
        """Call `callback(self)` when the answer is here, on the thread that reads it; at once if it is done."""
        with self._calls.lock:
            if not self._done:
                if self._callback is None:
                    self._callback = callback
                else:
                    self._more = (*self._more, callback)
                return
        callback(self)

    def cancel(self) -> bool:
        """Fail with `Cancelled` and tell the peer. Return False if it was done before."""
        return self._calls.cancel(self)

    def take(self, num_items: int, num_bytes: int) -> None:
        """Tell the peer how much of a streamed answer was consumed in total."""
        self._calls.send_about(frames.TAKEN, self.call_id, TAKEN.pack(num_items, num_bytes))

    def resolve(self, value: object, error: BaseException | None) -> None:
        """Set the result, unless it is done, and run the callbacks."""
        self.settle(value, error)
        if self._callback is not None:
            self.run_callbacks()

    def settle(self, value: object, error: BaseException | None) -> None:
        """Set the result, unless it is done."""
        with self._calls.lock:
            if not self._done:
                self._value, self._error = value, error
                self._done = True

    def run_callbacks(self) -> None:
        first, self._callback = self._callback, None
        if first is None:
            return
        more, self._more = self._more, ()
        for callback in (first, *more):
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of the answer to %r failed", self.method)


Waiter = TypeVar("Waiter")


@dataclass(slots=True)
class OpenCalls(Generic[Waiter]):
    """The calls that were sent and not answered. Pure: without locks and clocks.

    Ids are never used twice. A call ends once: by `close`, `expire` or `close_all`.
    """

    num_opened: int = 0
    _open: dict[int, Waiter] = field(default_factory=dict)
    _deadlines: dict[int, float] = field(default_factory=dict)

    def open(self, waiter: Waiter, deadline_s: float | None = None) -> int:
        """Return the id of a new call, from 1 on."""
        self.num_opened += 1
        self._open[self.num_opened] = waiter
        if deadline_s is not None:
            self._deadlines[self.num_opened] = deadline_s
        return self.num_opened

    def get(self, call_id: int) -> Waiter | None:
        return self._open.get(call_id)

    def close(self, call_id: int) -> Waiter | None:
        """The call was answered or given up. Return None if it was not open."""
        if self._deadlines:
            self._deadlines.pop(call_id, None)
        return self._open.pop(call_id, None)

    def waiters(self) -> list[Waiter]:
        return list(self._open.values())

    def expire(self, now_s: float) -> list[Waiter]:
        """Close the calls whose deadline has passed, and return them in order of their ids."""
        late = sorted(call_id for call_id, deadline_s in self._deadlines.items() if deadline_s <= now_s)
        for call_id in late:
            del self._deadlines[call_id]
        return [self._open.pop(call_id) for call_id in late]

    def next_deadline_s(self) -> float | None:
        return min(self._deadlines.values(), default=None)

    def close_all(self) -> list[Waiter]:
        """The link has ended. Return all open calls in order of their ids."""
        waiters = [self._open[call_id] for call_id in sorted(self._open)]
        self._open.clear()
        self._deadlines.clear()
        return waiters

    def __len__(self) -> int:
        return len(self._open)


class Calls:
    """See the module.

    Args:
        link: given to the replies; opaque here.
        send: sends the parts of a frame. Raises `ClosedError` if the hub is closed.
    """

    def __init__(self, link: Any, state: LinkState, reader: Reader, send: Callable[[list[Buffer]], None]) -> None:
        self.link = link
        self.lock = state.lock
        self._state, self._hub, self._reader, self._send = state, state.hub, reader, send
        self._waiters = reader.waiters
        self._open: OpenCalls[Reply] = OpenCalls()
        self._alarm = Alarm(state.hub, self._expire)
        self.spending: Spending[Reply] = Spending()
        self.latencies = Latencies()
        self.num_on_credit = self.num_timed_out = self.num_late_answers = self.num_refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def replies(self) -> list[Reply]:
        """Return the open calls."""
        with self.lock:
            return self._open.waiters()

    # -- beginning a call ------------------------------------------------------------------------------------------

    def open(self, method: str, deadline_s: float | None) -> Reply:
        """Open a call without credit. Raises `ClosedError` or `NeverSent` if the link has ended."""
        self._hub.check_usable()
        reply = Reply(self, method)
        if deadline_s is not None:
            reply._due_s = self._hub.clock.now_s() + deadline_s
        with self.lock:
            if self._state.ending is not None:
                raise self._state.ended_error(method, "cannot be asked")
            reply.call_id = self._open.open(reply, reply._due_s)
        if reply._due_s is not None:
            self._alarm.set(reply._due_s)
        return reply

    def open_on_credit(
        self,
        reply: Reply,
        cost: int,
        within_s: float | None,
        *,
        overdraws: bool = False,
        waiting: Waiting = contextlib.nullcontext,
        watch: Watch | None = None,
    ) -> float | None:
        """Open a call when the peer has room for it. Return the seconds that are left of `within_s`.

        Raises as `Link.call_on_credit`. If this or a later step raises, call `take_back`.
        """
        if not self._try_to_open(reply, cost, overdraws):
            began_s = self._hub.clock.now_s()
            self._wait_and_open(reply, cost, within_s, waiting, watch)
            if within_s is not None:
                within_s = max(0.0, within_s - (self._hub.clock.now_s() - began_s))
        if reply._due_s is not None:
            self._alarm.set(reply._due_s)
        reply.began_s = self._hub.now_s()
        return within_s

    def _try_to_open(self, reply: Reply, cost: int, overdraws: bool) -> bool:
        self._hub.check_usable()
        with self.lock:
            if self._state.ending is not None:
                raise self._state.ended_error(reply.method, "cannot be asked")
            if self.spending.spend(cost) or (overdraws and self.spending.overdraw(cost)):
                reply.cost = cost
                self.num_on_credit += 1
                reply.call_id = self._open.open(reply, reply._due_s)
                return True
        return False

    def _wait_and_open(
        self, reply: Reply, cost: int, within_s: float | None, waiting: Waiting, watch: Watch | None
    ) -> None:
        may_wait, turn = may_wait_for(self._hub), Reply(self, reply.method)
        if self._try_to_open(reply, cost, not may_wait):
            return
        if not may_wait:
            self.num_refused += 1
            raise WindowFullError(
                f"{turn.method!r} was not sent: {self._state.peer} has no room for more calls, and this thread reads "
                f"the answers, so it must not wait.\n"
                f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
            )
        try:
            with self.lock:
                if self._state.ending is not None:
                    raise self._state.ended_error(turn.method, "cannot be asked")
                turns = self.spending.wait(turn, cost)
                turn.cost = cost
                want = self._want() if self.spending.num_waiting == 1 else []
            self._give_turns(turns, want)
            if watch is not None:
                watch(turn)
            with waiting():
                self.wait(turn, within_s)
            if isinstance(turn._error, Cancelled):
                raise NotSentCancelled(turn._error.message)
            if turn._error is not None:
                raise turn._error
            with self.lock:
                if self._state.ending is not None:
                    raise self._state.ended_error(turn.method, "was not sent")
                reply.cost = cost
                self.num_on_credit += 1
                reply.call_id = self._open.open(reply, reply._due_s)
        except BaseException:
            if not reply.cost:
                with self.lock:
                    turns = self.spending.give_up(turn, cost) if turn.cost else self.spending.withdraw(turn, cost)
                    want = self._want()
                self._give_turns(turns, want)
            raise
        finally:
            del turn  # otherwise an error would keep this frame, and so the message, until a garbage collection

    def take_back(self, reply: Reply, error: BaseException) -> None:
        """No byte of a call was sent. Return its credit, and mark `error` for `was_never_sent`."""
        error._was_never_sent = True  # type: ignore[attr-defined]  # the mark
        if not reply.cost:
            return
        with self.lock:
            cost, reply.cost = reply.cost, 0
            self.num_on_credit -= 1
            self._open.close(reply.call_id)
            turns, want = self.spending.refund(cost), self._want()
        self._give_turns(turns, want)

    def _want(self) -> list[Buffer]:
        """Return a WANT frame if calls wait for credit."""
        position = self.spending.wanted()
        return [] if position is None else frames.encode(frames.WANT, 0, _WANT.pack(position))

    def _give_turns(self, turns: Sequence[Reply], want: list[Buffer]) -> None:
        for turn in turns:
            turn.settle(None, None)
            self._waiters.wake(turn)
            turn.run_callbacks()
        if want and self._state.ending is None:
            self._send(want)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def check_may_wait(self, method: str) -> None:
        """Raise RuntimeError on the thread that reads the answer."""
        hub = self._hub
        if hub.is_closed:
            hub.check_usable()
        if self._reader.is_reading_here:
            raise RuntimeError(
                f"waiting for {method!r} here would never end: this is the thread that reads its answer.\n"
                f"In a handler or callback use call(...).add_done_callback(...)."
            )

    def wait(self, reply: Reply, within_s: float | None) -> None:
        """Block until the reply is done. After `check_may_wait`."""
        now_s = self._hub.now_s
        until_s = reply._due_s
        if within_s is not None:
            end_s = now_s() + within_s
            until_s = end_s if until_s is None else min(end_s, until_s)
        try:
            while not reply._done:
                left_s = None if until_s is None else max(0.0, until_s - now_s())
                self._reader.wait_for(reply, left_s)
                if until_s is not None and not reply._done and now_s() >= until_s:
                    self._give_up(reply, within_s)
        finally:
            if self._waiters.asleep:
                self._waiters.wake_one()  # another waiting thread may read now

    def _give_up(self, reply: Reply, within_s: float | None) -> None:
        """The time limit of a wait has passed."""
        if not reply.call_id:
            raise NotSent(f"{reply.method!r} was not sent within {within_s} s: {self._state.peer} had no room for it.")
        if reply._due_s is not None and reply._due_s <= self._hub.clock.now_s():
            self._expire()
        else:
            with self.lock:
                waiter = self._open.close(reply.call_id)
            if waiter is not None:
                self.num_timed_out += 1
                raise Expired(
                    f"{reply.method!r} was not answered by {self._state.peer} within {within_s} s.\n"
                    f"The other side may still be at work; the answer will be ignored."
                )
        while not reply._done:  # another thread is resolving it
            self._waiters.wait_unless(reply, reply.done, None)

    def _expire(self) -> None:
        with self.lock:
            late = self._open.expire(self._hub.clock.now_s())
            self.num_timed_out += len(late)
            next_due_s = self._open.next_deadline_s()
        for reply in late:
            error = Expired(f"{reply.method!r} was not answered by {self._state.peer} before its deadline.")
            reply.resolve(None, error)
            self._waiters.wake(reply)
        if next_due_s is not None:
            self._alarm.set(next_due_s)

    def cancel(self, reply: Reply) -> bool:
        with self.lock:
            is_open = reply.call_id and self._open.close(reply.call_id) is not None
            # Neither open nor done: it waits for room, or its link has just ended, or its answer is being handled.
            if reply._done or (reply.call_id and not is_open and self._state.ending is None):
                return False
            reply._error, reply._done = Cancelled(f"{reply.method!r} was cancelled before it was answered."), True
        self.send_about(frames.CANCEL, reply.call_id)
        self._waiters.wake(reply)
        reply.run_callbacks()
        return True

    def send_about(self, kind: int, call_id: int, head: bytes = b"") -> None:
        """Send a frame about an open call. Does nothing if the link has ended."""
        if call_id and self._state.ending is None:
            with contextlib.suppress(ClosedError):
                self._send(frames.encode(kind, call_id, head))

    # -- frames of the peer ----------------------------------------------------------------------------------------

    def on_answer(self, frame: Frame, loads: Callable[..., Any], load_error: Callable[[bytes], Any] | None) -> bool:
        """Handle REPLY or ERROR. Return False if nobody waits for it. Raises `WireError` for an invalid answer."""
        with self.lock:
            reply = self._open.close(frame.call_id)
        if reply is None:
            self.num_late_answers += 1
            return False
        if reply.began_s is not None:
            self.latencies.add(self._hub.now_s() - reply.began_s)
        value, error, failure = None, None, None
        try:
            if frame.kind == frames.REPLY:
                value = loads(frame.head, frame.buffers)
            else:
                error = unpack_error(frame.head, load_error)
        except BaseException as raised:  # raised by the value's own type: the caller must learn why
            failure = raised
        reply.resolve(value, failure or error)
        if self._waiters.asleep:
            self._waiters.wake(reply)
        try:
            if failure is not None and (isinstance(failure, WireError) or not isinstance(failure, Exception)):
                raise failure
        finally:
            del failure, error  # otherwise they would keep this frame, and so the received bytes
        return True

    def on_item(self, frame: Frame, loads: Callable[..., Any]) -> bool:
        """Handle ITEM. Return False if nobody waits for it. Raises `WireError` if it is not expected."""
        with self.lock:
            reply = self._open.get(frame.call_id)
        if reply is None:
            return False
        if reply.on_item is None:
            raise WireError("an answer came in parts, where one was asked for.")
        try:
            reply.on_item(loads(frame.head, frame.buffers), cost_of(frame.head, frame.buffers))
        except ValueError as error:
            raise WireError(f"the peer gave more than was asked for: {error}.") from error
        return True

    def on_credit(self, frame: Frame) -> None:
        """Handle CREDIT. Raises `WireError` if it cannot be true."""
        with self.lock:
            try:
                turns = self.spending.credit(*_CREDIT.unpack(frame.head))
            except (struct.error, ValueError) as error:
                raise WireError(f"the peer gave credit that it cannot give: {error}.") from error
            want = self._want()
        self._give_turns(turns, want)

    # -- the end ---------------------------------------------------------------------------------------------------

    def fail_all(self) -> list[Reply]:
        """The link has ended: fail all calls. Return those whose callbacks the caller must run."""
        with self.lock:
            replies, turns = self._open.close_all(), self.spending.lose()
        self._alarm.cancel()
        for turn in turns:
            turn.settle(None, self._state.ended_error(turn.method, "was not sent"))
        for reply in replies:
            reply.settle(None, self._state.ended_error(reply.method, "was not answered", WorkerLostError))
        self._waiters.wake_all()
        return replies

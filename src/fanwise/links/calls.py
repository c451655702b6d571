"""The caller's half of a link: open calls, their replies and deadlines, and the credit that calls cost.

A call on credit waits until the peer has room for it (`credits`). Other calls, and replies, never wait.

Invariants
- A reply is resolved exactly once, by the thread that reads the answer, misses the deadline, cancels, or ends the link.
  Its callbacks run on that thread afterwards. A callback that raises is logged and stops nothing else.
- A call is open until its reply is resolved. So an interrupted thread, which starts again, finds all that is left.
- Credit that was taken for a call that was not sent is always returned: at the end of the link, for values that cannot
  be copied, after Ctrl-C. A call counts as sent when the `Writer` begins to write it, which empties its list of parts.
  CPython delivers interrupts only where a function begins or a C function has returned, so none can come between taking
  credit, or opening a call, and recording that in the next statement.
"""

import contextlib
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any

from ..base.errors import CancelledError, ClosedError, DeadlineExceeded, WindowFullError, WireError, WorkerLostError
from . import frames
from .codec import unpack_error
from .counts import Latencies
from .credits import Spending
from .frames import Buffer, Frame
from .hub import Alarm
from .peers import LinkState, NeverSent
from .reader import Reader, may_wait_for

_log = logging.getLogger(__name__)

_CREDIT, _WANT = struct.Struct("<QQ"), struct.Struct("<Q")

Waiting = Callable[[], contextlib.AbstractContextManager[None]]
# Called with each reply that a thread is about to wait for, so that another thread can cancel it.
Watch = Callable[["Reply"], object]


def was_never_sent(error: BaseException) -> bool:
    """Return True if `call_on_credit` or `ask_on_credit` raised this before any byte of the call was sent.

    Also for errors that did not come from the link, such as a KeyboardInterrupt during the wait for credit.
    """
    return getattr(error, "_was_never_sent", False)


class Reply:
    """The future result of one call."""

    __slots__ = (
        *("_callback", "_calls", "_done", "_due_s", "_error", "_more", "_value"),
        *("began_s", "call_id", "cost", "link", "method", "was_interrupted"),
    )

    def __init__(self, calls: "Calls", method: str, due_s: float | None = None) -> None:
        self._calls = calls
        self.link = calls.link
        self.method = method
        self.call_id = self.cost = 0  # set when the call is opened
        self.began_s: float | None = None  # set for calls on credit
        self._due_s = due_s
        self._done = False
        self.was_interrupted = False  # while the answer was unpickled
        self._value: Any = None
        self._error: BaseException | None = None
        # Most replies have one callback, and thousands may be open: no list, which the garbage collector would visit.
        self._callback: Callable[[Reply], object] | None = None
        self._more: tuple[Callable[[Reply], object], ...] = ()

    def done(self) -> bool:
        return self._done

    def result(self, within_s: float | None = None) -> Any:
        """Block until the answer is here, and return it.

        Raises the error of the peer; `WorkerLostError` or `ClosedError` if the link ends first; `DeadlineExceeded`
        after `within_s` seconds, when a later answer is ignored.
        """
        if not self.wait(within_s):
            self._calls.time_out(self, f"within {within_s} s")
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # otherwise the error would keep this frame, and this frame the error
        return self._value

    def wait(self, within_s: float | None = None) -> bool:
        """Block until it is done, at most `within_s` seconds. Return whether it is done."""
        if not self._done:
            self._calls.check_may_wait(self.method)
            self._calls.wait(self, within_s)
        return self._done

    def add_done_callback(self, callback: "Callable[[Reply], object]") -> None:
        """Call `callback(self)` when the answer is here, on the thread that reads it; at once if it is done.

        A callback must tolerate a second call, which follows an interrupt such as Ctrl-C.
        """
        with self._calls.lock:
            if not self._done:
                if self._callback is None:
                    self._callback = callback
                else:
                    self._more = (*self._more, callback)
                return
        callback(self)

    def cancel(self) -> bool:
        """Fail with `CancelledError` and tell the peer. Return False if it was done before."""
        error = CancelledError(f"{self.method!r} was cancelled before it was answered.")
        try:
            if not self.settle(None, error):
                return False
            self._calls.send_cancel(self.call_id)  # before a thread that wakes up can send more
            self.announce()
        except BaseException:  # an interrupt; a second CANCEL is ignored
            if self._error is error:
                self._calls.send_cancel(self.call_id)
                self.announce()
            raise
        return True

    def resolve(self, value: object, error: BaseException | None) -> bool:
        """Set the result, wake the threads that wait for it, and run the callbacks. Return False if it was done."""
        try:
            if not self.settle(value, error):
                return False
            self.announce()
        except BaseException:  # an interrupt: nobody else would
            if self._done and self._value is value and self._error is error:
                self.announce()
            raise
        return True

    def settle(self, value: object, error: BaseException | None) -> bool:
        """Set the result, and close the call. Return False if it was done."""
        with self._calls.lock:
            if self._done:
                return False
            self._value, self._error = value, error
            self._done = True
            self._calls.open_replies.pop(self.call_id, None)
        return True

    def announce(self) -> None:
        """Wake the threads that wait for the result, and run the callbacks."""
        self._calls.wake(self)
        while (callback := self._callback) is not None:
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of the answer to %r failed", self.method)
            with self._calls.lock:
                if self._callback is callback:  # otherwise another thread has called it too, at the end of the link
                    self._callback, self._more = (self._more[0], self._more[1:]) if self._more else (None, ())


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
        self.open_replies: dict[int, Reply] = {}  # sent and not done, by id
        self.num_opened = 0
        self._failed: list[Reply] = []  # by the end of the link
        self._alarm = Alarm(state.hub, self._expire)
        self.spending: Spending[Reply] = Spending()
        self.latencies = Latencies()
        self.num_on_credit = self.num_timed_out = self.num_late_answers = self.num_refused = 0

    # -- beginning a call ------------------------------------------------------------------------------------------

    def open(self, reply: Reply) -> None:
        """Open a call without credit. Raises `ClosedError` or `NeverSent` if the link has ended.

        If this or a later step raises, call `take_back`. This holds for `open_on_credit`, too.
        """
        self._hub.check_usable()
        with self.lock:
            self._open(reply, "cannot be asked")
        if reply._due_s is not None:
            self._alarm.set(reply._due_s)

    def _open(self, reply: Reply, failure: str) -> None:
        """Open a call, with the lock held. Ids are never used twice."""
        if self._state.ending is not None:
            raise self._state.ended_error(reply.method, failure)
        self.num_opened += 1
        reply.call_id = self.num_opened
        self.open_replies[reply.call_id] = reply

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

        Raises as `Link.call_on_credit`.
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
                self._open(reply, "cannot be asked")
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
            if not turn._done:
                raise DeadlineExceeded(
                    f"{turn.method!r} was not sent within {within_s} s: {self._state.peer} had no room for it."
                )
            if turn._error is not None:
                raise turn._error
            with self.lock:
                self._open(reply, "was not sent")
                reply.cost = cost
                self.num_on_credit += 1
        except BaseException:
            if not reply.cost:
                with self.lock:
                    turns = self.spending.give_up(turn, cost) if turn.cost else self.spending.withdraw(turn, cost)
                    want = self._want()
                self._give_turns(turns, want)
            raise
        finally:
            del turn  # otherwise an error would keep this frame, and so the message, until a garbage collection

    def take_back(self, reply: Reply, parts: list[Buffer] | None, error: BaseException) -> None:
        """Close a call, return its credit and mark `error` for `was_never_sent`, unless it was sent.

        Args:
            parts: of the message, which the `Writer` empties; None if there are none yet.
        """
        if parts is not None and not parts:
            return
        error._was_never_sent = True  # type: ignore[attr-defined]  # the mark
        if not (reply.call_id or reply.cost):  # also in a fork, where another thread may hold the lock
            return
        with self.lock:
            self.open_replies.pop(reply.call_id, None)
            cost, reply.cost = reply.cost, 0
            if not cost:
                return
            self.num_on_credit -= 1
            turns, want = self.spending.refund(cost), self._want()
        self._give_turns(turns, want)

    def _want(self) -> list[Buffer]:
        """Return a WANT frame if calls wait for credit."""
        position = self.spending.wanted()
        return [] if position is None else frames.encode(frames.WANT, 0, _WANT.pack(position))

    def _give_turns(self, turns: Sequence[Reply], want: list[Buffer]) -> None:
        for turn in turns:
            turn.resolve(None, None)
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
        """Block until the reply is done, at most `within_s` seconds. After `check_may_wait`."""
        now_s = self._hub.now_s
        due_s = until_s = reply._due_s
        if within_s is not None:
            until_s = now_s() + within_s if due_s is None else min(now_s() + within_s, due_s)
        try:
            while not reply._done:
                left_s = None if until_s is None else max(0.0, until_s - now_s())
                self._reader.wait_for(reply, left_s)
                if until_s is not None and not reply._done and now_s() >= until_s:
                    if due_s is not None and now_s() >= due_s:
                        self.time_out(reply, "before its deadline")
                    return
        finally:
            if self._waiters.asleep:
                self._waiters.wake_one()  # another waiting thread may read now

    def wake(self, reply: Reply) -> None:
        if self._waiters.asleep:
            self._waiters.wake(reply)

    def time_out(self, reply: Reply, limit: str) -> None:
        """Fail, unless the reply is done."""
        text = (
            f"{reply.method!r} was not answered by {self._state.peer} {limit}.\n"
            f"The other side may still be at work; the answer will be ignored."
        )
        if reply.resolve(None, DeadlineExceeded(text)):
            with self.lock:
                self.num_timed_out += 1

    def _expire(self) -> None:
        try:
            now_s = self._hub.clock.now_s()
            for reply in list(self.open_replies.values()):
                if reply._due_s is not None and reply._due_s <= now_s:
                    self.time_out(reply, "before its deadline")
        finally:
            due_s = [reply._due_s for reply in list(self.open_replies.values()) if reply._due_s is not None]
            if due_s:
                self._alarm.set(min(due_s))

    def send_cancel(self, call_id: int) -> None:
        """Tell the peer that an open call was canceled. Does nothing if the link has ended."""
        if call_id and self._state.ending is None:
            with contextlib.suppress(ClosedError):
                self._send(frames.encode(frames.CANCEL, call_id, b""))

    # -- frames of the peer ----------------------------------------------------------------------------------------

    def on_answer(self, frame: Frame, loads: Callable[..., Any], load_error: Callable[[bytes], Any] | None) -> bool:
        """Handle REPLY or ERROR. Return False if nobody waits for it. Raises `WireError` for an invalid answer.

        After an interrupt while the call is open, call this again.
        """
        reply = self.open_replies.get(frame.call_id)
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
        except BaseException as raised:
            if not isinstance(raised, Exception) and not reply.was_interrupted:
                reply.was_interrupted = True
                raise  # this thread was interrupted, perhaps not the one that waits for the answer
            failure = raised  # raised by the value's own type: the caller must learn why
        try:
            if not reply.resolve(value, failure or error):  # it has just been canceled, or was too late
                self.num_late_answers += 1
                return False
            if failure is not None and (isinstance(failure, WireError) or not isinstance(failure, Exception)):
                raise failure
        finally:
            del failure, error  # otherwise they would keep this frame, and so the received bytes
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

    def fail_all(self) -> None:
        """The link has ended: fail all calls. If this is interrupted, call it again."""
        self._alarm.cancel()
        with self.lock:
            self._failed.extend(self.open_replies.values())
            self._failed.extend(self.spending.waiting())
        for reply in self._failed:  # all of them first, because callbacks may read other replies
            failure = ("was not answered", WorkerLostError) if reply.call_id else ("was not sent", NeverSent)
            reply.settle(None, self._state.ended_error(reply.method, *failure))
        for reply in self._failed:
            reply.announce()
        self._failed.clear()

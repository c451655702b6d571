"""The futures of calls that were sent or wait for their link. `call.Call` is their interface.

    CallFuture   a call that was sent. A waiting thread reads the reply itself
    QueuedCall   a call that waits for its link; QueuedRequest: an internal request

Deserializing a reply runs user code. It is done once, by the waiting thread or, if there is none, outside the reading
threads. Callbacks run on the thread that deserializes the reply.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from ...base.errors import (
    CancelledError,
    ClosedError,
    DeadlineExceeded,
    FanwiseError,
    OwnerLostError,
    RemoteError,
    WorkerLostError,
)
from ...links.calls import was_never_sent
from ...links.credits import cost_of
from ...links.link import Link, Reply
from ...links.peers import NeverSent
from ..messages.messages import Message
from ..worker_info import WorkerInfo
from .call import Call, ChainedCall
from .cancellation import current_scope
from .futures import raise_copy, unwrap, wait_for

if TYPE_CHECKING:
    from ..agent import Agent


class CallFuture(Call[Any]):
    """A call that was sent. Created by `Sender.call`."""

    # Thousands may be pending, so keep the number of objects for the garbage collector small.
    __slots__ = ("_agent", "_has_waiter", "_limit_s", "_reply", "_to", "_unread")
    was_sent = True

    def __init__(self, agent: "Agent", reply: Reply, to: WorkerInfo, limit_s: float | None) -> None:
        super().__init__()
        self._agent = agent
        self._reply = reply
        self._to = to
        self._limit_s = limit_s
        self._has_waiter = False
        self._unread = True  # deleted by the thread that reads the reply
        reply.add_done_callback(self._on_reply)

    def wait(self) -> Any:
        """Block until the reply arrives.

        Raises the error of the function; `WorkerLostError`, `DeadlineExceeded`; `CancelledError` after `cancel()`.
        """
        agent = self._agent
        scope = current_scope()
        if scope is not None:
            scope.check()
        # Cancellation does not cancel a call that the waiting function did not make, but must interrupt its wait.
        if hasattr(self, "_unread") and (scope is None or scope.contains(self._reply)):
            try:
                self._has_waiter = True
                with agent.waiting():
                    self._reply.wait()
                outcome = self._read_reply()
            except BaseException:  # Ctrl-C: other threads may wait, or have added callbacks
                self._has_waiter = False
                if self._reply.done():
                    agent.answer(self._read_reply_as_job)
                raise
            if outcome is not None:  # read by this thread, so torch's future is not needed
                value, error = outcome
                if error is not None:
                    raise_copy(error)
                return value
        if not self.done():
            with agent.waiting():
                wait_for(self)
        return unwrap(super().wait)

    def cancel(self) -> bool:
        had_waiter = self._has_waiter
        try:
            self._has_waiter = True  # so that this thread reads the reply
            if self._reply.cancel():
                self._read_reply()
                return True
            return False
        finally:
            self._has_waiter = had_waiter
            if not had_waiter and self._reply.done():  # the reply arrived meanwhile, or Ctrl-C
                self._agent.answer(self._read_reply_as_job)

    def _on_reply(self, _reply: Reply) -> None:
        """Handle the reply, on a reading thread."""
        if not self._has_waiter:
            self._agent.answer(self._read_reply_as_job)

    def _read_reply_as_job(self) -> None:
        self._read_reply()

    def _read_reply(self) -> tuple[Any, Exception | None] | None:
        """Deserialize the reply, complete, and return the value and the error. None if another thread does so."""
        try:
            del self._unread
        except AttributeError:
            return None
        try:
            value = self._agent.serializer.deserialize(self._reply.result(), self._to.id).value
        except Exception as error:
            error.with_traceback(None)  # the reply holds the error, which would hold the frames of the callers
            explained = call_error(error, self._to, self._limit_s, closed=self._agent.is_closed)
            self.set_exception(explained)
            return None, explained
        except BaseException as error:  # Ctrl-C, or user code: wake the other waiting threads
            self.set_exception(
                RemoteError(f"reading a reply of worker {self._to.name} was interrupted by {type(error).__name__}.")
            )
            raise
        self.set_result(value)
        return value, None


class QueuedCall:
    """A serialized call that waits for its link. `routes.Routes` calls `send` or `fail` once.

    Buffers are copied, because the caller may change its arrays at once.

    Args:
        message: the serialized call. It is rolled back if it is not sent.
        limit_s: time limit in seconds, including the wait for the link; None: no limit.

    Attributes:
        future: for the program. If it is canceled first, the call is not sent.
        deadline_s: on the hub's clock.
        num_bytes: size of the message.
    """

    def __init__(self, agent: "Agent", message: Message, to: WorkerInfo, limit_s: float | None) -> None:
        self.future = ChainedCall()
        self.deadline_s = None if limit_s is None else agent.now_s() + limit_s
        self.num_bytes = cost_of(message.head, message.buffers)
        self._agent = agent
        self._message = message._replace(buffers=[memoryview(bytes(buffer)) for buffer in message.buffers])
        self._to = to
        self._limit_s = limit_s

    def send(self, link: Link) -> None:
        """Send the call over `link`."""
        if self.future.done():
            self.fail(CancelledError("canceled while waiting for its link"))
            return
        remaining_s = None if self.deadline_s is None else max(0.0, self.deadline_s - self._agent.now_s())
        try:
            reply = link.call_on_credit(
                self._message,  # type: ignore[arg-type]  # `dumps` knows it
                deadline_s=remaining_s,
                waiting=self._agent.waiting,
                overdraws=True,
            )
        except FanwiseError as error:
            self.fail(error)
            return
        except BaseException as error:  # an interrupt of the thread that opens the link; the caller is another one
            if was_never_sent(error):
                self.fail(CancelledError("interrupted before it was sent"))
            else:
                self.future.fail(RemoteError("sending the call was interrupted; it may have been sent"))
            raise
        keep_alive_until(reply, self._message)
        call = CallFuture(self._agent, reply, self._to, self._limit_s)
        # As a job, because the call may be done already, and callbacks are user code.
        self._agent.answer(partial(self.future.follow, call))

    def fail(self, error: FanwiseError) -> None:
        """Fail because there is no link."""
        explained = call_error(error, self._to, self._limit_s, closed=self._agent.is_closed)
        self._agent.answer(partial(self._roll_back, explained))

    def _roll_back(self, error: Exception) -> None:
        try:
            self._agent.serializer.roll_back(self._message, self._to.id)
        finally:
            self.future.fail(error)


class QueuedRequest:
    """An internal request to another worker, which waits for a link if there is none. Created by `Agent.request`.

    Args:
        future: completed with the result of the peer's handler.
    """

    deadline_s: float | None = None
    num_bytes = 0  # not counted against the queue limit

    def __init__(self, future: "Future[Any]", method: str, args: Sequence[object]) -> None:
        self._future = future
        self._method = method
        self._args = args

    def try_send(self, link: Link) -> bool:
        """Send over `link`. Return False if it has ended."""
        try:
            reply = link.call(self._method, *self._args)
        except NeverSent:
            return False
        reply.add_done_callback(self._on_reply)
        return True

    def send(self, link: Link) -> None:
        """Send, or fail. Called once, by `routes.Routes`."""
        try:
            if not self.try_send(link):
                self._future.set_exception(NeverSent(f"{self._method!r} was not sent: the link has ended."))
        except Exception as error:
            self._future.set_exception(error)
        except BaseException:  # as in `QueuedCall.send`
            self._future.set_exception(RemoteError(f"sending {self._method!r} was interrupted"))
            raise

    def fail(self, error: FanwiseError) -> None:
        """Fail because there is no link."""
        self._future.set_exception(error)

    def _on_reply(self, reply: Reply) -> None:
        if self._future.done():  # a second call, after an interrupt
            return
        try:
            self._future.set_result(reply.result())
        except Exception as error:
            self._future.set_exception(error)


def keep_alive_until(reply: Reply, message: Message) -> None:
    """Keep references in a call alive until the reply."""
    if message.keep_alive:
        reply.add_done_callback(lambda _, keep_alive=message.keep_alive: None)  # type: ignore[misc]


def call_error(error: Exception, to: WorkerInfo, limit_s: float | None, *, closed: bool) -> Exception:
    """Return the error of a call in terms of the worker instead of the link. `closed`: this process shut down."""
    if hasattr(error, "__notes__"):
        return error  # raised by the callee: a note has its traceback
    if isinstance(error, DeadlineExceeded) and limit_s is not None:
        limit_ms = round(limit_s * 1000)
        return DeadlineExceeded(
            f"RPC ran for more than set timeout ({limit_ms} ms) and will now be marked with an error: "
            f"worker {to.name} has not answered. Its function may still run."
        )
    if isinstance(error, CancelledError):
        return CancelledError(
            f"the call on worker {to.name} was canceled here before it was answered. "
            f"If its function has started, its next wait raises CallCancelled."
        )
    if isinstance(error, ClosedError):
        if closed:
            return ClosedError(f"the call on worker {to.name} was not answered: RPC was shut down in this process.")
        return WorkerLostError(f"worker {to.name} (rank {to.id}) left before it answered: {error.message}")
    if isinstance(error, WorkerLostError) and not isinstance(error, OwnerLostError):
        return WorkerLostError(f"worker {to.name} (rank {to.id}) was lost before it answered: {error.message}")
    return error

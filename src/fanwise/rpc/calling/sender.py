"""The caller's half of a call; `server` has the other.

    call, call_sync --> get a link --> serialize function and arguments --> send when the link has room
                          no link: a `QueuedCall` waits for one, or this thread does

A serialized message may carry forks of references, so it is either sent or rolled back. A link that ended before
anything was sent is replaced by another; nothing is sent twice.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.futures import Future

from ...base.errors import DeadlineExceeded, FanwiseError, WindowFullError
from ...links.calls import was_never_sent
from ...links.link import Link
from ...links.peers import NeverSent
from .. import allowed
from .. import current as process
from ..constants import UNSET_RPC_TIMEOUT
from ..messages import pickling
from ..messages.ids import Created, Invocation
from ..messages.messages import Message, addressed
from ..messages.metadata import Address
from ..worker_info import WorkerInfo
from . import cancellation
from .call import Call, ChainedCall
from .call_future import CallFuture, QueuedCall, call_error, keep_alive_until
from .errors import explain_error
from .futures import result_of

if TYPE_CHECKING:
    from ..agent import Agent

T = TypeVar("T")


class Sender:
    """Sends the calls of one worker."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._serializer, self._connections = agent.serializer, agent.connections
        self._num_forks = process.num_forks

    def call(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        *,
        timeout_s: float,
        remote: Created | None = None,
        address: Address | None = None,
    ) -> Call[Any]:
        """Run a function on `to` and return a future of its result. `timeout_s`: 0 means no limit, -1 the default.

        `remote` is set if the value stays on `to`, `address` for a call to an actor.
        """
        try:
            limit_s = self.time_limit(timeout_s)
        except DeadlineExceeded as error:
            return ChainedCall.failed(error)
        scope = cancellation.current_scope()
        parent = scope if remote is None else None  # a remote value is released by its references

        def send(link: Link, message: Message) -> Call[Any]:
            reply = link.call_on_credit(
                message,  # type: ignore[arg-type]  # `dumps` knows it
                deadline_s=limit_s,
                waiting=self._agent.waiting,
                watch=None if scope is None else scope.add_child,
            )
            keep_alive_until(reply, message)
            if parent is not None:
                parent.add_child(reply)
            return CallFuture(self._agent, reply, to, limit_s)

        def queue(message: Message) -> Call[Any] | None:
            call = QueuedCall(self._agent, message, to, limit_s)
            if not self._connections.queue(to.id, call):
                return None
            if parent is not None:
                parent.add_child(call.future)
            return call.future

        mode = "async" if remote is None else "remote"
        serialize = partial(self._serialize, to, invocation, mode, limit_s, remote, address)
        return self._send(to, limit_s, serialize, send, queue=queue, fail=ChainedCall.failed)

    def call_sync(
        self, to: WorkerInfo, invocation: Invocation, *, timeout_s: float, address: Address | None = None
    ) -> Any:
        """As `call`, and wait. The calling thread reads the reply itself."""
        limit_s = self.time_limit(timeout_s)
        scope = cancellation.current_scope()
        watch = None
        if scope is not None:
            scope.check()
            watch = scope.add_child

        def send_and_wait(link: Link, message: Message) -> Any:
            with self._agent.waiting():
                return link.ask_on_credit(message, within_s=limit_s, watch=watch)  # type: ignore[arg-type]  # `dumps` knows it

        serialize = partial(self._serialize, to, invocation, "sync", limit_s, None, address)
        reply = self._send(to, limit_s, serialize, send_and_wait)
        return self._serializer.deserialize(reply, to.id).value

    def _send(
        self,
        to: WorkerInfo,
        limit_s: float | None,
        serialize: Callable[[], Message],
        send: Callable[[Link, Message], T],
        *,
        queue: Callable[[Message], T | None] | None = None,
        fail: Callable[[Exception], T] | None = None,
    ) -> T:
        """Serialize a call and return the result of `send`, or of `queue` if there is no link.

        If the link has ended before anything was sent, the message is rolled back and the call is sent over another
        link. It is also rolled back on any error that is raised before it was sent.

        Args:
            queue: returns None if the queue is full. Then, and without it, this thread waits for the link.
            fail: returns the result for an error of the link or the worker. Without it the error is raised.
        """
        while True:
            try:  # before serializing, because a message must be sent or rolled back
                link = self._connections.get_open(to.id)
                if link is None:
                    link = self._connections.get_without_waiting(to.id) if queue else self._open_link(to, limit_s)
            except FanwiseError as error:
                return self._failed(error, to, limit_s, fail)
            message = serialize()
            queued = queue(message) if link is None and queue is not None else None
            if queued is not None:
                return queued
            try:
                link = link or self._wait_for_queue(to, message, limit_s)
                return send(link, message)
            except NeverSent:
                self._serializer.roll_back(message, to.id)
            except BaseException as error:
                if link is None or was_never_sent(error):
                    self._serializer.roll_back(message, to.id)
                if not isinstance(error, FanwiseError) or isinstance(error, WindowFullError):
                    raise
                cancellation.check()
                return self._failed(error, to, limit_s, fail)

    def _failed(
        self, error: Exception, to: WorkerInfo, limit_s: float | None, fail: Callable[[Exception], T] | None
    ) -> T:
        explained = call_error(error, to, limit_s, closed=self._connections.closed)
        if fail is None:
            raise explained from None
        return fail(explained)

    def _wait_for_queue(self, to: WorkerInfo, message: Message, limit_s: float | None) -> Link:
        """Wait on this thread until the queued calls are sent, because the queue of calls is full."""
        if self._agent.may_wait():
            return self._connections.to(to.id, within_s=limit_s)
        self._connections.traffic.count_refusal(to.name, "window_full")
        raise WindowFullError(
            f"the call of {message!r} was not sent: the queue of calls that wait for a link to worker {to.name} "
            f"is full, and this thread reads answers, so it must not wait.\n"
            f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
        )

    def _open_link(self, to: WorkerInfo, limit_s: float | None) -> Link:
        """Open a link to `to`.

        A called function lets another thread connect, so that cancellation of the running call can interrupt this one:
        the peer may be stopped and never answer.
        """
        if cancellation.current_scope() is None:
            return self._connections.to(to.id, within_s=limit_s)
        connected: Future[Link] = Future()

        def connect() -> None:
            try:
                connected.set_result(self._connections.to(to.id, within_s=limit_s))
            except Exception as error:
                connected.set_exception(error)  # type: ignore[arg-type]  # annotated wrongly in torch

        self._agent.outside(connect)
        with self._agent.waiting():
            link: Link = result_of(connected)
        return link

    def time_limit(self, timeout_s: float) -> float | None:
        """Return the time limit of a call in seconds. Raises ClosedError in a fork, whose locks may be held."""
        if self._num_forks != process.num_forks:
            raise process.forked_error(self._agent.info)
        try:
            if not timeout_s >= 0:
                if timeout_s != UNSET_RPC_TIMEOUT:
                    raise _expired_error(timeout_s)
                timeout_s = self._agent.timeout_s
        except TypeError:
            raise TypeError(f"timeout must be a number of seconds, 0 for no limit; got {timeout_s!r}.") from None
        return timeout_s or None

    def _serialize(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        mode: str,
        limit_s: float | None,
        remote: Created | None = None,
        address: Address | None = None,
    ) -> Message:
        """Serialize a call. A profiler records it under torch's name."""
        name, serializer = _name_of(invocation[0]), self._serializer
        if serializer.sends_plain_calls(to.id):
            serializer.check_plain_call(to.id, name, remote=remote)
            try:
                return allowed.encode_call(invocation, name)
            except Exception as error:
                encode, hint = allowed.check_plain, allowed.PLAIN_HINT
                raise explain_error(error, invocation, name, to.name, encode=encode, hint=hint) from error
        profile: AbstractContextManager[Any] = nullcontext()
        if torch._C._autograd._profiler_enabled():
            profile = torch.autograd.profiler.record_function(
                f"rpc_{mode}#{name}({self._agent.info.name} -> {to.name})"
            )
        try:
            with profile:
                message = serializer.serialize(invocation, to.id, call=name, remote=remote)
        except Exception as error:
            raise explain_error(error, invocation, name, to.name, encode=partial(pickling.encode, to=to.id)) from error
        return message if address is None else addressed(message, address._replace(left_s=limit_s or 0.0))


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _expired_error(timeout_s: float) -> FanwiseError | ValueError:
    """Return the error of a call with a negative or NaN timeout, with the message of torch."""
    if math.isnan(timeout_s):
        return ValueError("timeout must be a number of seconds, 0 for no limit; got nan.")
    return DeadlineExceeded(
        f"RPC ran for more than set timeout ({timeout_s * 1000:.0f} ms) and will now be marked with an error: its "
        f"time was over before it began, so it was not sent. 0 means no limit, -1 the default of this worker."
    )

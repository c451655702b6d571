"""Where calls are sent: the caller's half of a call, as `serving` is the callee's.

    call, call_sync, stream --> which link? --> function and arguments --> Message --> the link, when it has room
                                  none: `queued_call` waits for one, or this thread does

What is serialized leaves, or is taken back: it may carry forks of references, and loans. A link that has just ended is
replaced by another one as long as nothing was sent on it; nothing is sent twice. Knows no member and no autograd.
"""

import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from ...base.errors import ClosedError, DeadlineExceeded, FanwiseError, WindowFullError
from ...links.link import Link, NeverSent, Reply, was_never_sent
from .. import current as process
from ..actors.address import Address
from ..connections.connections import Connections
from ..constants import UNSET_RPC_TIMEOUT
from ..messages import pickling
from ..messages.messages import Message, addressed
from ..messages.metadata import Created
from ..messages.serializer import Serializer
from ..references.references import References
from ..streams import reading
from ..streams.reading import Incoming, Stream
from ..streams.window import Window
from ..worker_info import WorkerInfo
from . import cancelling, queued_call
from .call import Call, Following, Invocation
from .call_future import CallFuture, failed, not_sent, until_answered
from .outcomes import wait_for_event
from .queued_call import QueuedCall

T = TypeVar("T")


class Agent(queued_call.Agent, reading.Agent, Protocol):
    """What is asked of the agent. `timeout_s`: of calls that say none."""

    @property
    def timeout_s(self) -> float: ...


class Sender:
    """Sends the calls of one worker.

    Args:
        is_leaving: notes by which link the references and loans of a message leave. False: that has ended.
    """

    def __init__(
        self,
        agent: Agent,
        serializer: Serializer,
        connections: Connections,
        references: References,
        *,
        is_leaving: Callable[[Message, Link], bool],
    ) -> None:
        self._agent = agent
        self._serializer = serializer
        self._connections = connections
        self._references = references
        self._is_leaving = is_leaving
        self._streams: weakref.WeakSet[Incoming] = weakref.WeakSet()
        self._num_forks = process.num_forks

    def call(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        *,
        timeout_s: float,
        remote: Created | None = None,
        address: Address | None = None,
    ) -> Call[Any]:  # Any: what the function returns
        """Run a function on `to`; the future is done with what it returns. `timeout_s`: 0 is for ever, -1 the default.

        `remote`: what the references send along when the value stays on `to`. `address`: of a call for an actor.
        """
        try:
            limit_s = self._begin(timeout_s)
        except DeadlineExceeded as error:
            return Following.failed(error)
        if address is not None:
            address = address._replace(left_s=limit_s or 0.0)
        link = self._connections.ready(to.id)
        if link is None:  # first: what is serialized must leave, or be taken back
            try:
                link = self._connections.at_once(to.id)
            except FanwiseError as error:
                return Following.failed(failed(error, to, limit_s, closed=self._connections.closed))
        mode = "async" if remote is None else "remote"
        scope = cancelling.here()
        nest_in = scope if remote is None else None  # a value that stays there belongs to its references
        while True:
            message = self._serialize_call(to, invocation, remote, mode, address)
            if link is None:
                return self._queued(message, to, limit_s, nest_in)
            is_asked = False
            try:
                if (message.carries or message.loans) and not self._is_leaving(message, link):
                    self._take_back(message, to)  # the link has just ended: by another one, then
                    link = self._connections.ready(to.id)
                    continue
                is_asked = True
                reply = link.call_on_credit(
                    message,  # type: ignore[arg-type]  # `dumps` knows it
                    deadline_s=limit_s,
                    waiting=self._agent.waiting,
                    watch=None if scope is None else scope.nest,
                )
            except NeverSent:  # it has just ended
                self._take_back(message, to)
                if remote is not None and not self._references.stays(remote):
                    return Following.failed(not_sent(to))
                link = None
                continue
            except BaseException as error:
                if not is_asked or was_never_sent(error):
                    self._take_back(message, to)
                if not isinstance(error, FanwiseError) or isinstance(error, WindowFullError):
                    raise
                cancelling.check()
                return Following.failed(failed(error, to, limit_s, closed=self._connections.closed))
            if message.keeps:
                reply.add_done_callback(partial(until_answered, message.keeps))
            call = CallFuture(self._agent, reply, to, limit_s)
            if nest_in is not None:
                nest_in.nest(reply)
            return call

    def _take_back(self, message: Message, to: WorkerInfo) -> None:
        """Nothing of `message` has left: give back what it holds."""
        take_back = partial(self._serializer.take_back, message, to.id)
        if self._agent.may_wait():
            take_back()
        else:
            self._agent.outside(take_back)

    def _wait_for_link(
        self, to: WorkerInfo, call: QueuedCall, message: Message, limit_s: float | None
    ) -> Call[Any]:  # Any: what the function returns
        """Too many calls wait for this link to let one more: this thread waits for it itself."""
        if not self._agent.may_wait():
            self._connections.traffic.refused(to.name, "window_full")
            self._take_back(message, to)
            raise WindowFullError(
                f"the call of {message!r} was not sent: as many calls as may wait for a link to worker {to.name} do, "
                f"and this thread reads answers, so it must not wait.\n"
                f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
            )
        link = None
        try:
            link = self._connections.to(to.id, within_s=limit_s)
            call.send(link)
        except BaseException as error:
            if link is None or was_never_sent(error):
                self._take_back(message, to)
            if not isinstance(error, FanwiseError):
                raise
            return Following.failed(failed(error, to, limit_s, closed=self._connections.closed))
        return call

    def call_sync(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        *,
        timeout_s: float,
        address: Address | None = None,
    ) -> Any:  # Any: what the function returns
        """As `call`, and wait. The calling thread reads its own answer."""
        limit_s = self._begin(timeout_s)
        if address is not None:
            address = address._replace(left_s=limit_s or 0.0)
        scope = cancelling.here()
        watch = None
        if scope is not None:
            scope.check()
            watch = scope.nest

        def ask(link: Link, message: Message) -> tuple[Any, Link]:  # Any: what the link brings, a `Message`
            released = self._agent.begin_waiting()
            try:
                return link.ask_on_credit(message, within_s=limit_s, watch=watch), link  # type: ignore[arg-type]  # `dumps` knows it
            finally:
                if released:
                    self._agent.end_waiting()

        answer, link = self._send(ask, to, invocation, limit_s, "sync", address)
        return self._serializer.deserialize(answer, to.id, link).value

    def _send(
        self,
        send: Callable[[Link, Message], T],
        to: WorkerInfo,
        invocation: Invocation,
        limit_s: float | None,
        mode: str,
        address: Address | None = None,
        window: Window | None = None,
    ) -> T:
        """Return what `send` does. Wait for a link first; take another one if it ends before any of the call has left.

        What was serialized and has not left is taken back, whatever `send` raises.
        """
        while True:
            try:
                link = self._link_to(to, limit_s)  # first, as in `call`
            except FanwiseError as error:
                raise failed(error, to, limit_s, closed=self._connections.closed) from None
            message = self._serialize_call(to, invocation, None, mode, address, window)
            is_asked = False
            try:
                if (message.carries or message.loans) and not self._is_leaving(message, link):
                    self._take_back(message, to)
                    continue
                is_asked = True
                return send(link, message)
            except NeverSent:  # it has just ended
                self._take_back(message, to)
            except BaseException as error:
                if not is_asked or was_never_sent(error):
                    self._take_back(message, to)
                if not isinstance(error, FanwiseError) or isinstance(error, WindowFullError):
                    raise
                cancelling.check()
                raise failed(error, to, limit_s, closed=self._connections.closed) from None

    def _link_to(self, to: WorkerInfo, limit_s: float | None) -> Link:
        """Return the link to `to`, which is made first if there is none.

        Within a called function another thread connects, so that this one can be interrupted when the call that runs
        the function is cancelled: the other worker may be stopped and never answer.
        """
        connect = partial(self._connections.to, to.id, within_s=limit_s)
        if cancelling.here() is None or self._connections.ready(to.id) is not None:
            return connect()
        connected: Future[Link] = Future()
        is_done = threading.Event()
        connected.add_done_callback(lambda _: is_done.set())
        self._agent.outside(partial(_settle, connected, connect))
        with self._agent.waiting():
            wait_for_event(is_done)
        return connected.result()

    def stream(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        *,
        timeout_s: float,
        window: tuple[int, int],
    ) -> Stream[Any]:  # Any: what the function yields
        """Run a function on `to`, and go through what it yields. `timeout_s`: for each item, as in `call`.

        `window`: as `Window`. Blocks until the call has left.
        """
        limit_s, ahead = self._begin(timeout_s), Window(*window)
        incoming = Incoming(self._agent, to, ahead, is_of_call=cancelling.here() is not None)
        incoming.began(self._call_for_items(to, invocation, limit_s, ahead, incoming.arrived))
        self._streams.add(incoming)
        return Stream(self._agent, incoming, _name_of(invocation[0]), limit_s)

    def _call_for_items(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        limit_s: float | None,
        window: Window,
        on_item: Callable[[Message, int], None],
    ) -> Reply:
        scope = cancelling.here()
        cancelling.check()

        def call(link: Link, message: Message) -> Reply:
            reply = link.call_on_credit(
                message,  # type: ignore[arg-type]  # `dumps` knows it
                deadline_s=limit_s,
                waiting=self._agent.waiting,
                watch=None if scope is None else scope.nest,
                on_item=on_item,
            )
            if message.keeps:
                reply.add_done_callback(partial(until_answered, message.keeps))
            if scope is not None:
                scope.nest(reply)
            return reply

        return self._send(call, to, invocation, limit_s, "stream", window=window)

    def close_streams(self, *, of_calls: bool) -> None:
        """Those which the program itself reads end: it reads on no more.

        `of_calls`: and those that called functions have opened and left open; no call reads them any more.
        """
        for incoming in list(self._streams):
            if of_calls or not incoming.is_of_call:
                incoming.close(ClosedError("RPC was shut down in this process while it read this stream."))

    @property
    def num_streams(self) -> int:
        """How many streams that are read here go on."""
        return sum(not incoming.is_over for incoming in list(self._streams))

    def _queued(
        self, message: Message, to: WorkerInfo, limit_s: float | None, scope: cancelling.Scope | None
    ) -> Call[Any]:  # Any: what the function returns
        """It leaves when there is a link."""
        call = QueuedCall(self._agent, message, to, now_s=self._agent.now_s, limit_s=limit_s)
        if scope is not None:
            scope.nest(call)
        return call if self._connections.queue(to.id, call) else self._wait_for_link(to, call, message, limit_s)

    def _begin(self, timeout_s: float) -> float | None:
        """A call begins: its time in seconds. Not in a fork, where the locks of this object may be held for ever."""
        if self._num_forks != process.num_forks:
            raise process.is_a_fork(self._agent.info)
        try:
            if not timeout_s >= 0:
                if timeout_s != UNSET_RPC_TIMEOUT:
                    raise _no_time(timeout_s)
                timeout_s = self._agent.timeout_s
        except TypeError:
            raise TypeError(f"timeout must be a number of seconds, 0 for no limit; got {timeout_s!r}.") from None
        return timeout_s or None

    def _serialize_call(
        self,
        to: WorkerInfo,
        invocation: Invocation,
        remote: Created | None,
        mode: str,
        address: Address | None,
        window: Window | None = None,
    ) -> Message:
        """Close the message of a call. A profiler sees that one began, under torch's name for it."""
        name = _name_of(invocation[0])
        try:
            if torch._C._autograd._profiler_enabled():
                with torch.autograd.profiler.record_function(
                    f"rpc_{mode}#{name}({self._agent.info.name} -> {to.name})"
                ):
                    message = self._serializer.serialize(invocation, to.id, call=name, remote=remote, window=window)
            else:
                message = self._serializer.serialize(invocation, to.id, call=name, remote=remote, window=window)
            return message if address is None else addressed(message, address)
        except Exception as error:
            raise pickling.explained(error, invocation, name, to) from error


def _name_of(function: Callable[..., Any]) -> str:  # Any: the user's function
    return getattr(function, "__qualname__", None) or repr(function)


def _no_time(timeout_s: float) -> FanwiseError | ValueError:
    """Of a call whose time is over before it begins, as when it is what was left until some moment. As with torch."""
    if math.isnan(timeout_s):
        return ValueError("timeout must be a number of seconds, 0 for no limit; got nan.")
    return DeadlineExceeded(
        f"RPC ran for more than set timeout ({timeout_s * 1000:.0f} ms) and will now be marked with an error: its "
        f"time was over before it began, so it was not sent. 0 means no limit, -1 the default of this worker."
    )


def _settle(future: "Future[T]", function: Callable[[], T]) -> None:
    """Run `function` and give `future` its result or error."""
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)

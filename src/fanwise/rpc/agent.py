"""The agent: what makes this process a worker of a group. One at a time; `current()` is where the process knows it.

    rpc_sync, rpc_async, remote --> call --> link to the other --> its agent --> outside: read, run, pickle --> answer
    refs, autograd, group       --> request --> link to the other --> handler, where it is read

Links are made when they are first needed (`connections`); a call that nobody waits for leaves when its link is there
(`queued_call`). Who calls waits on the link itself (`ask`); what comes in meanwhile is run by the runner threads. A
worker that is lost fails all that waits for it.

Knows no reference and no gradient: those register what they handle (`on`), and what they add to calls (`serializer`).
"""

import contextlib
import logging
import math
import struct
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.futures import Future

from ..base.errors import ClosedError, DeadlineExceeded, FanwiseError, NotSendableError, WindowFullError
from ..links import Hub, Link, NeverSent, Reply, Request
from ..links.codec import load_error
from ..links.link import NotSent, NotSentCancelled, may_wait_for
from ..links.runner_threads import RunnerThreads
from . import current as process
from .actors.address import Address
from .actors.queues import Queues
from .calling import cancelling
from .calling.call import Call, Following, Invocation
from .calling.call_future import CallFuture, failed, not_sent, until_answered
from .calling.queued_call import QueuedCall
from .calling.queued_request import QueuedRequest
from .calling.serving import Server
from .connections.connections import OVER, Connections
from .constants import UNSET_RPC_TIMEOUT
from .devices.cuda_memory import CudaMemory
from .devices.device_maps import DeviceMaps, about_here
from .devices.lending import Lending
from .interpreter import ShorterSwitches
from .membership.group import Group
from .membership.members import Event, Joined, Lost
from .membership.worker_events import WorkerEvents
from .messages import pickling
from .messages.messages import Message, addressed
from .messages.metadata import Created
from .messages.serializer import Serializer
from .options import TensorPipeRpcBackendOptions
from .references.references import References
from .streams.reading import Incoming, Stream
from .streams.window import Window
from .waiting import on_hub
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

_NOT_SENT = (NotSent, NotSentCancelled, NotSendableError)


Handler = Callable[..., Any]  # Any: what is answered; a Future: answered when that is done


class Agent:
    """See the module. Made by `start`; `current()` returns it until `close`."""

    def __init__(
        self, info: WorkerInfo, hub: Hub, runners: RunnerThreads, *, options: TensorPipeRpcBackendOptions
    ) -> None:
        self.info = info
        self.incarnation = 0
        self.options = options
        self.timeout_s = options.rpc_timeout
        self.on_lost: list[Callable[[WorkerInfo, int], None]] = []
        self.outside, self.answer = runners.outside, runners.answer
        self.waiting, self.begin_waiting, self.end_waiting = runners.waiting, runners.begin_waiting, runners.end_waiting
        self.now_s = hub.clock.now_s
        self._streams: weakref.WeakSet[Incoming] = weakref.WeakSet()
        self._num_forks = process.num_forks
        self._hub = hub
        self._runners = runners
        self._faults = options.faults
        self._handlers: dict[str, Handler] = {}
        self._lock = threading.Lock()
        self._group: Group | None = None
        self.worker_events: WorkerEvents
        self.actors: Any  # Any, here and below: of parts that know this
        self.services: Any
        self.publisher: Any = None
        self._infos: dict[str | int, WorkerInfo] = {}
        self.lending: Lending
        self._early: list[tuple[WorkerInfo, Request]] | None = []
        self.connections = Connections(
            info,
            hub,
            handle=self._handle,
            waiting=runners.waiting,
            outside=runners.outside,
            load_error=load_error if options.allowed is None else options.allowed.loads_error,
            arrived=lambda sender, loans: self.lending.arrived(sender, loans),
            unwanted=self.discard,
        )
        self.on_cut, self.on_over = self.connections.on_cut, self.connections.on_over
        self.references = References(self)
        self.lending = Lending(self, hub, options.memory or CudaMemory())
        self.devices = DeviceMaps(options.device_maps, options.devices)
        self.serializer = Serializer(
            references=self.references,
            lending=self.lending,
            allowed=options.allowed,
            devices=self.devices,
            name_of=self._name_of,
        )
        self.queues = Queues(hub, runners)
        self.server = Server(
            self.serializer,
            runners,
            take_turn=self.queues.take,
            references=self.references,
            is_leaving=self.is_leaving,
            faults=options.faults,
            later=self.later,
        )
        self.on(OVER, self.connections.on_told_over)
        self.on("devices", lambda sender: about_here(self.devices))
        self._switches = ShorterSwitches()
        self._switches.begin()

    # -- who is there ----------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        assert self._group is not None, "set before anything is called"
        return self._group

    def joined(self, group: Group) -> None:
        """The group is there: from now on others may be called, and what they have called already is run."""
        self.incarnation = group.me.incarnation
        group.on_event.append(self._heard)
        group.on_fenced.append(self.connections.fenced)
        group.on_wanted.append(lambda member: self.outside(partial(self.connections.dial_back, member)))
        self.connections.joined(group)
        self.worker_events = WorkerEvents(self._hub, group)
        with self._lock:
            self._group = group
            early, self._early = self._early or [], None
        for sender, request in early:
            self.server.serve(sender, request, was_cancelled=not request.is_open)

    def worker(self, to: "str | int | WorkerInfo") -> WorkerInfo:
        """The worker of this name, rank or info. RuntimeError when there is none, with those that there are."""
        if isinstance(to, WorkerInfo):
            return to
        if type(to) is not str and (isinstance(to, bool) or not isinstance(to, (str, int))):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        info = self._infos.get(to)
        if info is not None:
            return info
        if to not in self._names():
            with self.waiting():
                on_hub(self._hub, _nothing)  # it may be lost, and just about to be forgotten there
            former = next((member for member in self.group.former.values() if to in (member.id, member.name)), None)
            if former is not None and to not in self._names():
                return former.info  # a call will say what happened to it
        member = self.group.find(to)
        info = self._infos[to] = member.info
        return info

    def _name_of(self, id: int) -> str:
        return self.worker(id).name

    @property
    def has_joined(self) -> bool:
        """Whether there is a group."""
        return self._group is not None

    def _names(self) -> set[str | int]:
        return {key for id, member in self.group.members().items() for key in (id, member.name)}

    def workers(self) -> list[WorkerInfo]:
        """All that are alive, this one included, by id."""
        return [member.info for _, member in sorted(self.group.members().items())]

    # -- who goes --------------------------------------------------------------------------------------------------

    def _heard(self, event: Event) -> None:
        """On the hub's thread."""
        if isinstance(event, Joined):
            return
        self._infos.clear()
        member = event.member
        if isinstance(event, Lost):
            self.connections.lost(member)
        else:
            self.connections.left(member)
        self.lending.gone(member.key)
        if isinstance(event, Lost):
            for callback in self.on_lost:
                callback(member.info, member.incarnation)

    # -- requests of one agent to another ----------------------------------------------------------------------------

    def on(self, method: str, handler: Handler) -> None:
        """`handler(sender, *args)` answers `request(method, *args)`. Inline on a reading thread: it must not block."""
        self._handlers[method] = handler

    def request(self, to: int, method: str, *args: object) -> "Future[Any]":  # Any: what the handler returned
        """Book-keeping for the agent of `to`: done when its handler has answered. Never blocks."""
        future: Future[Any] = Future()
        try:
            if self._faults is not None and self._faults.drops_message(to, method, args):
                raise DeadlineExceeded(f"{method} to worker {to} was lost, on purpose")
            told = QueuedRequest(future, method, args)
            link = self.connections.ready(to) or self.connections.at_once(to)
            if link is None or not told.left_by(link):
                self.connections.queue(to, told)
        except FanwiseError as error:
            future.set_exception(error)
        return future

    def _handle(self, sender: WorkerInfo, request: Request) -> None:
        """On a reading thread."""
        method: Any = request.method  # Any: text, or a call
        if type(method) is Message:
            if self._early is None or not self._is_early(sender, request):
                self.server.serve(sender, request)
            return
        handler = self._handlers.get(method)
        if handler is None:
            request.fail(LookupError(f"worker {self.info.name} does not know the message {method!r}."))
            return
        answer = handler(sender, *request.args)
        if isinstance(answer, torch._C.Future):
            answer.add_done_callback(partial(_answer_with, request))
        else:
            request.answer(answer)

    def _is_early(self, sender: WorkerInfo, request: Request) -> bool:
        """Whether the caller has learnt before us that the group is complete: then it waits until we have."""
        with self._lock:
            if self._early is not None:
                self._early.append((sender, request))
            return self._early is not None

    # -- calls -----------------------------------------------------------------------------------------------------

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
        link = self.connections.ready(to.id)
        if link is None:  # first: what is serialized must leave, or be taken back
            try:
                link = self.connections.at_once(to.id)
            except FanwiseError as error:
                return Following.failed(failed(error, to, limit_s, closed=self.is_closed))
        mode = "async" if remote is None else "remote"
        message = self._serialize_call(to, invocation, remote, mode, address)
        while (
            link is not None and (message.carries or message.loans) and not self.is_leaving(message, link)
        ):  # it has just ended: by another one, then
            self.serializer.take_back(message, to.id)
            link = self.connections.ready(to.id)
            message = self._serialize_call(to, invocation, remote, mode, address)
        if self._faults is not None and self._faults.drops_call(to.id, invocation[0], is_remote=remote is not None):
            return Following.failed(DeadlineExceeded(f"the call of {message!r} on {to.name} was lost, on purpose"))
        scope = cancelling.here()
        nest_in = scope if remote is None else None  # a value that stays there belongs to its references
        if link is None:
            return self._queued(message, to, limit_s, nest_in)
        watch = None if scope is None else scope.nest
        try:
            reply = link.call_on_credit(message, deadline_s=limit_s, waiting=self.waiting, watch=watch)  # type: ignore[arg-type]  # `dumps` knows it
        except WindowFullError:
            self.outside(partial(self.serializer.take_back, message, to.id))
            raise
        except NeverSent:  # it has just ended
            self.serializer.take_back(message, to.id)
            if remote is not None and not self.references.stays(remote):
                return Following.failed(not_sent(to))
            message = self._serialize_call(to, invocation, remote, mode, address)
            return self._queued(message, to, limit_s, nest_in)
        except FanwiseError as error:
            self.serializer.take_back(message, to.id)
            cancelling.check()
            return Following.failed(failed(error, to, limit_s, closed=self.is_closed))
        if message.keeps:
            reply.add_done_callback(partial(until_answered, message.keeps))
        call = CallFuture(self, reply, to, limit_s)
        if nest_in is not None:
            nest_in.nest(reply)
        return call

    def _wait_for_link(
        self, to: WorkerInfo, call: QueuedCall, message: Message, limit_s: float | None
    ) -> Call[Any]:  # Any: what the function returns
        """Too many calls wait for this link to let one more: this thread waits for it itself."""
        if not self.may_wait():
            self.connections.traffic.refused(to.name, "window_full")
            self.outside(partial(self.serializer.take_back, message, to.id))
            raise WindowFullError(
                f"the call of {message!r} was not sent: as many calls as may wait for a link to worker {to.name} do, "
                f"and this thread reads answers, so it must not wait.\n"
                f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
            )
        try:
            link = self.connections.to(to.id, within_s=limit_s)
        except FanwiseError as error:
            self.serializer.take_back(message, to.id)
            return Following.failed(failed(error, to, limit_s, closed=self.is_closed))
        call.send(link)
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
        if self._faults is not None:
            return self.call(to, invocation, timeout_s=timeout_s, address=address).wait()
        limit_s = self._begin(timeout_s)
        if address is not None:
            address = address._replace(left_s=limit_s or 0.0)
        scope = cancelling.here()
        watch = None
        if scope is not None:
            scope.check()
            watch = scope.nest
        while True:
            try:
                link = self.connections.to(to.id, within_s=limit_s)  # first, as in `call`
            except FanwiseError as error:
                raise failed(error, to, limit_s, closed=self.is_closed) from None
            message = self._serialize_call(to, invocation, None, "sync", address)
            if (message.carries or message.loans) and not self.is_leaving(message, link):
                self.serializer.take_back(message, to.id)
                continue
            released = self.begin_waiting()
            try:
                answer = link.ask_on_credit(message, within_s=limit_s, watch=watch)  # type: ignore[arg-type]  # `dumps` knows it
            except NeverSent:  # it has just ended
                self.serializer.take_back(message, to.id)
                continue
            except FanwiseError as error:
                if isinstance(error, _NOT_SENT) and not hasattr(error, "__notes__"):
                    self.serializer.take_back(message, to.id)
                cancelling.check()
                raise failed(error, to, limit_s, closed=self.is_closed) from None
            finally:
                if released:
                    self.end_waiting()
            return self.serializer.deserialize(answer, to.id, link).value

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
        incoming = Incoming(self, to, ahead, is_of_call=cancelling.here() is not None)
        incoming.began(self._call_for_items(to, invocation, limit_s, ahead, incoming.arrived))
        self._streams.add(incoming)
        return Stream(self, incoming, _name_of(invocation[0]), limit_s)

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
        watch = None if scope is None else scope.nest
        while True:
            try:
                link = self.connections.to(to.id, within_s=limit_s)  # first, as in `call`
            except FanwiseError as error:
                raise failed(error, to, limit_s, closed=self.is_closed) from None
            message = self._serialize_call(to, invocation, None, "stream", None, window)
            if (message.carries or message.loans) and not self.is_leaving(message, link):
                self.serializer.take_back(message, to.id)
                continue
            try:
                reply = link.call_on_credit(  # `dumps` knows it
                    message,  # type: ignore[arg-type]
                    deadline_s=limit_s,
                    waiting=self.waiting,
                    watch=watch,
                    on_item=on_item,
                )
            except NeverSent:  # it has just ended
                self.serializer.take_back(message, to.id)
                continue
            except WindowFullError:
                self.outside(partial(self.serializer.take_back, message, to.id))
                raise
            except FanwiseError as error:
                self.serializer.take_back(message, to.id)
                cancelling.check()
                raise failed(error, to, limit_s, closed=self.is_closed) from None
            if message.keeps:
                reply.add_done_callback(partial(until_answered, message.keeps))
            if scope is not None:
                scope.nest(reply)
            return reply

    def close_streams(self, *, of_calls: bool) -> None:
        """Those which the program itself reads end: it reads on no more.

        `of_calls`: and those that called functions have opened and left open; no call reads them any more.
        """
        for incoming in list(self._streams):
            if of_calls or not incoming.is_of_call:
                incoming.close(ClosedError("RPC was shut down in this process while it read this stream."))

    @property
    def num_streams(self) -> int:
        """How many streams go on, from here and to here."""
        return self.server.num_streams + sum(not incoming.is_over for incoming in list(self._streams))

    def is_leaving(self, message: Message, link: Link) -> bool:
        """Note by which link the references and loans of a message leave. False: that has ended; nothing was noted.

        For a message that has any.
        """
        number = self.connections.number_of(link)
        if message.carries and not self.references.leave(message.carries, link, number):
            return False
        self.lending.leave(message.loans, number)
        return True

    def _queued(
        self, message: Message, to: WorkerInfo, limit_s: float | None, scope: cancelling.Scope | None
    ) -> Call[Any]:  # Any: what the function returns
        """It leaves when there is a link."""
        call = QueuedCall(self, message, to, now_s=self._hub.clock.now_s, limit_s=limit_s)
        if scope is not None:
            scope.nest(call)
        return call if self.connections.queue(to.id, call) else self._wait_for_link(to, call, message, limit_s)

    def _begin(self, timeout_s: float) -> float | None:
        """A call begins: its time in seconds. Not in a fork, where the locks of this object may be held for ever."""
        if self._num_forks != process.num_forks:
            raise process.is_a_fork(self.info)
        try:
            if not timeout_s >= 0:
                if timeout_s != UNSET_RPC_TIMEOUT:
                    raise _no_time(timeout_s)
                timeout_s = self.timeout_s
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
                with torch.autograd.profiler.record_function(f"rpc_{mode}#{name}({self.info.name} -> {to.name})"):
                    message = self.serializer.serialize(invocation, to.id, call=name, remote=remote, window=window)
            else:
                message = self.serializer.serialize(invocation, to.id, call=name, remote=remote, window=window)
            return message if address is None else addressed(message, address)
        except Exception as error:
            raise pickling.explained(error, invocation, name, to) from error

    def later(self, delay_s: float, job: Callable[[], None]) -> None:
        """Run `job` on the hub's thread, in a while."""

        def begin() -> None:
            self._hub.call_at(self._hub.clock.now_s() + delay_s, job)

        self._hub.call_soon(begin)

    def may_wait(self) -> bool:
        """Whether the calling thread may wait, and run the user's code: it reads no link."""
        return may_wait_for(self._hub)

    def discard(self, answer: Message, link: Link) -> None:
        """Nobody will open this: what came with it is given back. By any thread."""

        def discard() -> None:
            with contextlib.suppress(FanwiseError, struct.error):  # the link was cut, or it is no message
                self.serializer.discard(answer, link)

        self.outside(discard)

    def numbers(self) -> dict[str, int]:
        """Counts for debugging, under torch's names."""
        open_in = self.server.num_open
        return {
            "agent.thread_pool_size": self._runners.limit,
            "agent.server_active_calls": open_in,
            "agent.client_active_calls": self.connections.num_open + self.lending.num_lent,
            "agent.calls_begun": self.server.num_begun,
        }

    def num_jobs(self) -> dict[str, int]:
        """What waits here, and runs, for others."""
        calls, answers = self._runners.num_waiting
        return {
            "calls_running": self._runners.num_running,
            "calls_waiting": calls,
            "actor_calls_waiting": self.queues.num_waiting,
            "answers_waiting": answers,
        }

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether this worker has ended."""
        return self.connections.closed

    def open_calls(self) -> tuple[int, int]:
        """How many calls are open now, out and in, or have left tensors to be copied; how many were begun ever.

        A stream is none for its reader: whoever reads it runs in a call, or in the program. For its producer it is none
        while it waits to be read, where nobody leaves before all calls of the group have ended.
        """
        server = self.server
        num_open_in = server.num_open if self.group.world_size is None else server.num_open_but_waiting
        return self.connections.num_open + num_open_in + self.lending.num_lent, server.num_begun

    def close(self) -> None:
        """End the links and the threads. What waits fails; a job that still runs is left alone.

        The links first: then the threads, before they go, tell all who wait for an answer that none will come.
        """
        if self.publisher is not None:
            self.publisher.close()
        if self.has_joined:
            self.worker_events.close()
        self.connections.close()
        self.lending.close()
        self._switches.end()
        self._runners.close()
        self.server.coroutines.close()
        self._hub.close()  # closes all links


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


def _nothing() -> None:
    """To wait for what the hub does before it."""


def _answer_with(request: Request, future: "Future[Any]") -> None:  # Any: what the handler returned
    try:
        value = future.value()
    except Exception as error:
        request.fail(error)
        return
    request.answer(value)


# The worker of this process, with its type.
current: Callable[[], Agent] = process.current

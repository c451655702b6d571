"""The agent: what makes this process a worker of a group. One at a time; `current()` is where the process knows it.

    rpc_sync, rpc_async, remote --> sending --> link to the other --> its agent --> serving: read, run --> answer
    refs, autograd, group       --> request --> link to the other --> handler, where it is read

Links are made when they are first needed (`connections`). Who calls waits on the link itself; what comes in meanwhile
is run by the runner threads. A worker that is lost fails all that waits for it.

Knows no reference and no gradient: those register what they handle (`on`), and what they add to calls (`serializer`).
"""

import contextlib
import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.futures import Future

from ..base.errors import FanwiseError
from ..links.codec import load_error
from ..links.hub import Hub
from ..links.link import Link, Request, may_wait_for
from ..links.runner_threads import RunnerThreads
from . import current as process
from .actors.queues import Queues
from .calling.early_calls import EarlyCalls
from .calling.queued_request import QueuedRequest
from .calling.sending import Sender
from .calling.serving import Server
from .connections.connections import OVER, Connections
from .devices.cuda_memory import CudaMemory
from .devices.device_maps import DeviceMaps, about_here
from .devices.lending import Lending
from .interpreter import ShorterSwitches
from .membership.group import Group
from .membership.members import Event, Joined, Lost
from .membership.worker_events import WorkerEvents
from .messages.messages import Message
from .messages.serializer import Serializer
from .options import TensorPipeRpcBackendOptions
from .references.references import References
from .waiting import on_hub
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

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
        self._hub = hub
        self._runners = runners
        self._handlers: dict[str, Handler] = {}
        self._group: Group | None = None
        self.worker_events: WorkerEvents
        self.actors: Any  # Any, here and below: of parts that know this
        self._infos: dict[str | int, WorkerInfo] = {}
        self.lending: Lending
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
        )
        self._early_calls = EarlyCalls(self.server.serve)
        self.sender = Sender(
            self,
            self.serializer,
            self.connections,
            self.references,
            is_leaving=self.is_leaving,
        )
        self.call, self.call_sync, self.stream = self.sender.call, self.sender.call_sync, self.sender.stream
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
        self._group = group
        self._early_calls.joined()

    def worker(self, to: "str | int | WorkerInfo") -> WorkerInfo:
        """The worker of this name, rank or info. RuntimeError when there is none, with those that there are."""
        if isinstance(to, WorkerInfo):
            return to
        if type(to) is not str and (isinstance(to, bool) or not isinstance(to, (str, int))):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        infos = self._infos
        info = infos.get(to)
        if info is not None:
            return info
        if to not in self._names():
            with self.waiting():
                on_hub(self._hub, _nothing)  # it may be lost, and just about to be forgotten there
            former = next((member for member in self.group.former.values() if to in (member.id, member.name)), None)
            if former is not None and to not in self._names():
                return former.info  # a call will say what happened to it
        info = infos[to] = self.group.find(to).info
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
        self._infos = {}  # a new one: `worker` may be about to note, in the old one, who was there before
        member = event.member
        if isinstance(event, Lost):
            self.connections.lost(member)
        else:
            self.connections.left(member)
        self.lending.gone(member.key)
        if isinstance(event, Lost):
            for callback in list(self.on_lost):  # it wakes threads that take theirs off
                callback(member.info, member.incarnation)

    # -- requests of one agent to another ----------------------------------------------------------------------------

    def on(self, method: str, handler: Handler) -> None:
        """`handler(sender, *args)` answers `request(method, *args)`. Inline on a reading thread: it must not block."""
        self._handlers[method] = handler

    def request(self, to: int, method: str, *args: object) -> "Future[Any]":  # Any: what the handler returned
        """Book-keeping for the agent of `to`: done when its handler has answered. Never blocks."""
        future: Future[Any] = Future()
        try:
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
            self._early_calls.came(sender, request)
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

    # -- what its parts share ----------------------------------------------------------------------------------------

    @property
    def num_streams(self) -> int:
        """How many streams go on, from here and to here."""
        return self.server.num_streams + self.sender.num_streams

    def is_leaving(self, message: Message, link: Link) -> bool:
        """Note by which link the references and loans of a message leave. False: that has ended; nothing was noted.

        For a message that has any.
        """
        number = self.connections.number_of(link)
        if message.carries and not self.references.leave(message.carries, link, number):
            return False
        self.lending.leave(message.loans, number)
        return True

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
        if self.has_joined:
            self.worker_events.close()
        self.connections.close()
        self.lending.close()
        self._switches.end()
        self._runners.close()
        self.server.coroutines.close()
        self._hub.close()  # closes all links


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

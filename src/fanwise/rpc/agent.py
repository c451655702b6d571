"""The agent: makes this process a worker of a group. A process has at most one, returned by `current()`.

    rpc_sync, rpc_async, remote --> sender --> link to the peer --> its agent --> server: deserialize, run --> reply
    refs, autograd, group       --> request -> link to the peer --> handler, on the reading thread

Links are opened on first use (`connections`). A caller waits on the link itself; received calls run on the runner
threads. When a worker is lost, everything that waits for it fails.

References and autograd register their handlers (`on`) and the metadata they add to calls (`serializer`).
"""

import contextlib
import logging
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.futures import Future

from ..base.errors import FanwiseError
from ..links.codec import load_error
from ..links.hub import Hub
from ..links.link import Link, Request
from ..links.reader import may_wait_for
from ..links.runner_threads import RunnerThreads
from . import current as process
from .actors.queues import Queues
from .calling.call_future import QueuedRequest
from .calling.sender import Sender
from .calling.serializer import Serializer
from .calling.server import Server
from .connections import Connections
from .devices import CudaIpc, DeviceMaps, describe_devices
from .membership.group import Group
from .membership.members import Event, Joined, Lost
from .messages.messages import Message
from .options import TensorPipeRpcBackendOptions
from .references.references import References
from .worker_events import WorkerEvents
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

Handler = Callable[..., Any]  # returns the reply, or a Future of it

# A thread that computes in Python releases the interpreter's lock every `sys.getswitchinterval()`, 5 ms by default. A
# call needs the lock after each system call, so beside such a thread it would take tens of milliseconds. A tenth of the
# default reduces that to a few and costs the computing thread less than 1 %.
SWITCH_INTERVAL_S = 0.0005


class Agent:
    """See the module. Created by `start`; `current()` returns it until `close`."""

    def __init__(
        self, info: WorkerInfo, hub: Hub, runners: RunnerThreads, *, options: TensorPipeRpcBackendOptions
    ) -> None:
        self.info = info
        self.incarnation = 0
        self.options = options
        self.timeout_s = options.rpc_timeout
        self.on_lost: list[Callable[[WorkerInfo, int], None]] = []
        self.outside, self.answer, self.waiting = runners.outside, runners.answer, runners.waiting
        self.now_s = hub.clock.now_s
        self._hub = hub
        self._runners = runners
        self._handlers: dict[str, Handler] = {}
        self._group: Group | None = None
        self.worker_events: WorkerEvents
        self.actors: Any
        self._infos: dict[str | int, WorkerInfo] = {}
        self.connections = Connections(
            info,
            hub,
            handle=self._handle,
            waiting=runners.waiting,
            outside=runners.outside,
            load_error=load_error if options.allowed is None else None,
            unwanted=self.discard,
        )
        self.references = References(self)
        self.devices = DeviceMaps(options.device_maps, options.devices)
        self.serializer = Serializer(
            references=self.references,
            cuda_ipc=CudaIpc(self),
            allowed=options.allowed,
            devices=self.devices,
            name_of=lambda id: self.worker(id).name,
        )
        self.queues = Queues(hub, runners)
        self.server = Server(
            self.serializer, runners, enqueue_actor_call=self.queues.enqueue, references=self.references
        )
        self.sender = Sender(self)
        self.call, self.call_sync = self.sender.call, self.sender.call_sync
        self.on("devices", lambda sender: describe_devices(self.devices))
        self._previous_switch_interval_s = sys.getswitchinterval()
        if self._previous_switch_interval_s > SWITCH_INTERVAL_S:
            sys.setswitchinterval(SWITCH_INTERVAL_S)

    # -- members ---------------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        assert self._group is not None, "set before the first call"
        return self._group

    def set_group(self, group: Group) -> None:
        """Allow calls to and from the members of the group."""
        self.incarnation = group.me.incarnation
        group.on_event.append(self._on_event)
        self.serializer.plain_peers.update(id for id, member in group.members().items() if member.has_allow_list)
        group.on_fenced = self.connections.fenced
        self.worker_events = WorkerEvents(self._hub, group)
        self._group = group
        self.references.start()
        self.connections.joined(group)
        group.on_dial_request = lambda member: self.outside(partial(self.connections.dial_back, member))

    def worker(self, to: "str | int | WorkerInfo") -> WorkerInfo:
        """Return the worker with this name, rank or info, also one that was lost: a call to it raises the reason.

        Raises RuntimeError, naming the workers, if there is none.
        """
        if isinstance(to, WorkerInfo):
            return to
        if type(to) is not str and (isinstance(to, bool) or not isinstance(to, (str, int))):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        infos = self._infos
        info = infos.get(to)
        if info is not None:
            return info
        try:
            info = infos[to] = self.group.find(to).info
        except RuntimeError:
            former = next((member for member in self.group.former.values() if to in (member.id, member.name)), None)
            if former is None:
                raise
            return former.info
        return info

    @property
    def has_joined(self) -> bool:
        return self._group is not None

    def workers(self) -> list[WorkerInfo]:
        """Return all live workers, including this one, ordered by id."""
        return [member.info for member in self.group.members().values()]

    def _on_event(self, event: Event) -> None:
        """Handle a membership event, on the hub's thread."""
        member = event.member
        if isinstance(event, Joined):
            if member.has_allow_list:
                self.serializer.plain_peers.add(member.id)
            return
        self.serializer.plain_peers.discard(member.id)
        self._infos = {}  # replaced, because `worker` may be adding an obsolete entry to the old dict
        if not isinstance(event, Lost):
            self.connections.left(member)
            return
        self.connections.lost(member)
        for callback in list(self.on_lost):  # a copy: the callbacks wake threads that remove theirs
            callback(member.info, member.incarnation)

    # -- requests between agents -------------------------------------------------------------------------------------

    def on(self, method: str, handler: Handler) -> None:
        """Handle `request(method, *args)` with `handler(sender, *args)`, on a reading thread: it must not block."""
        self._handlers[method] = handler

    def request(self, to: int, method: str, *args: object) -> "Future[Any]":
        """Send an internal request to the agent of `to`. Return a future of the reply. Does not block."""
        future: Future[Any] = Future()
        try:
            request = QueuedRequest(future, method, args)
            link = self.connections.get_open(to) or self.connections.get_without_waiting(to)
            if link is None or not request.try_send(link):
                self.connections.queue(to, request)
        except FanwiseError as error:
            future.set_exception(error)
        return future

    def _handle(self, sender: WorkerInfo, request: Request) -> None:
        """Handle a received call or request, on a reading thread."""
        method: Any = request.method
        if type(method) is Message:
            self.server.serve(sender, request)
            return
        handler = self._handlers.get(method)
        if handler is None:
            request.fail(LookupError(f"worker {self.info.name} has no handler for the message {method!r}."))
            return
        answer = handler(sender, *request.args)
        if isinstance(answer, torch._C.Future):
            answer.add_done_callback(partial(_reply_from_future, request))
        else:
            request.answer(answer)

    # -- shared services ---------------------------------------------------------------------------------------------

    def call_later(self, delay_s: float, job: Callable[[], None]) -> None:
        """Run `job` on the hub's thread after a delay."""

        def begin() -> None:
            self._hub.call_at(self._hub.clock.now_s() + delay_s, job)

        self._hub.call_soon(begin)

    def may_wait(self) -> bool:
        """Return True if the current thread may wait and run user code, because it reads no link."""
        return may_wait_for(self._hub)

    def discard(self, answer: Message, link: Link) -> None:
        """Release the references of a message that will not be deserialized. Thread-safe."""

        def discard() -> None:
            with contextlib.suppress(FanwiseError, struct.error):  # the link was lost, or the message is invalid
                self.serializer.discard(answer)

        self.outside(discard)

    def debug_counts(self) -> dict[str, int]:
        """Return counters for debugging, under torch's names."""
        return {
            "agent.thread_pool_size": self._runners.limit,
            "agent.server_active_calls": self.server.num_open,
            "agent.client_active_calls": self.connections.num_open,
            "agent.calls_begun": self.server.num_begun,
        }

    def job_counts(self) -> dict[str, int]:
        """Return the number of running and waiting calls and replies."""
        calls, answers = self._runners.num_waiting
        return {
            "calls_running": self._runners.num_running,
            "calls_waiting": calls,
            "actor_calls_waiting": self.queues.num_waiting,
            "answers_waiting": answers,
        }

    # -- shutdown --------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.connections.closed

    def open_calls(self) -> tuple[int, int]:
        """Return the number of open calls in both directions, and of calls ever started."""
        return self.connections.num_open + self.server.num_open, self.server.num_begun

    def close(self) -> None:
        """Close the links and stop the threads. Pending calls fail; running jobs are not interrupted.

        The links are closed first, so that the threads can fail the pending calls.
        """
        if self.has_joined:
            self.worker_events.close()
        self.connections.close()
        if abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-6:  # else the program has changed it
            sys.setswitchinterval(self._previous_switch_interval_s)
        self._runners.close()
        self.server.coroutines.close()
        self._hub.close()  # closes all links


def _reply_from_future(request: Request, future: "Future[Any]") -> None:
    try:
        value = future.value()
    except Exception as error:
        request.fail(error)
        return
    request.answer(value)


# The agent of this process. `process.current` without Any.
current: Callable[[], Agent] = process.current

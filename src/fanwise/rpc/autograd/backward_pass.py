"""A backward pass on one worker: carries out the actions of `PassState` with the graph and the agent.

    on_begin, on_gradients, on_zeros, replies --events--> one at a time: PassState --actions--> requests, groups to run
    a group, on any runner thread             --> its gradients are sent, and its end is another event
    fail (an error, an abort, a lost worker)  --> `future`, and an abort to all workers that know the context

Events arrive on reading threads, which must not block, so runner threads handle them. As many groups run at a time as
there are CPUs for them: micro-batches, if each computes with few threads.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ...base.errors import WorkerLostError
from .contexts import Context, PassId
from .graph import Graph, GroupResult
from .messages import BeginReply, Completed, Failure, Grads, PackedGrads, UnknownContext, pack_grads, unpack_grads
from .pass_state import Action, Finish, PassState, RunGroup, SendBegin, SendZeros

if TYPE_CHECKING:
    from ..agent import Agent

Event = Callable[[PassState], list[Action]]


class BackwardPass:
    """See the module.

    Args:
        roots: arguments of `backward`; empty on all other workers.

    Attributes:
        future: the reply to `begin`, set when this worker and all that it told to begin are done, or on failure.
        num_received: how many messages had been received when the pass began here.
    """

    def __init__(
        self,
        agent: "Agent",
        context: Context,
        pass_id: PassId,
        *,
        roots: Sequence[torch.Tensor] = (),
        retain_graph: bool,
    ) -> None:
        self.future: Future[BeginReply] = Future()
        self._agent = agent
        self._context = context
        self._id = pass_id
        self._me = agent.info.id
        self._roots = roots
        self._retain_graph = retain_graph
        # The work of the runner threads, under the lock of the context.
        self._events: deque[Event] = deque()
        self._groups_to_run: deque[int] = deque()
        self._is_handling = True  # events wait until `start` has built the graph
        self._num_running = 0
        self._max_running = max_running()
        self._is_over = False
        # Later messages cannot have led to the roots.
        self._sent = dict(context.sent)
        self._received = dict(context.received)
        self.num_received = len(self._received)
        self._senders = dict(context.senders)
        self._peers = set(context.known_workers)
        self._parent: int | None = None
        self._graph: Graph
        self._state: PassState

    # -- events, on any thread: they do not block ------------------------------------------------------------------

    def on_begin(self, peer: int, sent: Sequence[int], received: Sequence[int]) -> None:
        """Handle the request of `peer` that began the pass here, before `start`. The messages are those of `peer`."""
        self._parent = peer
        self._add_event(lambda state: state.on_begin(peer, sent, received))

    def on_gradients(self, message: int, grads: PackedGrads) -> None:
        """Handle the gradients of a sent message."""
        self._add_event(lambda state: self._resolve(message, unpack_grads(grads), state))

    def on_zeros(self, messages: Sequence[int]) -> None:
        """Handle the report that these messages get no gradient."""
        self._add_event(lambda state: state.on_resolved(messages))

    def fail(self, failure: Failure) -> None:
        """End the pass here and on all workers that know the context."""
        if self._end(failure):
            self._agent.outside(partial(self._send_abort, failure))

    def on_worker_lost(self, worker: int) -> None:
        """End the pass if gradients might have to be exchanged with a lost worker."""
        if self._context.has_exchanged_with(worker):
            self.fail(Failure.of(self._me, self._lost_error(worker)))

    # -- work, on runner threads -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Build the graph, tell the other workers to begin, and run what can run."""
        try:
            self._graph = Graph(self._roots, {m: sent.edges() for m, sent in self._sent.items()}, self._received)
            self._state = PassState(
                self._me,
                {message: sent.to for message, sent in self._sent.items()},
                self._senders,
                self._graph.groups,
                self._peers - {self._parent},
            )
            self._carry_out(self._state.start())
        except BaseException as error:
            self.fail(Failure.of(self._me, error))
        with self._context.lock:
            self._is_handling = False
        self._work()

    def _add_event(self, event: Event) -> None:
        with self._context.lock:
            if self._is_over:
                return
            self._events.append(event)
            if self._is_handling:
                return
        self._agent.outside(self._work)

    def _work(self) -> None:
        """Do work until there is none. One thread handles events while others run groups."""
        while (job := self._next_job()) is not None:
            try:
                job()
            except BaseException as error:
                self.fail(Failure.of(self._me, error))

    def _next_job(self) -> Callable[[], None] | None:
        job: Callable[[], None] | None = None
        with self._context.lock:
            if self._is_over:
                return None
            if self._can_handle():
                self._is_handling = True
                job = partial(self._handle, self._events.popleft())
            elif self._can_run():
                self._num_running += 1
                job = partial(self._run, self._groups_to_run.popleft())
            is_more = self._can_handle() or self._can_run()
        if job is not None and is_more:
            self._agent.outside(self._work)
        return job

    def _can_handle(self) -> bool:
        return bool(self._events) and not self._is_handling

    def _can_run(self) -> bool:
        return bool(self._groups_to_run) and self._num_running < self._max_running

    def _handle(self, event: Event) -> None:
        try:
            self._carry_out(event(self._state))
        finally:
            with self._context.lock:
                self._is_handling = False

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if self._is_over:
                return
            match action:
                case SendBegin():
                    self._send_begin(action)
                case SendZeros(peer, messages):
                    self._send(peer, "autograd.zeros", messages)
                case RunGroup(number):
                    with self._context.lock:
                        self._groups_to_run.append(number)
                case Finish():
                    self._end(Completed())

    def _run(self, number: int) -> None:
        try:
            with self._pass_lock():
                result = self._graph.run(number, retain_graph=self._retain_graph)
        finally:
            with self._context.lock:
                self._num_running -= 1
        with self._context.lock:
            if not self._is_over:  # handled next by this thread, or by the one that handles events
                self._events.append(lambda state: self._on_group_done(number, result, state))

    @contextmanager
    def _pass_lock(self) -> Iterator[None]:
        lock = self._context.pass_lock
        if not lock.acquire(self._id, blocking=False):
            with self._agent.waiting():
                lock.acquire(self._id, blocking=True)
        try:
            yield
        finally:
            lock.release()

    def _on_group_done(self, number: int, result: GroupResult, state: PassState) -> list[Action]:
        for leaf, grad in result.leaves:
            self._context.accumulate(leaf, grad)
        actions: list[Action] = []
        zeros: dict[int, list[int]] = {}
        for message, grads in result.received.items():
            peer = self._senders[message]
            if grads is None or all(grad is None for grad in grads):
                zeros.setdefault(peer, []).append(message)
            elif peer == self._me:
                actions += self._resolve(message, grads, state)
            else:
                self._send(peer, "autograd.gradients", message, pack_grads(grads))
        actions += state.on_resolved(zeros.pop(self._me, ()))
        actions += [SendZeros(peer, tuple(messages)) for peer, messages in zeros.items()]
        return [*actions, *state.on_group_done(number)]

    def _resolve(self, message: int, grads: Grads, state: PassState) -> list[Action]:
        if message in state.unresolved:
            self._graph.add_arrived(message, grads, self._sent[message].devices)
        return state.on_resolved([message])

    # -- requests to other workers ---------------------------------------------------------------------------------

    def _send(self, peer: int, method: str, *args: object) -> None:
        reply = self._agent.request(peer, method, self._context.id, self._id, *args)
        reply.add_done_callback(partial(self._on_reply, peer))

    def _on_reply(self, peer: int, reply: "Future[Any]") -> None:
        try:
            reply.value()
        except WorkerLostError:
            self.on_worker_lost(peer)
        except Exception as error:
            self.fail(Failure.of(self._me, error))

    def _send_begin(self, action: SendBegin) -> None:
        peer = action.peer
        if peer in self._context.lost_workers():
            self._on_begin_reply(peer, self._lost_error(peer))
            return
        reply = self._agent.request(
            peer, "autograd.begin", self._context.id, self._id, (action.sent, action.received), self._retain_graph
        )
        reply.add_done_callback(lambda reply: self._on_begin_reply(peer, _value_or_error(reply)))

    def _on_begin_reply(self, peer: int, reply: BeginReply | Exception) -> None:
        if isinstance(reply, Failure):
            self.fail(reply)
        elif isinstance(reply, WorkerLostError) and self._context.has_exchanged_with(peer):
            self.fail(Failure.of(self._me, self._lost_error(peer)))
        elif isinstance(reply, Exception) and not isinstance(reply, WorkerLostError):
            self.fail(Failure.of(self._me, reply))
        elif isinstance(reply, UnknownContext) and peer in self._senders.values():
            error = RuntimeError(f"Could not find autograd context with id: {self._context.id} on worker {peer}")
            self.fail(Failure.of(self._me, error))
        else:
            # A worker that is lost, or does not know the context, has received nothing in it.
            to_peer = tuple(message for message, sent in self._sent.items() if sent.to == peer)
            not_received = reply.not_received if isinstance(reply, Completed) else to_peer
            self._add_event(lambda state: [*state.on_resolved(not_received), *state.on_peer_done(peer)])

    def _lost_error(self, worker: int) -> WorkerLostError:
        return WorkerLostError(
            f"worker {self._name_of(worker)} was lost; it took part in context {self._context.id}, so gradients "
            f"through it cannot be computed.\nLeave the context and run forward and backward again."
        )

    def _name_of(self, worker: int) -> str:
        name = self._context.lost_workers().get(worker)
        if name is not None:
            return name
        try:  # its link may end before its loss is announced
            return self._agent.worker(worker).name
        except RuntimeError:  # the id is unknown, or the group is closed
            return f"of id {worker}"

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self, reply: BeginReply) -> bool:
        with self._context.lock:
            if self._is_over:
                return False
            self._is_over = True
            self._context.passes.pop(self._id, None)
            self._context.finished_passes[self._id] = self.num_received
            self._events.clear()
            self._groups_to_run.clear()
        self.future.set_result(reply)
        return True

    def _send_abort(self, failure: Failure) -> None:
        for peer in sorted(self._peers - set(self._context.lost_workers())):
            self._agent.request(peer, "autograd.abort", self._context.id, self._id, failure)


def _value_or_error(future: "Future[Any]") -> Any:
    try:
        return future.value()
    except Exception as error:
        return error


def max_running() -> int:
    """Return how many groups may run at a time: one if each uses an accelerator, or all CPUs."""
    if torch.accelerator.is_available():
        return 1
    return max(1, _num_cpus() // torch.get_num_threads())


@cache
def _num_cpus() -> int:
    from ...pool.devices import usable_cpus  # not loaded with rpc

    return usable_cpus()

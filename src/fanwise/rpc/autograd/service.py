"""Distributed autograd of one worker: what it adds to messages, and what it answers to the other workers.

    a message in a context:  on_send -> (context id, message id) -> on_receive     tensors get Send and Recv
    autograd.begin, gradients, zeros, abort     a backward pass, see `passes`
    autograd.release                            the context is left: spreads to all who know it

Outside of a context a message costs one look at a thread-local. Handlers of messages only put things in their place.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ...base.errors import DeadlineExceeded
from ...links.codec import load_error
from ..calling.futures import wait_for
from ..worker_info import WorkerInfo
from .contexts import WORKER_SHIFT, BackwardPass, Context, Contexts, PassId
from .failures import Failure
from .functions import Sent, receive
from .parts import Parts
from .running import Absent, Answer, Running, Through

if TYPE_CHECKING:
    from ..agent import Agent

Header = tuple[int, int]  # context, message
Exchanged = tuple[tuple[int, ...], tuple[int, ...]]  # messages that came from the teller, that it received


class _Here(threading.local):
    id: int | None = None


class Service:
    """See the module. Asks the agent for its `info` when it is first needed: not yet when this is made."""

    def __init__(self, agent: "Agent") -> None:
        self.contexts = Contexts()
        self._agent = agent
        self.load_error: Callable[[bytes], Any] | None = load_error
        self._here = _Here()
        self._messages = itertools.count(1)
        self._passes = itertools.count(1)
        for name in ("begin", "gradients", "zeros", "abort", "release"):
            agent.on(f"autograd.{name}", getattr(self, f"_on_{name}"))
        agent.on_lost.append(self._on_lost)

    # -- contexts --------------------------------------------------------------------------------------------------

    def new_context(self) -> Context:
        """Make a context and make it this thread's. RuntimeError when the thread has one."""
        if self._here.id is not None:
            raise RuntimeError(
                f"Already have an autograd context id for this thread: {self._here.id}. Contexts do not nest."
            )
        context = self.contexts.make(self._agent.info.id, self._agent.incarnation)
        self._here.id = context.id
        return context

    def current_context(self) -> Context:
        """The context of this thread. RuntimeError when it has none."""
        if self._here.id is None:
            raise RuntimeError(
                "Current thread doesn't have a valid autograd context. Please wrap your code using: "
                "`with fanwise.rpc.autograd.context() as context_id` to generate a valid context."
            )
        return self.contexts.get(self._here.id)

    @property
    def worker_id(self) -> int:
        """The id of this worker."""
        return self._agent.info.id

    @property
    def has_current(self) -> bool:
        """Whether this thread is in a context."""
        return self._here.id is not None

    def leave(self, id: int) -> None:
        """Release the context here and on all workers that know it. Does not wait for them."""
        if self._here.id == id:
            self._here.id = None
        self._release(id, but=None)

    @contextmanager
    def entered(self, header: Header) -> Iterator[None]:
        """The context of a message is this thread's meanwhile."""
        before, self._here.id = self._here.id, header[0]
        try:
            yield
        finally:
            self._here.id = before

    # -- messages --------------------------------------------------------------------------------------------------

    def on_send(self, to: int, tensors: Sequence[torch.Tensor]) -> Header | None:
        """What a message to worker `to` carries. Those of its tensors that require grad get a Send."""
        id = self._here.id
        if id is None:
            return None
        context = self.contexts.find(id)
        if context is None:
            return None
        me = self._agent.info.id
        message = me << WORKER_SHIFT | next(self._messages)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        sent = Sent(to, wanted) if wanted else None
        with context.lock:
            if to != me:
                context.known.add(to)
            if sent is not None:
                context.sent[message] = sent
        return id, message

    def unsent(self, header: Header) -> None:
        """A message of ours never left: nothing that was in it takes part in a pass."""
        context = self.contexts.find(header[0])
        if context is not None:
            context.unsent(header[1])

    def on_receive(self, sender: int, header: Header, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of a message; those that required grad where they come from have a history now."""
        id, message = header
        me = self._agent.info.id
        context = self.contexts.at_first_sight(id, me)
        if context is None:
            return tensors
        node, tensors = receive(tensors)
        with context.lock:
            if sender != me:
                context.known.add(sender)
            if node is not None:
                context.has_received(message, sender, node)
        return tensors

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool) -> None:
        """Run a pass from these roots and wait until it is over on all workers. Raises what failed it."""
        context = self.contexts.get(context_id)
        running = self._start(context, (self._agent.info.id, next(self._passes)), roots, retain_graph)
        running.work()
        with self._agent.waiting():
            wait_for(running.future)
        answer = running.future.value()
        if isinstance(answer, Failure):
            error = answer.error(self.load_error)
            try:
                raise error
            finally:
                del error  # else it would keep this frame, and so the graph

    def num_passes(self) -> int:
        """Passes that are under way here."""
        return sum(len(context.passes) for context in self.contexts.all())

    def _start(self, context: Context, pass_id: PassId, roots: Sequence[torch.Tensor], retain_graph: bool) -> Running:
        with context.lock:
            running = context.passes[pass_id] = Running(
                self._agent, context, pass_id, me=self._agent.info.id, roots=roots, retain_graph=retain_graph
            )
        if context.released:
            self._fail_released(context)
        return running

    def _on_begin(
        self, sender: WorkerInfo, context_id: int, pass_id: PassId, exchanged: Exchanged, retain_graph: bool
    ) -> "Answer | Future[Answer]":
        context = self.contexts.find(context_id)
        if context is None:
            return Absent()
        messages, received = exchanged
        with context.lock:
            if pass_id in context.over:
                return Through(context.not_among(context.over[pass_id], messages))
            running = context.passes.get(pass_id)
            if running is not None:
                return Through(context.not_among(running.num_received, messages))
            running = self._start(context, pass_id, (), retain_graph)
        running.begun_by(sender.id, messages, received)
        self._agent.outside(running.work)
        return running.future

    def _on_gradients(self, _sender: WorkerInfo, context_id: int, pass_id: PassId, message: int, parts: Parts) -> None:
        running = self._running(context_id, pass_id)
        if running is not None:
            running.gradients(message, parts)

    def _on_zeros(self, _sender: WorkerInfo, context_id: int, pass_id: PassId, messages: tuple[int, ...]) -> None:
        running = self._running(context_id, pass_id)
        if running is not None:
            running.zeros(messages)

    def _on_abort(self, _sender: WorkerInfo, context_id: int, pass_id: PassId, failure: Failure) -> None:
        context = self.contexts.find(context_id)
        if context is None:
            return
        with context.lock:
            running = context.passes.get(pass_id)
            if running is None:
                context.over[pass_id] = len(context.received)
        if running is not None:
            running.fail(failure)

    def _running(self, context_id: int, pass_id: PassId) -> BackwardPass | None:
        context = self.contexts.find(context_id)
        return None if context is None else context.passes.get(pass_id)

    # -- the end of a context --------------------------------------------------------------------------------------

    def _on_release(self, sender: WorkerInfo, context_id: int) -> None:
        self._release(context_id, but=sender.id)

    def _release(self, id: int, but: int | None) -> None:
        context = self.contexts.remove(id)
        if context is None:
            return
        self._fail_released(context)
        peers = context._known_worker_ids() - set(context.lost()) - {but}
        if peers:
            # Making a link may wait, and this may be a thread that reads.
            self._agent.outside(partial(self._tell_release, sorted(peers), id))

    def _tell_release(self, peers: list[int], id: int) -> None:
        for peer in peers:
            self._agent.request(peer, "autograd.release", id).add_done_callback(partial(self._released, peer, id))

    def _released(self, peer: int, id: int, told: "Future[Any]") -> None:
        try:
            told.value()
        except DeadlineExceeded:  # it may not know, and it lives
            self._agent.outside(partial(self._tell_release, [peer], id))
        except Exception:
            return  # the worker, or this agent, is gone: so is the context

    def _fail_released(self, context: Context) -> None:
        gone = RuntimeError(f"Could not find autograd context with id: {context.id}: it was released meanwhile")
        for running in list(context.passes.values()):
            running.fail(Failure.of(self._agent.info.id, gone))

    def _on_lost(self, worker: WorkerInfo, incarnation: int) -> None:
        ended = self.contexts.lose(worker.id, incarnation)
        for context in self.contexts.all():
            context.lose(worker.id, worker.name)
            for running in list(context.passes.values()):
                running.lost(worker.id)
        for context in ended:
            self._release(context.id, but=worker.id)

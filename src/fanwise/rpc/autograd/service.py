"""Distributed autograd of one worker: the metadata of messages, and the requests of other workers.

    a message in a context:  on_send --> (context id, message id) --> on_receive    tensors get a Send and a Recv
    autograd.begin, gradients, zeros, abort     a backward pass, see `pass_state`
    autograd.release                            the context was left; forwarded to all workers that know it

Request handlers run on reading threads and do not block.
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
from .backward_pass import BackwardPass
from .contexts import WORKER_SHIFT, Context, Contexts, PassId
from .functions import Sent, receive
from .messages import BeginReply, Completed, Failure, PackedGrads, UnknownContext

if TYPE_CHECKING:
    from ..agent import Agent

Header = tuple[int, int]  # ids of the context and of the message


class _Current(threading.local):
    context_id: int | None = None


class Service:
    """See the module. Reads `agent.info` when it is needed, because it is not set yet when this is created."""

    def __init__(self, agent: "Agent") -> None:
        self.contexts = Contexts()
        self.load_error: Callable[[bytes], Any] | None = load_error
        self._agent = agent
        self._current = _Current()
        self._message_ids = itertools.count(1)
        self._pass_numbers = itertools.count(1)
        for name in ("begin", "gradients", "zeros", "abort", "release"):
            agent.on(f"autograd.{name}", getattr(self, f"_on_{name}"))
        agent.on_lost.append(self._on_lost)

    # -- contexts --------------------------------------------------------------------------------------------------

    def new_context(self) -> Context:
        """Create a context and enter it on this thread. Raises RuntimeError if the thread is in one."""
        if self._current.context_id is not None:
            raise RuntimeError(
                f"Already have an autograd context id for this thread: {self._current.context_id}. Contexts do not "
                f"nest."
            )
        context = self.contexts.create(self.worker_id, self._agent.incarnation)
        self._current.context_id = context.id
        return context

    def current_context(self) -> Context:
        """Return the context of this thread. Raises RuntimeError if it is in none."""
        if self._current.context_id is None:
            raise RuntimeError(
                "Current thread doesn't have a valid autograd context. Please wrap your code using: "
                "`with fanwise.rpc.autograd.context() as context_id` to generate a valid context."
            )
        return self.contexts.get(self._current.context_id)

    @property
    def worker_id(self) -> int:
        return self._agent.info.id

    @property
    def has_current(self) -> bool:
        """True if this thread is in a context."""
        return self._current.context_id is not None

    def leave(self, id: int) -> None:
        """Release the context here and on all workers that know it, without waiting for them."""
        if self._current.context_id == id:
            self._current.context_id = None
        self._release(id, forwarded_by=None)

    @contextmanager
    def entered(self, header: Header) -> Iterator[None]:
        """Enter the context of a message on this thread."""
        previous, self._current.context_id = self._current.context_id, header[0]
        try:
            yield
        finally:
            self._current.context_id = previous

    # -- messages --------------------------------------------------------------------------------------------------

    def on_send(self, to: int, tensors: Sequence[torch.Tensor]) -> Header | None:
        """Return the header of a message to worker `to`. Its tensors that require grad get a Send."""
        id = self._current.context_id
        context = None if id is None else self.contexts.find(id)
        if context is None:
            return None
        message = self.worker_id << WORKER_SHIFT | next(self._message_ids)
        with_grad = [tensor for tensor in tensors if tensor.requires_grad]
        sent = Sent(to, with_grad) if with_grad else None
        with context.lock:
            if to != self.worker_id:
                context.known_workers.add(to)
            if sent is not None:
                context.sent[message] = sent
        return context.id, message

    def unsent(self, header: Header) -> None:
        """Forget a message that was serialized and not sent."""
        context = self.contexts.find(header[0])
        if context is not None:
            context.remove_sent(header[1])

    def on_receive(self, sender: int, header: Header, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors of a message. Those that require grad get a Recv."""
        id, message = header
        context = self.contexts.get_or_create(id, self.worker_id)
        if context is None:
            return tensors
        node, tensors = receive(tensors)
        with context.lock:
            if sender != self.worker_id:
                context.known_workers.add(sender)
            if node is not None:
                context.add_received(message, sender, node)
        return tensors

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool) -> None:
        """Run a pass and block until it has ended on all workers. Raises the error of the pass."""
        context = self.contexts.get(context_id)
        backward_pass = self._new_pass(context, (self.worker_id, next(self._pass_numbers)), roots, retain_graph)
        backward_pass.start()
        with self._agent.waiting():
            wait_for(backward_pass.future)
        reply = backward_pass.future.value()
        if isinstance(reply, Failure):
            error = reply.error(self.load_error)
            try:
                raise error
            finally:
                del error  # it would keep this frame alive, and so the graph

    def num_passes(self) -> int:
        """Return the number of passes in progress on this worker."""
        return sum(len(context.passes) for context in self.contexts.all())

    def _new_pass(
        self, context: Context, pass_id: PassId, roots: Sequence[torch.Tensor], retain_graph: bool
    ) -> BackwardPass:
        with context.lock:
            backward_pass = BackwardPass(self._agent, context, pass_id, roots=roots, retain_graph=retain_graph)
            context.passes[pass_id] = backward_pass
        if context.is_released:
            self._fail_passes(context)
        return backward_pass

    def _find_pass(self, context_id: int, pass_id: PassId) -> BackwardPass | None:
        context = self.contexts.find(context_id)
        return None if context is None else context.passes.get(pass_id)

    def _on_begin(
        self,
        sender: WorkerInfo,
        context_id: int,
        pass_id: PassId,
        exchanged: tuple[tuple[int, ...], tuple[int, ...]],
        retain_graph: bool,
    ) -> "BeginReply | Future[BeginReply]":
        context = self.contexts.find(context_id)
        if context is None:
            return UnknownContext()
        sent, received = exchanged
        with context.lock:
            if pass_id in context.finished_passes:
                return Completed(context.not_received(sent, context.finished_passes[pass_id]))
            backward_pass = context.passes.get(pass_id)
            if backward_pass is not None:
                return Completed(context.not_received(sent, backward_pass.num_received))
            backward_pass = self._new_pass(context, pass_id, (), retain_graph)
        backward_pass.on_begin(sender.id, sent, received)
        self._agent.outside(backward_pass.start)
        return backward_pass.future

    def _on_gradients(
        self, _sender: WorkerInfo, context_id: int, pass_id: PassId, message: int, grads: PackedGrads
    ) -> None:
        backward_pass = self._find_pass(context_id, pass_id)
        if backward_pass is not None:
            backward_pass.on_gradients(message, grads)

    def _on_zeros(self, _sender: WorkerInfo, context_id: int, pass_id: PassId, messages: tuple[int, ...]) -> None:
        backward_pass = self._find_pass(context_id, pass_id)
        if backward_pass is not None:
            backward_pass.on_zeros(messages)

    def _on_abort(self, _sender: WorkerInfo, context_id: int, pass_id: PassId, failure: Failure) -> None:
        context = self.contexts.find(context_id)
        if context is None:
            return
        with context.lock:
            backward_pass = context.passes.get(pass_id)
            if backward_pass is None:
                context.finished_passes[pass_id] = len(context.received)
        if backward_pass is not None:
            backward_pass.fail(failure)

    # -- the end of a context --------------------------------------------------------------------------------------

    def _on_release(self, sender: WorkerInfo, context_id: int) -> None:
        self._release(context_id, forwarded_by=sender.id)

    def _release(self, id: int, forwarded_by: int | None) -> None:
        context = self.contexts.remove(id)
        if context is None:
            return
        self._fail_passes(context)
        peers = context._known_worker_ids() - set(context.lost_workers()) - {forwarded_by}
        if peers:
            # Opening a link may block, and this may be a reading thread.
            self._agent.outside(partial(self._send_release, sorted(peers), id))

    def _send_release(self, peers: list[int], id: int) -> None:
        for peer in peers:
            reply = self._agent.request(peer, "autograd.release", id)
            reply.add_done_callback(partial(self._on_release_reply, peer, id))

    def _on_release_reply(self, peer: int, id: int, reply: "Future[Any]") -> None:
        try:
            reply.value()
        except DeadlineExceeded:
            self._agent.outside(partial(self._send_release, [peer], id))
        except Exception:
            return  # the peer is lost or this agent is closed, and its contexts with it

    def _fail_passes(self, context: Context) -> None:
        error = RuntimeError(f"Could not find autograd context with id: {context.id}: it was released meanwhile")
        for backward_pass in list(context.passes.values()):
            backward_pass.fail(Failure.of(self.worker_id, error))

    def _on_lost(self, worker: WorkerInfo, incarnation: int) -> None:
        orphaned = self.contexts.on_worker_lost(worker.id, incarnation)
        for context in self.contexts.all():
            context.on_worker_lost(worker.id, worker.name)
            for backward_pass in list(context.passes.values()):
                backward_pass.on_worker_lost(worker.id)
        for context in orphaned:
            self._release(context.id, forwarded_by=worker.id)

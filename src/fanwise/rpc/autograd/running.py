"""A backward pass at work on this worker: the decisions of `Pass`, carried out with a graph and an agent.

    begun_by, gradients, zeros, below --inbox--> one after another: Pass --orders--> requests, classes to run
    a class --> on the thread that ordered it, and on others beside it --> what came out of it is a fact again
    fail  (an error here, an abort from elsewhere, a lost worker) --> all that know the context, and `future`

Facts come on threads that read and must not wait; jobs are started for them, outside. As many classes run at a time as
there are processors for them: micro-batches, where each computes with few threads. `future` is done once this worker
and all below it are through, or the pass has failed; it has then been left for good.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.futures import Future

from ...base.errors import WorkerLostError
from ..messages.records import control_codec
from .contexts import Context, PassId
from .failures import Failure
from .functions import Grads
from .graph import Graph, Ran
from .parts import Parts, from_parts, to_parts
from .passes import Begin, ClassOfNodes, Finish, Order, Pass, Run, Zero

if TYPE_CHECKING:
    from ..agent import Agent


class Through(NamedTuple):
    """Answer to begin: this worker and those below it are through. Of the messages told, `lost` get no gradient."""

    lost: tuple[int, ...] = ()


class Absent(NamedTuple):
    """Answer to begin: the context is not, or no longer, known here."""


Answer = Through | Absent | Failure
control_codec.register(Through, Absent, Failure, first_code=48)
Fact = Callable[[Pass], list[Order]]


class Running:
    """See the module.

    Args:
        me: the id of this worker.
        roots: what `backward` was called with; empty on all other workers.
    """

    def __init__(
        self,
        agent: "Agent",
        context: Context,
        pass_id: PassId,
        *,
        me: int,
        roots: Sequence[torch.Tensor] = (),
        retain_graph: bool,
    ) -> None:
        self.future: Future[Answer] = Future()
        self._agent = agent
        self._context = context
        self._id = pass_id
        self._me = me
        self._roots = roots
        self._retain_graph = retain_graph
        # What is to be done, by the threads in `_work_on`; all under the context's lock.
        self._inbox: deque[Fact] = deque()
        self._ready: deque[int] = deque()
        self._deciding = True  # until the first job has run: nothing is decided before the graph is known
        self._num_running = 0
        self._most_running = most_running()
        self._over = False
        # What there is now takes part; what comes later cannot have led to the roots.
        self._sent = dict(context.sent)
        self._received = dict(context.received)
        self.num_received = len(self._received)
        self._senders = dict(context.senders)
        self._parent: int | None = None
        self._peers = set(context.known)
        self._graph: Graph | None = None
        self._pass: Pass | None = None

    # -- facts: on any thread, never waiting ------------------------------------------------------------------------

    def begun_by(self, peer: int, messages: Sequence[int], received: Sequence[int]) -> None:
        """`peer` has begun the pass here; it sent these messages here and received those. Before the first job."""
        self._parent = peer
        self._put(lambda decide: decide.heard(peer, messages, received))

    def gradients(self, message: int, parts: Parts) -> None:
        """What we sent as `message` has these gradients."""
        self._put(lambda decide: self._arrived(message, from_parts(parts), decide))

    def zeros(self, messages: Sequence[int]) -> None:
        """These messages get no gradient."""
        self._put(lambda decide: decide.resolved(messages))

    def fail(self, failure: Failure) -> None:
        """End the pass here, and on all that know the context."""
        if self._end(failure):
            self._agent.outside(partial(self._abort, failure))

    def lost(self, worker: int) -> None:
        """A worker is lost. Ends the pass if gradients might have gone there, or come from there."""
        if self._context.exchanged_with(worker):
            self.fail(Failure.of(self._me, self._lost_error(worker)))

    # -- the job ---------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """The first job: look at the graph, tell the others, and run what can run at once."""
        try:
            self._begin()
        except BaseException as error:
            self.fail(Failure.of(self._me, error))
        with self._context.lock:
            self._deciding = False
        self._work_on()

    def _begin(self) -> None:
        graph = Graph(self._roots, {m: sent.edges() for m, sent in self._sent.items()}, self._received)
        self._graph = graph
        self._pass = Pass(
            self._me,
            {message: sent.to for message, sent in self._sent.items()},
            self._senders,
            [ClassOfNodes(one.waits, one.receives) for one in graph.classes],
            self._peers - {self._parent},
        )
        self._carry_out(self._pass.begin())

    def _put(self, fact: Fact) -> None:
        with self._context.lock:
            if self._over:
                return
            self._inbox.append(fact)
            if self._deciding:
                return
        self._agent.outside(self._work_on)

    def _work_on(self) -> None:
        """Do what is to be done. Several threads may be here: one decides, and others run classes."""
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException as error:
                self.fail(Failure.of(self._me, error))

    def _next(self) -> Callable[[], None] | None:
        with self._context.lock:
            work = self._taken()
            others = work is not None and self._is_more_to_do()
        if others:
            self._agent.outside(self._work_on)
        return work

    def _taken(self) -> Callable[[], None] | None:
        if self._over:
            return None
        if self._inbox and not self._deciding:
            self._deciding = True
            return partial(self._decide, self._inbox.popleft())
        if self._ready and self._num_running < self._most_running:
            self._num_running += 1
            return partial(self._run, self._ready.popleft())
        return None

    def _is_more_to_do(self) -> bool:
        return bool((self._inbox and not self._deciding) or (self._ready and self._num_running < self._most_running))

    def _decide(self, fact: Fact) -> None:
        assert self._pass is not None, "made by the first job"
        try:
            self._carry_out(fact(self._pass))
        finally:
            with self._context.lock:
                self._deciding = False

    def _carry_out(self, orders: list[Order]) -> None:
        ahead = deque(orders)
        while ahead and not self._over:
            order = ahead.popleft()
            if isinstance(order, Begin):
                self._tell_begin(order)
            elif isinstance(order, Zero):
                self._tell(order.peer, "autograd.zeros", order.messages)
            elif isinstance(order, Run):
                with self._context.lock:
                    self._ready.append(order.number)
            elif isinstance(order, Finish):
                self._end(Through())

    def _run(self, number: int) -> None:
        assert self._graph is not None, "made by the first job"
        try:
            with self._in_use():
                ran = self._graph.run(number, retain_graph=self._retain_graph)
        finally:
            with self._context.lock:
                self._num_running -= 1
        with self._context.lock:
            if not self._over:  # this thread takes it next, or who decides now
                self._inbox.append(lambda decide: self._ran(number, ran, decide))

    def _ran(self, number: int, ran: Ran, decide: Pass) -> list[Order]:
        for leaf, grad in ran.leaves:
            self._context.accumulate(leaf, grad)
        return [*self._hand_on(ran), *decide.ran(number)]

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        in_use = self._context.in_use
        if not in_use.enter(self._id, blocking=False):
            with self._agent.waiting():
                in_use.enter(self._id, blocking=True)
        try:
            yield
        finally:
            in_use.leave()

    def _hand_on(self, ran: Ran) -> list[Order]:
        assert self._pass is not None, "made by the first job"
        zeros: dict[int, list[int]] = {}
        orders: list[Order] = []
        for message, grads in ran.received.items():
            peer = self._senders[message]
            if grads is None or all(grad is None for grad in grads):
                zeros.setdefault(peer, []).append(message)
            elif peer == self._me:
                orders += self._arrived(message, grads, self._pass)
            else:
                self._tell(peer, "autograd.gradients", message, to_parts(grads))
        for message in zeros.pop(self._me, ()):
            orders += self._pass.resolved([message])
        for peer, messages in zeros.items():
            self._tell(peer, "autograd.zeros", tuple(messages))
        return orders

    def _arrived(self, message: int, grads: Grads, decide: Pass) -> list[Order]:
        assert self._graph is not None, "made by the first job"
        if message in decide.open:
            self._graph.arrived(message, grads, self._sent[message].devices)
        return decide.resolved([message])

    # -- the others ------------------------------------------------------------------------------------------------

    def _tell(self, peer: int, method: str, *args: object) -> None:
        told = self._agent.request(peer, method, self._context.id, self._id, *args)
        told.add_done_callback(partial(self._told, peer))

    def _told(self, peer: int, told: "Future[Any]") -> None:
        try:
            told.value()
        except WorkerLostError:
            self.lost(peer)
        except Exception as error:
            self.fail(Failure.of(self._me, error))

    def _tell_begin(self, order: Begin) -> None:
        if order.peer in self._context.lost():
            self._below(order.peer, self._lost_error(order.peer))
            return
        begun = self._agent.request(
            order.peer,
            "autograd.begin",
            self._context.id,
            self._id,
            (order.messages, order.received),
            self._retain_graph,
        )
        begun.add_done_callback(partial(self._begun, order.peer))

    def _begun(self, peer: int, begun: "Future[Any]") -> None:
        try:
            answer: Answer | Exception = begun.value()
        except Exception as error:
            answer = error
        self._below(peer, answer)

    def _below(self, peer: int, answer: Answer | Exception) -> None:
        if isinstance(answer, Failure):
            self.fail(answer)
        elif isinstance(answer, WorkerLostError) and self._context.exchanged_with(peer):
            self.fail(Failure.of(self._me, self._lost_error(peer)))
        elif isinstance(answer, Exception) and not isinstance(answer, WorkerLostError):
            self.fail(Failure.of(self._me, answer))
        elif isinstance(answer, Absent) and peer in self._senders.values():
            left = RuntimeError(f"Could not find autograd context with id: {self._context.id} on worker {peer}")
            self.fail(Failure.of(self._me, left))
        else:
            # Who is gone, or never heard of the context, will not answer for what was sent there.
            there = tuple(message for message, sent in self._sent.items() if sent.to == peer)
            lost = answer.lost if isinstance(answer, Through) else there
            self._put(lambda decide: [*decide.resolved(lost), *decide.below(peer)])

    def _lost_error(self, worker: int) -> WorkerLostError:
        name = self._name_of(worker)
        return WorkerLostError(
            f"worker {name} was lost; it took part in context {self._context.id}, of which a backward pass was asked.\n"
            f"Gradients through it cannot be had any more: leave the context and run forward and backward again."
        )

    def _name_of(self, worker: int) -> str:
        """The name of a lost worker. Its link may have ended before anybody told this context that it is lost."""
        name = self._context.lost().get(worker)
        if name is not None:
            return name
        try:
            return self._agent.worker(worker).name
        except RuntimeError:  # nobody of this group ever had this id; or the group is closed
            return f"of id {worker}"

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self, answer: Answer) -> bool:
        with self._context.lock:
            if self._over:
                return False
            self._over = True
            self._context.passes.pop(self._id, None)
            self._context.over[self._id] = self.num_received
            self._inbox.clear()
            self._ready.clear()
        self.future.set_result(answer)
        return True

    def _abort(self, failure: Failure) -> None:
        for peer in sorted(self._peers - set(self._context.lost())):
            self._agent.request(peer, "autograd.abort", self._context.id, self._id, failure)


def most_running() -> int:
    """How many classes may run at a time: one where an accelerator, or each operation, has all there is to compute."""
    if torch.accelerator.is_available():
        return 1
    return max(1, _num_cpus() // torch.get_num_threads())


@cache
def _num_cpus() -> int:
    from ...pool.devices import usable_cpus  # when a pass runs, not when rpc is imported

    return usable_cpus()

"""The queues of the actors that live here: a call waits in one, unopened, and takes no thread, until it is its turn.

    on a reading thread   take(request) --> `turns` --> begins now: a job for the runners
    on any thread         answered, failed          --> the next begins

What waits is bounded by its callers' credit, which they get back when it begins. A turn lasts until the call is
answered: for a coroutine, or a function that answers later, until its future is done. While the actor is made nothing
begins; when that fails, each call gets its turn, and the error.

A call whose caller has given up before it began does not run: one that was cancelled, whose time is over, or whose link
was cut, leaves the queue at once. What came with it is given back.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ...base.errors import CancelledError, DeadlineExceeded, LinkLostError
from ...links.hub import Alarm, Hub
from ...links.link import Link, Listener, Request
from ...links.runner_threads import RunnerThreads
from ..references.orders import GlobalId
from .address import Address
from .turns import Turns


class Call(Listener, Protocol):
    """A call that others make of this worker: opened, run and answered as a job."""

    def __call__(self) -> None: ...
    def drop(self, error: Exception) -> None:
        """It is not run: give back what came with it, and answer with the error."""


class Answering(Protocol):
    """What a call asks of its request."""

    @property
    def link(self) -> Link: ...
    @property
    def method(self) -> Any: ...  # Any: a closed message
    def taken_up(self) -> None: ...
    def when_answers_leave(self, again: Callable[[], None]) -> bool: ...
    def answer(self, value: object = None) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def unanswered(self) -> None: ...


class Queues:
    """See the module. One for each worker; one lock, held for moments."""

    def __init__(self, hub: Hub, runners: RunnerThreads) -> None:
        self._now_s = hub.clock.now_s
        self._runners = runners
        self._lock = threading.Lock()
        self._queues: dict[GlobalId, _Queue] = {}
        self._alarm = Alarm(hub, self._ring)

    def take(self, address: Address, request: Request, make: Callable[[Answering], Call]) -> None:
        """A call for an actor came, or the one that makes it. `make`: of what it is answered by. Never blocks."""
        due_s = self._now_s() + address.left_s if address.left_s else None
        with self._lock:
            queue = self._queues.get(address.actor)
            if queue is None:
                queue = self._queues[address.actor] = _Queue(address.actor)
            if address.concurrency and not queue.is_known:
                queue.is_known, queue.turns.limit = True, 0
                job: Call | None = make(_Turn(request, partial(self._made, queue, address.concurrency)))
                begin: Sequence[_Turn] = ()
            else:
                job, turn = None, _Turn(request, self._answered, queue, due_s, self._withdraw)
                turn.call = make(turn)
                request.listener = turn
                begin = queue.turns.came(turn, request.link, due_s)
        if job is not None:
            self._runners.call(job)
        elif begin:
            self._begin(begin)
        elif due_s is not None:
            self._alarm.set(due_s)

    @property
    def num_waiting(self) -> int:
        """How many calls wait for their turn, of all actors."""
        with self._lock:
            return sum(queue.turns.num_waiting for queue in list(self._queues.values()))

    def concurrency_of(self, actor: GlobalId) -> int:
        """How many calls of an actor that lives here run at a time; 0: it is not known, or not made yet."""
        with self._lock:
            queue = self._queues.get(actor)
            return queue.turns.limit if queue is not None and queue.is_known else 0

    def is_expected(self, actor: GlobalId, value: object) -> None:
        """The call that makes an actor has come. It is known for as long as its value lives."""

        def end(_: object) -> None:  # in a garbage collection too, so without the lock
            self._queues.pop(actor, None)

        with self._lock:
            queue = self._queues.get(actor)
            if queue is None:
                queue = self._queues[actor] = _Queue(actor)
            queue.value = weakref.ref(value, end)

    def _made(self, queue: "_Queue", concurrency: int, _: "_Turn") -> None:
        """The actor is there, or its making has failed."""
        with self._lock:
            queue.is_known = queue.value is not None
            begin = queue.turns.limited(concurrency)
            self._drop_if_idle(queue)
        self._begin(begin)

    def _drop_if_idle(self, queue: "_Queue") -> None:
        """Of calls that came before, or without, the one that makes their actor nothing is kept."""
        if not queue.is_known and queue.turns.is_idle and self._queues.get(queue.actor) is queue:
            del self._queues[queue.actor]

    def _begin(self, turns: "Sequence[_Turn]") -> None:
        for turn in turns:
            self._runners.call(partial(self._run, turn))

    def _run(self, turn: "_Turn") -> None:
        """It is its turn. On a runner thread."""
        call, queue = turn.call, turn.queue
        assert call is not None and queue is not None, "it is a turn in a queue, and has not ended"
        ending = turn.link.ending
        if ending is not None and not ending.clean:
            call.drop(_cut())
        elif turn.due_s is not None and self._now_s() >= turn.due_s:
            call.drop(_late(turn))
        elif turn.request.when_answers_leave(partial(self._released, hold := _Hold(), queue, turn.link)):
            with self._lock:
                begin = [turn] if hold.is_over else queue.turns.held(turn)
                hold.has_begun = True
            self._begin(begin)
        else:
            call()

    def _released(self, hold: "_Hold", queue: "_Queue", caller: Link) -> None:
        """The caller takes its answers again. Perhaps before the turn was given back."""
        with self._lock:
            hold.is_over = True
            begin = queue.turns.released(caller) if hold.has_begun else ()
        self._begin(begin)

    def _answered(self, turn: "_Turn") -> None:
        queue, turn.call = turn.queue, None
        assert queue is not None, "as above"
        with self._lock:
            begin = queue.turns.ended(turn)
            self._drop_if_idle(queue)
        self._begin(begin)

    def _withdraw(self, turn: "_Turn", error: Exception) -> None:
        """Its caller does not wait any more. By any thread that must not block."""
        call, queue = turn.call, turn.queue
        if call is None or queue is None:
            return  # it was answered
        with self._lock:
            is_withdrawn = queue.turns.withdrawn(turn)
        if is_withdrawn:
            self._runners.outside(partial(call.drop, error))

    def _ring(self) -> None:
        """The time of some calls is over. On the hub's thread."""
        now_s = self._now_s()
        with self._lock:
            queues = list(self._queues.values())
            over = [turn for queue in queues for turn in queue.turns.expired(now_s)]
            due_s = min((due for queue in queues if (due := queue.turns.next_due_s()) is not None), default=None)
        if due_s is not None:
            self._alarm.set(due_s)
        for turn in over:
            assert turn.call is not None, "it has not begun"
            self._runners.outside(partial(turn.call.drop, _late(turn)))


class _Queue:
    __slots__ = ("actor", "is_known", "turns", "value")

    def __init__(self, actor: GlobalId) -> None:
        self.actor = actor
        self.is_known = False  # the call that makes the actor has come
        self.value: weakref.ref[object] | None = None
        self.turns: Turns[_Turn] = Turns()


class _Hold:
    """A caller takes no answers."""

    def __init__(self) -> None:
        self.has_begun = self.is_over = False


class _Turn:
    """A request that is answered at the end of a turn; else as its own. `ended`: called with this, at least once."""

    __slots__ = ("_ended", "_withdraw", "call", "due_s", "queue", "request")

    def __init__(
        self,
        request: Request,
        ended: "Callable[[_Turn], None]",
        queue: _Queue | None = None,
        due_s: float | None = None,
        withdraw: "Callable[[_Turn, Exception], None] | None" = None,
    ) -> None:
        self._withdraw = withdraw
        self.request = request
        self.queue = queue
        self.due_s = due_s
        self.call: Call | None = None
        self._ended = ended

    @property
    def link(self) -> Link:
        return self.request.link

    @property
    def method(self) -> Any:  # Any: a closed message
        return self.request.method

    def taken_up(self) -> None:
        self.request.taken_up()

    def when_answers_leave(self, again: Callable[[], None]) -> bool:
        """Asked before its turn began, if it has one; else as for any call."""
        return self.queue is None and self.request.when_answers_leave(again)

    def answer(self, value: object = None) -> None:
        try:
            self.request.answer(value)
        finally:
            self._ended(self)

    def fail(self, error: BaseException) -> None:
        try:
            self.request.fail(error)
        finally:
            self._ended(self)

    # -- what the link tells of a call that waits, or runs

    def cancelled(self) -> None:
        if self.call is not None and self._withdraw is not None:
            self.call.cancelled()
            self._withdraw(self, CancelledError("the call was cancelled before its turn at the actor: it did not run."))

    def taken(self, num_items: int, num_bytes: int) -> None:
        if self.call is not None:
            self.call.taken(num_items, num_bytes)

    def lost(self) -> None:
        if self.call is not None and self._withdraw is not None:
            self.call.lost()
            if self.link.ending is not None and not self.link.ending.clean:
                self._withdraw(self, _cut())

    def unanswered(self) -> None:
        try:
            self.request.unanswered()
        finally:
            self._ended(self)


def _cut() -> LinkLostError:
    return LinkLostError("the link of the caller was cut before the call began: it did not run.")


def _late(turn: _Turn) -> DeadlineExceeded:
    return DeadlineExceeded(
        "the call waited for its turn at the actor until its time was over, behind the calls of others: it did not "
        "run. Give calls of this actor more time (timeout=), or let more of them run at a time (concurrency=)."
    )

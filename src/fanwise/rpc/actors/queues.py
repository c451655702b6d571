"""The queues of the actors of this worker. A queued call is not deserialized and takes no thread.

    on a reading thread   enqueue(request) --> `scheduler` --> start now: a job for the runner threads
    on any thread         reply, failure           --> the next call starts

Queued calls are bounded by the credit of their callers, who get it back when the call starts. A call ends with its
reply: for a coroutine, or a function that replies later, when its future is done. No call starts while the actor is
being created; if that fails, each call gets the error when it is dequeued.

A queued call that is canceled, times out or loses its link is removed at once and does not run. The references in it
are released.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ...base.errors import CancelledError, DeadlineExceeded, WorkerLostError
from ...links.hub import Alarm, Hub
from ...links.link import Link, Listener, Request
from ...links.runner_threads import RunnerThreads
from ..messages.ids import GlobalId
from ..messages.metadata import Address
from .scheduler import Scheduler


class Call(Listener, Protocol):
    """A received call as a job: deserialize, run, reply."""

    def __call__(self) -> None: ...
    def drop(self, error: Exception) -> None:
        """Release the contents of the message without running it, and reply with the error."""


class ReplyTarget(Protocol):
    """The part of `Request` that a call uses to reply."""

    @property
    def link(self) -> Link: ...
    @property
    def method(self) -> Any: ...
    def taken_up(self) -> None: ...
    def when_answers_leave(self, on_drained: Callable[[], None]) -> bool: ...
    def answer(self, value: object = None) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def unanswered(self) -> None: ...


class Queues:
    """The actor queues of one worker, under one lock that is only held briefly."""

    def __init__(self, hub: Hub, runners: RunnerThreads) -> None:
        self._now_s = hub.clock.now_s
        self._runners = runners
        self._lock = threading.Lock()
        self._queues: dict[GlobalId, _Queue] = {}
        self._timer = Alarm(hub, self._expire)

    def enqueue(self, address: Address, request: Request, create_job: Callable[[ReplyTarget], Call]) -> None:
        """Queue a call to an actor, or start the one that creates it. Does not block."""
        deadline_s = self._now_s() + address.left_s if address.left_s else None
        with self._lock:
            queue = self._queues.get(address.actor)
            if queue is None:
                queue = self._queues[address.actor] = _Queue(address.actor)
            if address.concurrency and not queue.is_registered:
                queue.is_registered, queue.scheduler.limit = True, 0
                job: Call | None = create_job(_QueuedCall(request, partial(self._created, queue, address.concurrency)))
                startable: Sequence[_QueuedCall] = ()
            else:
                job, call = None, _QueuedCall(request, self._finish, queue, deadline_s, self._withdraw)
                call.job = create_job(call)
                request.listener = call
                startable = queue.scheduler.enqueue(call, request.link, deadline_s)
        if job is not None:
            self._runners.call(job)
        elif startable:
            self._start(startable)
        elif deadline_s is not None:
            self._timer.set(deadline_s)

    @property
    def num_waiting(self) -> int:
        """Number of queued calls of all actors."""
        with self._lock:
            return sum(queue.scheduler.num_waiting for queue in list(self._queues.values()))

    def concurrency_of(self, actor: GlobalId) -> int:
        """Return the limit of concurrent calls of a local actor, or 0 if it is unknown or not created yet."""
        with self._lock:
            queue = self._queues.get(actor)
            return queue.scheduler.limit if queue is not None and queue.is_registered else 0

    def register(self, actor: GlobalId, value: object) -> None:
        """Record that the call that creates an actor has arrived. The actor is known until its value is deleted."""

        def remove(_: object) -> None:  # may run in a garbage collection: must not lock
            self._queues.pop(actor, None)

        with self._lock:
            queue = self._queues.get(actor)
            if queue is None:
                queue = self._queues[actor] = _Queue(actor)
            queue.value = weakref.ref(value, remove)

    def _created(self, queue: "_Queue", concurrency: int, _: "_QueuedCall") -> None:
        """Start the queued calls when the actor was created or its constructor has failed."""
        with self._lock:
            queue.is_registered = queue.value is not None
            startable = queue.scheduler.set_limit(concurrency)
            self._drop_if_idle(queue)
        self._start(startable)

    def _drop_if_idle(self, queue: "_Queue") -> None:
        """Delete the queue of an actor whose creating call has not arrived."""
        if not queue.is_registered and queue.scheduler.is_idle and self._queues.get(queue.actor) is queue:
            del self._queues[queue.actor]

    def _start(self, calls: "Sequence[_QueuedCall]") -> None:
        for call in calls:
            self._runners.call(partial(self._run, call))

    def _run(self, call: "_QueuedCall") -> None:
        """Run a dequeued call, on a runner thread."""
        job, queue = call.job, call.queue
        assert job is not None and queue is not None, "queued and not finished"
        ending = call.link.ending
        if ending is not None and not ending.clean:
            job.drop(_caller_lost_error())
        elif call.deadline_s is not None and self._now_s() >= call.deadline_s:
            job.drop(_deadline_error(call))
        elif call.request.when_answers_leave(partial(self._resume, pause := _Pause(), queue, call.link)):
            with self._lock:
                startable = [call] if pause.is_resumed else queue.scheduler.pause(call)
                pause.is_recorded = True
            self._start(startable)
        else:
            job()

    def _resume(self, pause: "_Pause", queue: "_Queue", caller: Link) -> None:
        """Resume a caller that reads replies again, perhaps before `_run` has recorded the pause."""
        with self._lock:
            pause.is_resumed = True
            startable = queue.scheduler.resume(caller) if pause.is_recorded else ()
        self._start(startable)

    def _finish(self, call: "_QueuedCall") -> None:
        queue, call.job = call.queue, None
        assert queue is not None, "queued"
        with self._lock:
            startable = queue.scheduler.finish(call)
            self._drop_if_idle(queue)
        self._start(startable)

    def _withdraw(self, call: "_QueuedCall", error: Exception) -> None:
        """Remove a call whose caller no longer waits. Does not block."""
        job, queue = call.job, call.queue
        if job is None or queue is None:
            return  # finished
        with self._lock:
            is_withdrawn = queue.scheduler.withdraw(call)
        if is_withdrawn:
            self._runners.outside(partial(job.drop, error))

    def _expire(self) -> None:
        """Drop the calls that have timed out. Runs on the hub's thread."""
        now_s = self._now_s()
        with self._lock:
            queues = list(self._queues.values())
            overdue = [call for queue in queues for call in queue.scheduler.expire(now_s)]
            deadline_s = min(
                (deadline for queue in queues if (deadline := queue.scheduler.next_deadline_s()) is not None),
                default=None,
            )
        if deadline_s is not None:
            self._timer.set(deadline_s)
        for call in overdue:
            assert call.job is not None, "not started"
            self._runners.outside(partial(call.job.drop, _deadline_error(call)))


class _Queue:
    __slots__ = ("actor", "is_registered", "scheduler", "value")

    def __init__(self, actor: GlobalId) -> None:
        self.actor = actor
        self.is_registered = False  # the creating call has arrived
        self.value: weakref.ref[object] | None = None
        self.scheduler: Scheduler[_QueuedCall] = Scheduler()


class _Pause:
    """The pause of a caller that does not read replies."""

    def __init__(self) -> None:
        self.is_recorded = self.is_resumed = False


class _QueuedCall:
    """A request in a queue, or the one that creates the actor. `on_end(self)` is called after the reply."""

    __slots__ = ("_on_end", "_withdraw", "deadline_s", "job", "queue", "request")

    def __init__(
        self,
        request: Request,
        on_end: "Callable[[_QueuedCall], None]",
        queue: _Queue | None = None,
        deadline_s: float | None = None,
        withdraw: "Callable[[_QueuedCall, Exception], None] | None" = None,
    ) -> None:
        self._withdraw = withdraw
        self.request = request
        self.queue = queue
        self.deadline_s = deadline_s
        self.job: Call | None = None
        self._on_end = on_end

    @property
    def link(self) -> Link:
        return self.request.link

    @property
    def method(self) -> Any:
        return self.request.method

    def taken_up(self) -> None:
        self.request.taken_up()

    def when_answers_leave(self, on_drained: Callable[[], None]) -> bool:
        """As `Request.when_answers_leave`. Queued calls have checked it in `Queues._run`."""
        return self.queue is None and self.request.when_answers_leave(on_drained)

    def answer(self, value: object = None) -> None:
        try:
            self.request.answer(value)
        finally:
            self._on_end(self)

    def fail(self, error: BaseException) -> None:
        try:
            self.request.fail(error)
        finally:
            self._on_end(self)

    # -- events from the link: see `Listener`

    def cancelled(self) -> None:
        if self.job is not None and self._withdraw is not None:
            self.job.cancelled()
            self._withdraw(
                self, CancelledError("the call was canceled while it was queued at the actor: it did not run.")
            )

    def taken(self, num_items: int, num_bytes: int) -> None:
        if self.job is not None:
            self.job.taken(num_items, num_bytes)

    def lost(self) -> None:
        if self.job is not None and self._withdraw is not None:
            self.job.lost()
            if self.link.ending is not None and not self.link.ending.clean:
                self._withdraw(self, _caller_lost_error())

    def unanswered(self) -> None:
        try:
            self.request.unanswered()
        finally:
            self._on_end(self)


def _caller_lost_error() -> WorkerLostError:
    return WorkerLostError("the caller was lost while the call was queued: it did not run.")


def _deadline_error(call: _QueuedCall) -> DeadlineExceeded:
    return DeadlineExceeded(
        "the call timed out in the queue of the actor, behind other calls: it did not run.\n"
        "Give calls of this actor more time (timeout=), or run more of them concurrently (concurrency=)."
    )

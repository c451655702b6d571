"""The queues of the actors of this worker, one FIFO per actor. A queued call is not deserialized and takes no thread.

    on a reading thread   enqueue(request) --> fewer calls run than the limit: a job for the runner threads
    on any thread         reply, failure   --> the next call starts

Queued calls are bounded by the credit of their callers, who get it back when the call starts. A call ends with its
reply: for a coroutine, or a function that replies later, when its future is done. No call starts while the actor is
being created; if that fails, each call gets the error when it is dequeued.

A call that is canceled, times out or loses its caller in the queue does not run. It keeps its position until it is
dequeued. A caller that does not read its replies delays the calls behind its own.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ...base.errors import DeadlineExceeded, WorkerLostError
from ...links.hub import Hub
from ...links.runner_threads import RunnerThreads
from ..calling.server import ReceivedCall
from ..messages.ids import GlobalId
from ..messages.metadata import Address


class Queues:
    """The actor queues of one worker, under one lock that is only held briefly."""

    def __init__(self, hub: Hub, runners: RunnerThreads) -> None:
        self._now_s = hub.clock.now_s
        self._runners = runners
        self._lock = threading.Lock()
        self._queues: dict[GlobalId, _Queue] = {}

    def enqueue(self, address: Address, call: ReceivedCall) -> None:
        """Queue a call to an actor, or start the one that creates it. Does not block."""
        deadline_s = self._now_s() + address.left_s if address.left_s else None
        with self._lock:
            queue = self._queue_of(address.actor)
            if address.concurrency and not queue.is_registered:
                queue.is_registered, queue.limit = True, 0
                call.on_end = partial(self._created, queue, address.concurrency)
                jobs: list[Callable[[], None]] = [call]
            else:
                call.on_end = partial(self._finish, queue)
                queue.waiting.append((call, deadline_s))
                jobs = self._dequeue(queue)
        self._start(jobs)

    @property
    def num_waiting(self) -> int:
        """Number of queued calls of all actors."""
        with self._lock:
            return sum(len(queue.waiting) for queue in list(self._queues.values()))

    def concurrency_of(self, actor: GlobalId) -> int:
        """Return the limit of concurrent calls of a local actor, or 0 if it is unknown or not created yet."""
        with self._lock:
            queue = self._queues.get(actor)
            return queue.limit if queue is not None and queue.is_registered else 0

    def register(self, actor: GlobalId, value: object) -> None:
        """Record that the call that creates an actor has arrived. The actor is known until its value is deleted."""

        def remove(_: object) -> None:  # may run in a garbage collection: must not lock
            self._queues.pop(actor, None)

        with self._lock:
            self._queue_of(actor).value = weakref.ref(value, remove)

    def _queue_of(self, actor: GlobalId) -> "_Queue":
        queue = self._queues.get(actor)
        if queue is None:
            queue = self._queues[actor] = _Queue(actor)
        return queue

    def _dequeue(self, queue: "_Queue") -> list[Callable[[], None]]:
        """Return the jobs of the calls that may start now. Called with the lock."""
        jobs: list[Callable[[], None]] = []
        while queue.waiting and queue.num_running < queue.limit:
            queue.num_running += 1
            jobs.append(partial(self._run, *queue.waiting.popleft()))
        return jobs

    def _start(self, jobs: Sequence[Callable[[], None]]) -> None:
        for job in jobs:
            self._runners.call(job)

    def _run(self, call: ReceivedCall, deadline_s: float | None) -> None:
        """Run a dequeued call, on a runner thread."""
        ending = call.request.link.ending
        if ending is not None and not ending.clean:
            call.drop(WorkerLostError("the caller was lost while the call was queued: it did not run."))
        elif deadline_s is not None and self._now_s() >= deadline_s:
            call.drop(
                DeadlineExceeded(
                    "the call timed out in the queue of the actor, behind other calls: it did not run.\nGive calls of "
                    "this actor more time (timeout=), or run more of them concurrently (concurrency=)."
                )
            )
        elif not call.request.when_answers_leave(partial(self._start, [partial(self._run, call, deadline_s)])):
            call()

    def _created(self, queue: "_Queue", concurrency: int) -> None:
        """Start the queued calls when the actor was created or its constructor has failed."""
        with self._lock:
            queue.is_registered, queue.limit = queue.value is not None, concurrency
            jobs = self._dequeue(queue)
            self._delete_if_idle(queue)
        self._start(jobs)

    def _finish(self, queue: "_Queue") -> None:
        with self._lock:
            queue.num_running -= 1
            jobs = self._dequeue(queue)
            self._delete_if_idle(queue)
        self._start(jobs)

    def _delete_if_idle(self, queue: "_Queue") -> None:
        """Delete the queue of an actor whose creating call has not arrived."""
        is_idle = not queue.waiting and not queue.num_running
        if is_idle and not queue.is_registered and self._queues.get(queue.actor) is queue:
            del self._queues[queue.actor]


class _Queue:
    __slots__ = ("actor", "is_registered", "limit", "num_running", "value", "waiting")

    def __init__(self, actor: GlobalId) -> None:
        self.actor = actor
        self.is_registered = False  # the creating call has arrived
        self.value: weakref.ref[object] | None = None
        self.limit = 1  # of concurrent calls; 0 while the actor is being created
        self.num_running = 0
        self.waiting: deque[tuple[ReceivedCall, float | None]] = deque()

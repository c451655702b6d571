"""The workers of the group, for programs: a list, and callbacks for workers that join, leave or die.

    group --event, on the hub's thread--> WorkerEvents --> Subscription: a queue --its own thread--> callback

Each subscription has a queue, and a thread while the queue is not empty. A callback that is slow or waits for a call
therefore delays neither the event loop nor another callback. A subscription to joins begins with the present members.
This is done on the hub's thread, which also reports events, so no worker is missed or reported twice.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from ..links.hub import Hub
from . import current
from .hub_thread import run_on_hub
from .membership.group import Group
from .membership.members import Event, Joined, Left, Lost
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")


class Subscription:
    """A callback for events of other workers. Returned by `on_worker_joined`, `on_worker_left` and `on_worker_lost`.

    >>> lost = on_worker_lost(print)
    >>> lost.cancel()
    """

    def __init__(self, callback: Callable[..., object], kind: type[Event]) -> None:
        self._callback = callback
        self._kind = kind
        self._lock = threading.Lock()
        self._queue: deque[tuple[object, ...]] = deque()
        self._is_running = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Return True after `cancel`."""
        return self._is_over

    def cancel(self) -> None:
        """Start no more calls. Does not wait for one that runs. May be called repeatedly, and after `shutdown`."""
        with self._lock:
            self._is_over = True
            self._queue.clear()

    def _on_event(self, event: Event) -> None:
        """Call the callback on its own thread if the event is of its kind. Does not block or raise."""
        if type(event) is not self._kind:
            return
        worker = event.member.info
        with self._lock:
            if self._is_over:
                return
            self._queue.append((worker, event.why) if isinstance(event, Lost) else (worker,))
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="fanwise-worker-events", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._is_running = False  # the next event tries again
            _log.exception("no thread could be started to call %r", self._callback)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._is_running = False
                    return
                args = self._queue.popleft()
            try:
                self._callback(*args)
            except BaseException:  # including SystemExit, which would end only this thread
                _log.exception("the callback %r failed for %s; the next event calls it again", self._callback, args)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of the group, returned by `workers`.

    Attributes:
        name, id: as in its `WorkerInfo`; the id is the rank.
        host: name of its host.
        pid: process ID on that host.
        is_coordinator: True for the worker that decides about membership.
    """

    name: str
    id: int
    host: str
    pid: int
    is_coordinator: bool


def workers() -> tuple[Worker, ...]:
    """Return the workers of the group, including this one, ordered by rank. Does not block.

    Changes are visible here before the callbacks below are called. If the group has ended for this worker, because rank
    0 has ended or the others have declared this worker lost, the result contains only this worker.

    >>> [worker.name for worker in workers()]
    ['worker0', 'worker1']
    """
    group: Group = current.current().group
    return tuple(
        Worker(member.name, member.id, member.host.partition("/")[0], member.pid, member.id == group.coordinator)
        for member in group.members().values()
    )


def on_worker_joined(callback: Callable[[WorkerInfo], object]) -> Subscription:
    """Call `callback(worker)` for each other worker in the group now, and for each that joins later.

    No worker is missed or reported twice. A process restarted under an old name is a new worker. Callbacks run on a
    thread of fanwise, one call at a time and in the order of events. They may block and call other workers. A slow
    callback delays only its own next call; errors are logged. Different callbacks are independent, so a callback for
    losses may run before a slow one for joins. To maintain a list of live workers, call `workers` in each callback.

    Returns a subscription; its `cancel()` stops the calls. `shutdown` cancels all subscriptions.

    >>> on_worker_joined(lambda worker: print(worker.name, "is there")).cancel()
    """
    return _subscribe(callback, Joined)


def on_worker_left(callback: Callable[[WorkerInfo], object]) -> Subscription:
    """Call `callback(worker)` for each worker that leaves by `shutdown` from now on.

    Threads, order and cancellation are those of `on_worker_joined`. A graceful shutdown of a static group ends all
    workers at once and is not reported.

    >>> on_worker_left(lambda worker: print(worker.name, "has left")).cancel()
    """
    return _subscribe(callback, Left)


def on_worker_lost(callback: Callable[[WorkerInfo, str], object]) -> Subscription:
    """Call `callback(worker, why)` for each worker that dies or is unreachable for too long from now on.

    It is called once per incarnation of a worker, after the group has decided; calls to that worker already fail. When
    rank 0 ends, or the others have declared this worker lost, it is called for each of the others. Threads, order and
    cancellation are those of `on_worker_joined`.

    >>> on_worker_lost(lambda worker, why: print(worker.name, "was lost:", why)).cancel()
    """
    return _subscribe(callback, Lost)


def _subscribe(callback: Callable[..., object], kind: type[Event]) -> Subscription:
    agent = current.current()
    with agent.waiting():
        events: WorkerEvents = agent.worker_events
        return events.subscribe(callback, kind)


class WorkerEvents:
    """Subscriptions to the events of the group, and in `counts` the number of events of each kind."""

    def __init__(self, hub: Hub, group: Group) -> None:
        self._hub = hub
        self._group = group
        self._subscriptions: list[Subscription] = []
        self.counts: Counter[type[Event]] = Counter()
        group.on_event.append(self._on_event)

    def subscribe(self, callback: Callable[..., object], kind: type[Event]) -> Subscription:
        """Call `callback` for all later events of this kind, and if it is `Joined` for all present members.

        Blocks for a moment, for the hub's thread.
        """
        if not callable(callback):
            raise TypeError(f"a callback should be callable, got {callback!r} of type {type(callback).__name__}.")
        subscription = Subscription(callback, kind)
        run_on_hub(self._hub, lambda: self._add(subscription))
        return subscription

    def close(self) -> None:
        """Cancel all subscriptions."""
        for subscription in list(self._subscriptions):
            subscription.cancel()

    def _add(self, subscription: Subscription) -> None:
        active = [known for known in self._subscriptions if not known.is_over]
        self._subscriptions = [*active, subscription]
        for member in self._group.members().values():
            if member != self._group.me:
                subscription._on_event(Joined(member))

    def _on_event(self, event: Event) -> None:
        self.counts[type(event)] += 1
        for subscription in self._subscriptions:
            subscription._on_event(event)

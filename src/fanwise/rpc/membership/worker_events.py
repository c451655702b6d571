"""Callbacks of programs for workers that join, leave or are lost.

    group --event, on the hub's thread--> WorkerEvents --> Subscription: a queue --its own thread--> callback

Each subscription has a queue, and a thread while the queue is not empty. A callback that is slow or waits for a call
therefore delays neither the event loop nor another callback. Its calls do not overlap and follow the order of the
events; different callbacks have no order between them. Errors of a callback are logged.

A subscription to joins begins with the present members. This is done on the hub's thread, which also reports events, so
no worker is missed or reported twice.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...links.hub import Hub
from ..hub_thread import run_on_hub
from .members import Event, Joined, Lost, Member

if TYPE_CHECKING:
    from .group import Group

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
        """Call the callback soon, on its own thread, if the event is of its kind. Does not block or raise."""
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


class WorkerEvents:
    """The subscriptions to the events of the group of this worker.

    Attributes:
        counts: number of events so far, by kind.
    """

    def __init__(self, hub: Hub, group: "Group") -> None:
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

    def members(self) -> list[Member]:
        """Return all members by rank, including this worker."""
        members = self._group.members()
        return [members[rank] for rank in sorted(members)]

    def close(self) -> None:
        """Cancel all subscriptions."""
        for subscription in list(self._subscriptions):
            subscription.cancel()

    def _add(self, subscription: Subscription) -> None:
        active = [known for known in self._subscriptions if not known.is_over]
        self._subscriptions = [*active, subscription]
        for member in self.members():
            if member != self._group.me:
                subscription._on_event(Joined(member))

    def _on_event(self, event: Event) -> None:
        self.counts[type(event)] += 1
        for subscription in self._subscriptions:
            subscription._on_event(event)

"""What a program hears of the other workers: who has joined, who has left, who was lost and why.

    group --event, on the hub's thread--> WorkerEvents --> Subscription: a queue --a thread of its own--> callback

Each subscription has a queue, and a thread while something is in it. So a callback that is slow, or waits for a call,
holds up neither the reading of links nor another callback. One that raises is logged, and called for what comes next. A
callback is called for one event at a time, in the order in which they happened; between two callbacks there is none.

Who subscribes to joins is first called for those who are there: both are done on the hub's thread, in one go, where
events come too. So nobody is missed and nobody comes twice.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Protocol

from ...links.hub import Hub
from ..hub_thread import run_on_hub
from .members import Event, Joined, Lost, Member

_log = logging.getLogger("fanwise.rpc")


class Subscription:
    """A callback that hears of other workers. Made by `on_worker_joined`, `on_worker_left` and `on_worker_lost`.

    >>> lost = on_worker_lost(print)
    >>> lost.cancel()
    """

    def __init__(self, callback: Callable[..., object], kind: type[Event]) -> None:
        self._callback = callback
        self._kind = kind
        self._lock = threading.Lock()
        self._waiting: deque[tuple[object, ...]] = deque()
        self._is_running = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled."""
        return self._is_over

    def cancel(self) -> None:
        """No call begins from now on; one that runs is not waited for. May be repeated, and come after `shutdown`."""
        with self._lock:
            self._is_over = True
            self._waiting.clear()

    def hear(self, event: Event) -> None:
        """It has happened: call the callback soon, elsewhere, if it is meant. Never blocks, never raises."""
        if type(event) is not self._kind:
            return
        worker = event.member.info
        with self._lock:
            if self._is_over:
                return
            self._waiting.append((worker, event.why) if isinstance(event, Lost) else (worker,))
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="fanwise-worker-events", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._is_running = False  # what waits is told with the next event
            _log.exception("no thread could be started to call %r", self._callback)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                args = self._waiting.popleft()
            try:
                self._callback(*args)
            except BaseException:  # SystemExit too: it would end this thread only
                _log.exception("the callback %r failed for %s; it is called for what comes next", self._callback, args)


class Group(Protocol):
    """What is asked of the group of this worker. Its events, and `members`, change on the hub's thread only."""

    on_event: list[Callable[[Event], None]]

    @property
    def me(self) -> Member: ...
    @property
    def fenced(self) -> str | None: ...
    def members(self) -> Mapping[int, Member]: ...


class WorkerEvents:
    """Who listens to the events of `group`. One for each worker, made when the group is there.

    Attributes:
        counts: of the events so far, by kind.
    """

    def __init__(self, hub: Hub, group: Group) -> None:
        self._hub = hub
        self._group = group
        self._subscriptions: list[Subscription] = []
        self.counts: Counter[type[Event]] = Counter()
        group.on_event.append(self._happened)

    def subscribe(self, callback: Callable[..., object], kind: type[Event]) -> Subscription:
        """Call `callback` for all events of this kind from now on, and for all who are there if it is `Joined`.

        Waits for a moment for the hub's thread.
        """
        if not callable(callback):
            raise TypeError(f"a callback should be callable, got {callback!r} of type {type(callback).__name__}.")
        subscription = Subscription(callback, kind)
        run_on_hub(self._hub, lambda: self._begin(subscription))
        return subscription

    def members(self) -> list[Member]:
        """All who are there, this worker included, by rank. Only this worker, when the others have declared it lost."""
        me, members = self._group.me, self._group.members()
        return [me] if self._group.fenced is not None else [members[rank] for rank in sorted(members)]

    def close(self) -> None:
        """No callback is called from now on."""
        for subscription in list(self._subscriptions):
            subscription.cancel()

    def _begin(self, subscription: Subscription) -> None:
        self._subscriptions = [*(known for known in self._subscriptions if not known.is_over), subscription]
        for member in self.members():
            if member != self._group.me:
                subscription.hear(Joined(member))

    def _happened(self, event: Event) -> None:
        self.counts[type(event)] += 1
        for subscription in self._subscriptions:
            subscription.hear(event)

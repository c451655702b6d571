"""The link for calls to each worker, and the queue of calls that wait for it.

    add(id, link)      use the link for calls, unless there is an older one, which keeps their order
    queue(id, call)    queue a call; the link to `id` is withheld from now on
    flush(id, link)    send all queued calls in order, then make the link available
    fail_all(id, error) fail all queued calls

No call overtakes a queued one: while a call is queued, `links` has no link to that worker. Queued calls fail when they
time out. Thread-safe; nothing here blocks.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..base.errors import ClosedError, DeadlineExceeded, FanwiseError
from ..links.credits import OVERDRAFT
from ..links.hub import Alarm, Hub
from ..links.link import Link

# Calls with similar deadlines fail together.
_SLACK_S = 0.01


class QueuedItem(Protocol):
    """A call or request that waits for a link.

    Attributes:
        deadline_s: deadline on the hub's clock; None for no limit.
        num_bytes: size of the message.
    """

    deadline_s: float | None
    num_bytes: int

    def send(self, link: Link) -> None:
        """Send over `link`. Called once. Does not raise and runs no user code."""

    def fail(self, error: FanwiseError) -> None:
        """Fail without sending. As `send`."""


@dataclass(slots=True)
class _Queue:
    """Queued calls to one worker, the withheld link, and the number of calls being sent.

    `num_bytes` includes calls that were sent: they do not wait for credit, so the queue must not refill meanwhile.
    """

    calls: deque[QueuedItem] = field(default_factory=deque)
    num_bytes: int = 0
    link: Link | None = None
    num_sending: int = 0


class Routes:
    """See the module.

    Attributes:
        links: links for calls by worker id, for a fast lookup. A link may have ended.
    """

    def __init__(self, hub: Hub) -> None:
        self.links: dict[int, Link] = {}
        self._queues: dict[int, _Queue] = {}
        self._lock = threading.Lock()
        self._hub = hub
        self._timer = Alarm(hub, self._expire)
        self._closed = False

    @property
    def num_open(self) -> int:
        """Number of calls that are queued or wait for a reply."""
        with self._lock:
            queues = list(self._queues.values())
            # Links last, so that a call sent meanwhile is counted twice rather than not at all.
            num_queued = sum(len(queue.calls) + queue.num_sending for queue in queues)
            links = [*self.links.values(), *(queue.link for queue in queues if queue.link is not None)]
        return num_queued + sum(link.num_open for link in links)

    def open_calls(self) -> dict[int, list[str]]:
        """Return the names of the calls that wait for a reply, by worker."""
        with self._lock:
            links = list(self.links.items())
        return {id: names for id, link in links if (names := link.open_calls())}

    def num_queued(self) -> dict[int, int]:
        """Return the number of queued calls, by worker."""
        with self._lock:
            return {id: len(queue.calls) for id, queue in self._queues.items()}

    def get_open(self, id: int) -> Link | None:
        """Return the link for calls to worker `id`; None if it must be opened or calls are queued."""
        link = self.links.get(id)
        return link if link is not None and link.ending is None else None

    def link_to(self, id: int) -> Link | None:
        """Return the open link to worker `id`, even if it is withheld."""
        with self._lock:
            return self._link_to(id)

    def _link_to(self, id: int) -> Link | None:
        queue = self._queues.get(id)
        link = self.links.get(id) if queue is None else queue.link
        return link if link is not None and link.ending is None else None

    def add(self, id: int, link: Link) -> Link:
        """Add a link to worker `id`. Return the link to use: an existing one takes precedence."""
        with self._lock:
            existing = self._link_to(id)
            if existing is not None:
                return existing
            if id in self._queues:
                self._queues[id].link = link
            else:
                self.links[id] = link
            return link

    def remove(self, id: int, link: Link) -> None:
        """Remove a link that has ended or is about to."""
        with self._lock:
            if self.links.get(id) is link:
                del self.links[id]
            queue = self._queues.get(id)
            if queue is not None and queue.link is link:
                queue.link = None

    # -- queued calls ----------------------------------------------------------------------------------------------

    def queue(self, id: int, call: QueuedItem) -> Literal["first", "queued", "full"]:
        """Queue `call` until there is a link to worker `id`. After "first", the caller must open a link.

        "full" means that `call` was not queued, because too many bytes are.
        """
        with self._lock:
            is_closed, is_first = self._closed, id not in self._queues
            if not is_closed:
                if is_first:
                    self._queues[id] = _Queue(link=self.links.pop(id, None))
                queue = self._queues[id]
                if call.num_bytes and queue.num_bytes and queue.num_bytes + call.num_bytes > OVERDRAFT:
                    return "full"
                queue.num_bytes += call.num_bytes
                queue.calls.append(call)
        if is_closed:
            call.fail(ClosedError("RPC has been shut down in this process."))
            return "queued"
        if call.deadline_s is not None:
            self._timer.set(call.deadline_s + _SLACK_S)
        return "first" if is_first else "queued"

    def is_awaited(self, id: int) -> bool:
        """Return True if calls to worker `id` are queued."""
        return id in self._queues

    def flush(self, id: int, link: Link) -> Link:
        """Send the queued calls over `link`. One thread at a time per worker."""
        while True:
            with self._lock:
                queue = self._queues.get(id)
                if queue is None:
                    return link
                if not queue.calls:
                    del self._queues[id]
                    if link.ending is None:
                        self.links[id] = link
                    return link
                if link.ending is not None:  # the rest waits for the next link
                    return link
                call = queue.calls.popleft()
                queue.num_sending += 1
            try:
                call.send(link)
            finally:
                with self._lock:
                    queue.num_sending -= 1

    def fail_all(self, id: int, error: FanwiseError, *, unless_linked: bool = False) -> None:
        """Fail the queued calls to worker `id`, or with `unless_linked` only if there is no link."""
        with self._lock:
            if unless_linked and self._link_to(id) is not None:
                return
            queue = self._queues.pop(id, None)
        for call in queue.calls if queue is not None else ():
            call.fail(error)

    def _expire(self) -> None:
        now_s = self._hub.clock.now_s()
        overdue: list[QueuedItem] = []
        deadlines_s: list[float] = []
        with self._lock:
            for queue in self._queues.values():
                expired = [call for call in queue.calls if call.deadline_s is not None and call.deadline_s <= now_s]
                overdue += expired
                queue.num_bytes -= sum(call.num_bytes for call in expired)
                queue.calls = deque(call for call in queue.calls if call.deadline_s is None or call.deadline_s > now_s)
                deadlines_s += (call.deadline_s for call in queue.calls if call.deadline_s is not None)
        for call in overdue:
            call.fail(DeadlineExceeded("the call timed out while it waited for its link."))
        if deadlines_s:
            self._timer.set(min(deadlines_s) + _SLACK_S)

    def close(self, error: Callable[[], FanwiseError], *, for_good: bool = True) -> None:
        """Fail all queued calls with a new `error()`, and with `for_good` all later ones."""
        with self._lock:
            self._closed = self._closed or for_good
            queues, self._queues = list(self._queues.values()), {}
        self._timer.cancel()
        for queue in queues:
            for call in queue.calls:
                call.fail(error())

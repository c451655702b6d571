"""Over which link the calls to each worker go, and which calls wait because there is none yet.

    place(id, link)    from now on calls go over it; where there is one already, that stays, and keeps their order
    queue(id, call)    a call that waits; from now on the link to `id`, when it is made, is kept back
    let_out(id, link)  all that wait leave, in their order; then the link is there for everybody
    give_up(id, error) all that wait fail

So a call never passes one that was queued before it: while one waits, `links` has no link to that worker. Calls whose
time runs out fail where they wait. Makes no link and knows no worker; by any thread, and nothing here blocks.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ...base.errors import ClosedError, DeadlineExceeded, FanwiseError
from ...links.flow_control.credits import OVERDRAFT
from ...links.hub import Alarm, Hub
from ...links.link import Link

# Calls that were made one after another fail together.
_SLACK_S = 0.01


class Waiting(Protocol):
    """A call that waits for its link.

    Attributes:
        due_s: when it fails, on the hub's clock; None: never.
        num_bytes: how much it keeps.
    """

    due_s: float | None
    num_bytes: int

    def send(self, link: Link) -> None:
        """Leave over `link`. Once. Does not raise, and runs no code of the user."""

    def fail(self, error: FanwiseError) -> None:
        """It will not leave. As `send`."""


@dataclass(slots=True)
class _Queue:
    """Calls to one worker, in their order; the link that is kept back; how many are just leaving.

    `num_bytes`: of all that wait, and of all that have left. They leave without waiting for credit, so that they delay
    nobody who waits for the link; so no more may come while they leave.
    """

    calls: deque[Waiting] = field(default_factory=deque)
    num_bytes: int = 0
    link: Link | None = None
    num_leaving: int = 0


class Routes:
    """See the module.

    Attributes:
        links: by worker id. Whoever calls looks here first; a link may have ended.
    """

    def __init__(self, hub: Hub) -> None:
        self.links: dict[int, Link] = {}
        self._queues: dict[int, _Queue] = {}
        self._lock = threading.Lock()
        self._hub = hub
        self._alarm = Alarm(hub, self._expire)
        self._closed = False

    @property
    def num_open(self) -> int:
        """How many calls wait for their links, or for their answers; not those for an answer in parts."""
        with self._lock:
            queues = list(self._queues.values())
            # In this order: a call that leaves meanwhile is counted twice, and never not at all.
            num_queued = sum(len(queue.calls) + queue.num_leaving for queue in queues)
            links = [*self.links.values(), *(queue.link for queue in queues if queue.link is not None)]
        return num_queued + sum(link.num_open_whole for link in links)

    def open_calls(self) -> dict[int, list[str]]:
        """The names of calls whose answers are waited for, by worker."""
        with self._lock:
            links = list(self.links.items())
        return {id: names for id, link in links if (names := link.open_calls())}

    def num_queued(self) -> dict[int, int]:
        """How many calls wait for their links, by worker."""
        with self._lock:
            return {id: len(queue.calls) for id, queue in self._queues.items()}

    def ready(self, id: int) -> Link | None:
        """The link for calls to worker `id`; None: one must be made first, or others wait for it."""
        link = self.links.get(id)
        return link if link is not None and link.ending is None else None

    def link_to(self, id: int) -> Link | None:
        """The open link to worker `id`, also one that is kept back."""
        with self._lock:
            return self._link_to(id)

    def _link_to(self, id: int) -> Link | None:
        queue = self._queues.get(id)
        link = self.links.get(id) if queue is None else queue.link
        return link if link is not None and link.ending is None else None

    def place(self, id: int, link: Link) -> Link:
        """`link` leads to worker `id`. The one to use is returned: where there is one already, that."""
        with self._lock:
            before = self._link_to(id)
            if before is not None:
                return before
            if id in self._queues:
                self._queues[id].link = link
            else:
                self.links[id] = link
            return link

    def forget(self, id: int, link: Link) -> None:
        """It has ended, or is about to."""
        with self._lock:
            if self.links.get(id) is link:
                del self.links[id]
            queue = self._queues.get(id)
            if queue is not None and queue.link is link:
                queue.link = None

    # -- calls that wait -------------------------------------------------------------------------------------------

    def queue(self, id: int, call: Waiting) -> Literal["first", "queued", "full"]:
        """`call` leaves when there is a link to worker `id`. The first that waits: a link is to be made.

        "full": too many bytes of calls wait for that link; this one does not.
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
        if call.due_s is not None:
            self._alarm.set(call.due_s + _SLACK_S)
        return "first" if is_first else "queued"

    def withdraw(self, id: int, call: Waiting) -> bool:
        """`call` does not wait any more. False: it did not; it is leaving, has left or has failed."""
        with self._lock:
            queue = self._queues.get(id)
            if queue is None or call not in queue.calls:
                return False
            queue.calls.remove(call)
            queue.num_bytes -= call.num_bytes
            return True

    def is_awaited(self, id: int) -> bool:
        """Whether the link to worker `id` is kept back, or to be made, for calls that wait."""
        return id in self._queues

    def let_out(self, id: int, link: Link) -> Link:
        """What waits for `link` leaves. One thread at a time for each worker."""
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
                if link.ending is not None:  # they wait for the next
                    return link
                call = queue.calls.popleft()
                queue.num_leaving += 1
            call.send(link)
            with self._lock:
                queue.num_leaving -= 1

    def give_up(self, id: int, error: FanwiseError, *, unless_linked: bool = False) -> None:
        """What waits for a link to worker `id` fails. `unless_linked`: not if there is one meanwhile."""
        with self._lock:
            if unless_linked and self._link_to(id) is not None:
                return
            queue = self._queues.pop(id, None)
        for call in queue.calls if queue is not None else ():
            call.fail(error)

    def _expire(self) -> None:
        now_s = self._hub.clock.now_s()
        late: list[Waiting] = []
        due_s: list[float] = []
        with self._lock:
            for queue in self._queues.values():
                expired = [call for call in queue.calls if call.due_s is not None and call.due_s <= now_s]
                late += expired
                queue.num_bytes -= sum(call.num_bytes for call in expired)
                queue.calls = deque(call for call in queue.calls if call.due_s is None or call.due_s > now_s)
                due_s += (call.due_s for call in queue.calls if call.due_s is not None)
        for call in late:
            call.fail(DeadlineExceeded("the call still waited for its link when its time ran out."))
        if due_s:
            self._alarm.set(min(due_s) + _SLACK_S)

    def close(self, error: Callable[[], FanwiseError], *, for_good: bool = True) -> None:
        """All that waits fails, each with an `error()`. `for_good`: and whatever comes later."""
        with self._lock:
            self._closed = self._closed or for_good
            queues, self._queues = list(self._queues.values()), {}
        self._alarm.cancel()
        for queue in queues:
            for call in queue.calls:
                call.fail(error())

"""Jobs that wait for a lease: one queue for the user's jobs, and one for the jobs of each job that submits some.

First come, first served, within each queue; one that cannot go on does not hold up the others. Decides nothing: the
engine looks at the heads.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Backlog(Generic[Item]):
    """Queues by parent (None: the user). Empty ones are forgotten.

    >>> backlog = Backlog[str]()
    >>> backlog.append(None, "a"), backlog.append(7, "b"), backlog.append(None, "c")
    (None, None, None)
    >>> list(backlog.heads()), len(backlog)
    ([(None, 'a'), (7, 'b')], 3)
    """

    def __init__(self) -> None:
        self._queues: dict[int | None, deque[Item]] = {}

    def append(self, parent: int | None, item: Item) -> None:
        """The last of its queue."""
        self._queues.setdefault(parent, deque()).append(item)

    def put_back(self, parent: int | None, item: Item) -> None:
        """The first of its queue: it had been taken, and could not begin."""
        self._queues.setdefault(parent, deque()).appendleft(item)

    def heads(self) -> Iterator[tuple[int | None, Item]]:
        """The first of each queue."""
        return iter([(parent, queue[0]) for parent, queue in self._queues.items()])

    def head(self, parent: int | None) -> Item | None:
        """The first of one queue."""
        queue = self._queues.get(parent)
        return queue[0] if queue else None

    def remove(self, parent: int | None, item: Item) -> bool:
        """Whether it was there. The head goes at once, others after a search."""
        queue = self._queues.get(parent)
        if queue is None or item not in queue:
            return False
        if queue[0] is item:
            queue.popleft()
        else:
            queue.remove(item)
        if not queue:
            del self._queues[parent]
        return True

    def clear(self) -> None:
        """Forget all."""
        self._queues.clear()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

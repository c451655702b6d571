"""How far the producer of a stream may be ahead of its reader, and what of a stream is where. A quiet file.

    producer: Giving                              reader: Taking
      may_go_on() -- item, cost ----------------->  arrived(item, cost)
                                                    next() -> the item     told of at half a window
      taken(items, bytes) <-----------------------  Taken(items, bytes)
      cancelled()         <-----------------------  close()                what comes now is nobody's
      the call's answer   ----------------------->  ended(error or None)   after the items before it

Positions count from the beginning of the stream, so a message about them that is late or comes twice does no harm. The
producer goes on while fewer items are outstanding than the window has, and fewer bytes: so it is ahead by the window
and at most one item, however large that is. What was taken is told once half of the window was, so that neither waits
for the other at each item, and messages are few.

Items and errors are opaque. All orders of messages are those of one link: nothing is lost while that holds, and when it
ends the call fails, which is the end of the stream.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Window(NamedTuple):
    """So many items, and so many bytes of them, may be outstanding."""

    num_items: int
    num_bytes: int


class Taken(NamedTuple):
    """To be told: so much was taken since the stream began."""

    num_items: int
    num_bytes: int


_NOTHING = Taken(0, 0)


class Over(NamedTuple):
    """No item comes any more. `error`: why; None: that was all, or nobody wants more."""

    error: Exception | None


class Next(NamedTuple, Generic[Item]):
    """The next item, and what to tell the producer of it."""

    item: Item
    tell: Taken | None


@dataclass(slots=True)
class Giving:
    """What the producer's side knows of one stream."""

    window: Window
    given: Taken = _NOTHING
    known: Taken = _NOTHING
    is_cancelled: bool = False

    def may_go_on(self) -> bool:
        """Whether there is room for an item, which nobody knows yet."""
        return (
            self.given.num_items - self.known.num_items < self.window.num_items
            and self.given.num_bytes - self.known.num_bytes < self.window.num_bytes
        )

    def gave(self, cost: int) -> None:
        """An item is about to leave."""
        self.given = Taken(self.given.num_items + 1, self.given.num_bytes + cost)

    def taken(self, num_items: int, num_bytes: int) -> None:
        """So much was taken. ValueError: it cannot be true."""
        if num_items > self.given.num_items or num_bytes > self.given.num_bytes:
            raise ValueError(f"{num_items} items of {num_bytes} bytes, when {self.given} were given")
        self.known = Taken(max(num_items, self.known.num_items), max(num_bytes, self.known.num_bytes))

    def cancelled(self) -> None:
        """Nobody wants the rest."""
        self.is_cancelled = True


@dataclass(slots=True)
class Taking(Generic[Item]):
    """What the reader's side knows of one stream."""

    window: Window
    came: Taken = _NOTHING
    taken: Taken = _NOTHING
    told: Taken = _NOTHING
    end: Over | None = None
    is_closed: bool = False
    _here: deque[tuple[Item, int]] = field(default_factory=deque)

    def arrived(self, item: Item, cost: int) -> bool:
        """An item came. False: nobody wants it. ValueError: the producer has not kept to the window."""
        if (
            self.came.num_items - self.told.num_items >= self.window.num_items
            or self.came.num_bytes - self.told.num_bytes >= self.window.num_bytes
        ):
            raise ValueError(f"an item beyond the window of {self.window}")
        self.came = Taken(self.came.num_items + 1, self.came.num_bytes + cost)
        if self.is_closed:
            return False
        if self.end is not None:
            raise ValueError("an item after the end")
        self._here.append((item, cost))
        return True

    def ended(self, error: Exception | None) -> None:
        """The call was answered, or has failed: no item comes any more. The first counts."""
        if self.end is None:
            self.end = Over(error)

    def next(self) -> Next[Item] | Over | None:
        """The next item, if one is here, or the end; None: one may come."""
        if not self._here:
            return self.end
        item, cost = self._here.popleft()
        self.taken = Taken(self.taken.num_items + 1, self.taken.num_bytes + cost)
        return Next(item, self._tell())

    def _tell(self) -> Taken | None:
        """What the producer must hear of by now."""
        if self.end is not None or not (
            2 * (self.taken.num_items - self.told.num_items) >= self.window.num_items
            or 2 * (self.taken.num_bytes - self.told.num_bytes) >= self.window.num_bytes
        ):
            return None
        self.told = self.taken
        return self.told

    def close(self, error: Exception | None = None) -> tuple[list[Item], bool]:
        """Nobody wants any more. `error`: what who goes on is told.

        Returns the items that are here and were not taken, and whether the producer must hear of it.
        """
        if self.is_closed:
            return [], False
        is_open = self.end is None
        self.is_closed, self.end = True, Over(error)
        left = [item for item, _ in self._here]
        self._here.clear()
        return left, is_open

    @property
    def num_here(self) -> int:
        """How many items wait to be taken."""
        return len(self._here)

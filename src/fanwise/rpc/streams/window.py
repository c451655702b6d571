"""Flow control of a stream. A pure state machine.

    ProducerWindow                                ConsumerWindow
      has_room() -- item, cost ----------------->  on_item(item, cost)
                                                   next() -> the item, and an acknowledgment per half window
      on_ack(items, bytes) <---------------------  Position(items, bytes)
      cancel()            <----------------------  close()              later items are discarded
      reply of the call   ---------------------->  on_end(error or None)   after the items before it

Positions count from the beginning of the stream, so late or repeated acknowledgments are harmless. The producer
continues while fewer items and fewer bytes than the window are unacknowledged, so it is ahead by at most the window and
one item of any size. The consumer acknowledges half a window at a time, which keeps messages few and the producer busy.

Items and errors are opaque. Messages keep the order of their link, and none is lost while the link lives; when the link
ends the call fails, which ends the stream.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Window(NamedTuple):
    """Maximum number of unacknowledged items, and of their bytes."""

    num_items: int
    num_bytes: int


class Position(NamedTuple):
    """Number of items, and of their bytes, since the stream began."""

    num_items: int
    num_bytes: int


_START = Position(0, 0)


class EndOfStream(NamedTuple):
    """The end of the items. `error` is None if the function returned or the consumer closed the stream."""

    error: Exception | None


class Next(NamedTuple, Generic[Item]):
    """The next item, and the acknowledgment to send."""

    item: Item
    ack: Position | None


@dataclass(slots=True)
class ProducerWindow:
    """The state of one stream on the producer."""

    window: Window
    sent: Position = _START
    acknowledged: Position = _START
    is_cancelled: bool = False

    def has_room(self) -> bool:
        """Return True if the next item, of any size, may be sent."""
        return (
            self.sent.num_items - self.acknowledged.num_items < self.window.num_items
            and self.sent.num_bytes - self.acknowledged.num_bytes < self.window.num_bytes
        )

    def on_sent(self, cost: int) -> None:
        """Count an item, just before it is sent."""
        self.sent = Position(self.sent.num_items + 1, self.sent.num_bytes + cost)

    def on_ack(self, num_items: int, num_bytes: int) -> None:
        """Handle an acknowledgment. Raises ValueError if it exceeds the sent items."""
        if num_items > self.sent.num_items or num_bytes > self.sent.num_bytes:
            raise ValueError(f"acknowledgment of {num_items} items with {num_bytes} bytes, but only sent {self.sent}")
        self.acknowledged = Position(
            max(num_items, self.acknowledged.num_items), max(num_bytes, self.acknowledged.num_bytes)
        )

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(slots=True)
class ConsumerWindow(Generic[Item]):
    """The state of one stream on the consumer."""

    window: Window
    received: Position = _START
    consumed: Position = _START
    acknowledged: Position = _START
    end: EndOfStream | None = None
    is_closed: bool = False
    _buffer: deque[tuple[Item, int]] = field(default_factory=deque)

    def on_item(self, item: Item, cost: int) -> bool:
        """Buffer an item. Return False if the stream is closed. Raises ValueError if the item exceeds the window."""
        if (
            self.received.num_items - self.acknowledged.num_items >= self.window.num_items
            or self.received.num_bytes - self.acknowledged.num_bytes >= self.window.num_bytes
        ):
            raise ValueError(f"an item beyond the window of {self.window}")
        self.received = Position(self.received.num_items + 1, self.received.num_bytes + cost)
        if self.is_closed:
            return False
        if self.end is not None:
            raise ValueError("an item after the end")
        self._buffer.append((item, cost))
        return True

    def on_end(self, error: Exception | None) -> None:
        """Handle the reply or failure of the call. Later ends are ignored."""
        if self.end is None:
            self.end = EndOfStream(error)

    def next(self) -> Next[Item] | EndOfStream | None:
        """Return the next buffered item or the end; None if another item may arrive."""
        if not self._buffer:
            return self.end
        item, cost = self._buffer.popleft()
        self.consumed = Position(self.consumed.num_items + 1, self.consumed.num_bytes + cost)
        return Next(item, self._next_ack())

    def _next_ack(self) -> Position | None:
        if self.end is not None or not (
            2 * (self.consumed.num_items - self.acknowledged.num_items) >= self.window.num_items
            or 2 * (self.consumed.num_bytes - self.acknowledged.num_bytes) >= self.window.num_bytes
        ):
            return None
        self.acknowledged = self.consumed
        return self.acknowledged

    def close(self, error: Exception | None = None) -> tuple[list[Item], bool]:
        """End the stream on this side. `error` is returned to further reads.

        Returns the unread items, and whether the producer must be notified.
        """
        if self.is_closed:
            return [], False
        is_open = self.end is None
        self.is_closed, self.end = True, EndOfStream(error)
        unread = [item for item, _ in self._buffer]
        self._buffer.clear()
        return unread, is_open

    @property
    def num_buffered(self) -> int:
        return len(self._buffer)

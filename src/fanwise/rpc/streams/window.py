"""Flow control of a stream: how far the producer may be ahead of the consumer. Pure.

    producer   has_room() --> add(cost), the item ----->  consumer   add(cost): a ValueError is a violation
               acknowledge(position) <------------------  half of the window was consumed

The producer continues while fewer items and fewer bytes than the limit are unacknowledged, so it is ahead by at most
the window and one item of any size. The consumer acknowledges half a window at a time, which keeps messages few and the
producer busy. Positions count from the beginning of the stream, so late or repeated acknowledgments are harmless.
"""

from typing import NamedTuple


class Amount(NamedTuple):
    """A number of items, and of their bytes."""

    num_items: int
    num_bytes: int


class Window:
    """The items of a stream that were sent and not acknowledged. Both sides keep one."""

    def __init__(self, limit: Amount) -> None:
        self.limit = limit
        self.sent = self.acknowledged = Amount(0, 0)

    def has_room(self) -> bool:
        """Return True if the next item, of any size, may be sent."""
        ahead = _difference(self.sent, self.acknowledged)
        return ahead.num_items < self.limit.num_items and ahead.num_bytes < self.limit.num_bytes

    def add(self, cost: int) -> None:
        """Count an item that is about to be sent, or was received. Raises ValueError if there is no room for it."""
        if not self.has_room():
            raise ValueError(f"an item beyond the window of {self.limit}")
        self.sent = Amount(self.sent.num_items + 1, self.sent.num_bytes + cost)

    def is_half_consumed(self, consumed: Amount) -> bool:
        """Return True if the consumer, which has consumed this much, should acknowledge it."""
        unacknowledged = _difference(consumed, self.acknowledged)
        return (
            2 * unacknowledged.num_items >= self.limit.num_items or 2 * unacknowledged.num_bytes >= self.limit.num_bytes
        )

    def acknowledge(self, position: Amount) -> None:
        """Handle or make an acknowledgment. Raises ValueError if it exceeds the sent items."""
        if position.num_items > self.sent.num_items or position.num_bytes > self.sent.num_bytes:
            raise ValueError(f"acknowledgment of {position}, but only sent {self.sent}")
        self.acknowledged = Amount(*map(max, position, self.acknowledged))


def _difference(position: Amount, start: Amount) -> Amount:
    return Amount(position.num_items - start.num_items, position.num_bytes - start.num_bytes)

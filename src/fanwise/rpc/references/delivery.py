"""Numbered messages between two reference tables: each is handled once and in order, on a network that does neither.

    post -> Outbox --fresh--> Batch ~~~ may be lost, doubled, late ~~~> Inbox.take -> in order, once
                <--answered--  up to which number the other side has all

Knows numbers and messages, and neither what they mean nor what time it is.
"""

from collections import deque
from dataclasses import dataclass, field

from .orders import TableMessage

# So many messages go into one batch at most; the rest follows when these are answered or with the next batch.
MOST_IN_A_BATCH = 1000


@dataclass(slots=True)
class Outbox:
    """What one peer has not answered yet. `next_number`: of the message that is posted next."""

    next_number: int = 1
    fresh_number: int = 1
    old_number: int = 1
    unanswered: deque[TableMessage] = field(default_factory=deque)

    @property
    def first_number(self) -> int:
        """The number of the oldest message that is not answered."""
        return self.next_number - len(self.unanswered)

    def post(self, message: TableMessage) -> None:
        self.unanswered.append(message)
        self.next_number += 1

    def fresh(self) -> tuple[int, tuple[TableMessage, ...]]:
        """The number of the first, and all, that were posted since the last call. They count as sent."""
        first, self.fresh_number = max(self.fresh_number, self.first_number), self.next_number
        size = len(self.unanswered)
        return first, tuple(self.unanswered[index] for index in range(size - (self.next_number - first), size))

    def overdue(self) -> tuple[int, tuple[TableMessage, ...]] | None:
        """The oldest again, when they were unanswered at the last call too."""
        is_old = self.first_number < self.old_number
        self.old_number = self.next_number
        if not is_old:
            return None
        return self.first()

    def first(self) -> tuple[int, tuple[TableMessage, ...]]:
        """The oldest that are not answered."""
        some = min(len(self.unanswered), MOST_IN_A_BATCH)
        return self.first_number, tuple(self.unanswered[index] for index in range(some))

    def answered(self, up_to: int) -> list[TableMessage]:
        """The other side has all messages up to this number. Those that are settled by this, in order."""
        number = max(0, min(up_to, self.next_number - 1) - self.first_number + 1)
        return [self.unanswered.popleft() for _ in range(number)]


@dataclass(slots=True)
class Inbox:
    """What came from one peer. `ahead`: messages that wait for an earlier one."""

    up_to: int = 0
    ahead: dict[int, TableMessage] = field(default_factory=dict)

    def take(self, first: int, messages: tuple[TableMessage, ...]) -> list[TableMessage]:
        """Those whose turn has come, in order. What was here before is left out."""
        for number, message in enumerate(messages, first):
            if number > self.up_to:
                self.ahead[number] = message
        turn = []
        while (ready := self.ahead.pop(self.up_to + 1, None)) is not None:
            self.up_to += 1
            turn.append(ready)
        return turn

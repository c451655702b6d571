"""Tier 1: a stream in any order of items, credit, ends, cancelling and the loss of its link."""

from collections import deque
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fanwise.rpc.streams.window import ConsumerWindow, EndOfStream, Next, Position, ProducerWindow, Window

Item = tuple[int, int]  # its number and what it costs
# Ends are rare, or no stream would get anywhere.
RARELY = st.integers(0, 9).map(lambda number: number == 9)


class OneStream(RuleBasedStateMachine):
    """Both sides of a stream, and what is on its way between them, in order each way.

    The model: the items that were made, in a list, and how many of them were taken.
    """

    producer: ProducerWindow
    consumer: ConsumerWindow[Item]

    @initialize(window=st.builds(Window, st.integers(1, 6), st.integers(1, 20)))
    def begin(self, window: Window) -> None:
        self.window = window
        self.producer, self.consumer = ProducerWindow(window), ConsumerWindow(window)
        self.there: deque[Any] = deque()  # on its way to the reader: items, then how it ends
        self.back: deque[Any] = deque()  # on its way to the producer
        self.made: list[Item] = []
        self.got: list[Item] = []
        self.came = 0
        self.error: Exception | None = None
        self.is_answered = self.is_closed = self.is_lost = False
        self.ended_at: int | None = None  # how many items came before the end

    # -- the producer

    @precondition(lambda self: not self.is_answered and self.producer.has_room() and not self.producer.is_cancelled)
    @rule(cost=st.integers(1, 40))
    def yield_one(self, cost: int) -> None:
        item = (len(self.made), cost)
        self.made.append(item)
        self.producer.on_sent(cost)
        self.there.append(item)

    @precondition(lambda self: not self.is_answered)
    @rule(error=st.sampled_from([None, KeyError("raised there")]), now=RARELY)
    def end(self, error: Exception | None, now: bool) -> None:
        if not now:
            return
        self.is_answered = True
        self.there.append(EndOfStream(error))

    @precondition(lambda self: self.back)
    @rule()
    def hear(self) -> None:
        said = self.back.popleft()
        if said == "cancel":
            self.producer.cancel()
        else:
            self.producer.on_ack(*said)

    @precondition(lambda self: self.made and not self.is_answered)
    @rule(late=st.integers(0, 10))
    def hear_of_something_old(self, late: int) -> None:
        acknowledged = self.producer.acknowledged
        self.producer.on_ack(max(0, acknowledged.num_items - late), max(0, acknowledged.num_bytes - late))
        assert self.producer.acknowledged == acknowledged

    # -- the reader

    @precondition(lambda self: self.there and not self.is_lost)
    @rule()
    def arrive(self) -> None:
        what = self.there.popleft()
        if isinstance(what, EndOfStream):
            self.consumer.on_end(what.error)
            self.note_end(what.error)
        else:
            assert self.consumer.on_item(what, what[1]) == (not self.is_closed)
            self.came += 1

    @rule()
    def take(self) -> None:
        found = self.consumer.next()
        if self.is_closed or (len(self.got) == self.came and self.ended_at is not None):
            assert found == EndOfStream(self.error)
        elif len(self.got) == self.came:
            assert found is None
        else:
            assert isinstance(found, Next) and found.item == self.made[len(self.got)], "in order, each once"
            self.got.append(found.item)
            if found.ack is not None:
                assert found.ack == Position(len(self.got), sum(cost for _, cost in self.got))
                self.back.append(found.ack)

    @rule(error=st.sampled_from([None, ValueError("closed")]), now=RARELY)
    def close(self, error: Exception | None, now: bool) -> None:
        if not (now or self.is_closed):
            return
        left, must_hear = self.consumer.close(error)
        if self.is_closed:
            assert (left, must_hear) == ([], False)
            return
        assert left == self.made[len(self.got) : self.came]
        assert must_hear == (self.ended_at is None)
        if must_hear:
            self.back.append("cancel")
        self.is_closed, self.error, self.ended_at = True, error, self.came

    @precondition(lambda self: not self.is_lost)
    @rule(now=RARELY)
    def lose(self, now: bool) -> None:
        """The link ends: what is on its way is lost, and the call fails."""
        if not now:
            return
        self.is_lost = True
        self.there.clear()
        self.back.clear()
        lost = ConnectionError("lost")
        self.consumer.on_end(lost)
        self.note_end(lost)

    def note_end(self, error: Exception | None) -> None:
        if self.ended_at is None:
            self.ended_at, self.error = self.came, error

    # -- always

    @invariant()
    def it_is_ahead_by_the_window_and_one_item(self) -> None:
        ahead = self.made[len(self.got) :]
        assert len(ahead) <= self.window.num_items
        assert sum(cost for _, cost in ahead[:-1]) < self.window.num_bytes
        assert self.consumer.num_buffered == (0 if self.is_closed else self.came - len(self.got))

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """When all that came was taken and nothing is on its way, the producer may go on."""
        is_quiet = not self.there and not self.back and len(self.got) == len(self.made)
        if is_quiet and not (self.is_closed or self.is_lost or self.is_answered):
            assert self.producer.has_room()

    @invariant()
    def who_has_closed_is_heard(self) -> None:
        if self.is_closed and not self.back and not self.is_lost and not self.is_answered:
            assert self.producer.is_cancelled


TestOneStream = OneStream.TestCase
TestOneStream.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class Impatient(ConsumerWindow[Item]):
    """Acknowledges received items instead of consumed ones, so the window bounds nothing."""

    def _next_ack(self) -> Position | None:
        self.acknowledged = self.received
        return self.received


class Silent(ConsumerWindow[Item]):
    """Acknowledges a whole window of items only, so a producer ahead by bytes waits forever."""

    def _next_ack(self) -> Position | None:
        if self.end is not None or self.consumed.num_items - self.acknowledged.num_items < self.window.num_items:
            return None
        self.acknowledged = self.consumed
        return self.acknowledged


class Hasty(ConsumerWindow[Item]):
    """Raises an error before the items received before it."""

    def next(self) -> Next[Item] | EndOfStream | None:
        return self.end if self.end is not None and self.end.error is not None else ConsumerWindow.next(self)


class Greedy(ProducerWindow):
    """Ignores the bytes."""

    def has_room(self) -> bool:
        return self.sent.num_items - self.acknowledged.num_items < self.window.num_items


@pytest.mark.parametrize("broken", [Impatient, Silent, Hasty, Greedy])
def test_a_broken_one_is_caught(broken: type, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ProducerWindow" if issubclass(broken, ProducerWindow) else "ConsumerWindow"
    monkeypatch.setitem(globals(), name, broken)
    few = settings(
        max_examples=500,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
    )
    with pytest.raises(BaseException) as caught:  # a group of them, where they are several
        run_state_machine_as_test(OneStream, settings=few)
    assert not isinstance(caught.value, KeyboardInterrupt | SystemExit)


def test_what_cannot_be_is_refused() -> None:
    producer = ProducerWindow(Window(2, 100))
    producer.on_sent(10)
    for num_items, num_bytes in ((2, 10), (1, 11)):
        with pytest.raises(ValueError, match="sent Position"):
            producer.on_ack(num_items, num_bytes)
    consumer: ConsumerWindow[str] = ConsumerWindow(Window(2, 100))
    consumer.on_item("a", 1)
    consumer.on_item("b", 1)
    with pytest.raises(ValueError, match="beyond the window"):
        consumer.on_item("c", 1)
    by_bytes: ConsumerWindow[str] = ConsumerWindow(Window(10, 100))
    by_bytes.on_item("a", 100)
    with pytest.raises(ValueError, match="beyond the window"):
        by_bytes.on_item("b", 1)
    ended: ConsumerWindow[str] = ConsumerWindow(Window(2, 100))
    ended.on_end(None)
    with pytest.raises(ValueError, match="after the end"):
        ended.on_item("a", 1)

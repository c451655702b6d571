"""Both sides of a stream, with items, acknowledgments, cancellation and loss of the link in any order."""

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

Item = tuple[int, int]  # number and cost
# Ends are rare, so that streams become long.
RARELY = st.integers(0, 9).map(lambda number: number == 9)


class OneStream(RuleBasedStateMachine):
    """Both sides of a stream, and the messages on their way, in order in each direction.

    The model is the list of produced items, and how many of them were consumed.
    """

    producer: ProducerWindow
    consumer: ConsumerWindow[Item]

    @initialize(window=st.builds(Window, st.integers(1, 6), st.integers(1, 20)))
    def begin(self, window: Window) -> None:
        self.window = window
        self.producer, self.consumer = ProducerWindow(window), ConsumerWindow(window)
        self.to_consumer: deque[Any] = deque()  # items, then the end
        self.to_producer: deque[Any] = deque()  # acknowledgments and "cancel"
        self.produced: list[Item] = []
        self.consumed: list[Item] = []
        self.num_arrived = 0
        self.error: Exception | None = None
        self.is_answered = self.is_closed = self.is_lost = False
        self.ended_at: int | None = None  # number of items before the end

    # -- the producer

    @precondition(lambda self: not self.is_answered and self.producer.has_room() and not self.producer.is_cancelled)
    @rule(cost=st.integers(1, 40))
    def produce(self, cost: int) -> None:
        item = (len(self.produced), cost)
        self.produced.append(item)
        self.producer.on_sent(cost)
        self.to_consumer.append(item)

    @precondition(lambda self: not self.is_answered)
    @rule(error=st.sampled_from([None, KeyError("of the producer")]), now=RARELY)
    def end(self, error: Exception | None, now: bool) -> None:
        if not now:
            return
        self.is_answered = True
        self.to_consumer.append(EndOfStream(error))

    @precondition(lambda self: self.to_producer)
    @rule()
    def receive_acknowledgment(self) -> None:
        message = self.to_producer.popleft()
        if message == "cancel":
            self.producer.cancel()
        else:
            self.producer.on_ack(*message)

    @precondition(lambda self: self.produced and not self.is_answered)
    @rule(late=st.integers(0, 10))
    def receive_old_acknowledgment(self, late: int) -> None:
        acknowledged = self.producer.acknowledged
        self.producer.on_ack(max(0, acknowledged.num_items - late), max(0, acknowledged.num_bytes - late))
        assert self.producer.acknowledged == acknowledged

    # -- the consumer

    @precondition(lambda self: self.to_consumer and not self.is_lost)
    @rule()
    def receive_item(self) -> None:
        message = self.to_consumer.popleft()
        if isinstance(message, EndOfStream):
            self.consumer.on_end(message.error)
            self.record_end(message.error)
        else:
            assert self.consumer.on_item(message, message[1]) == (not self.is_closed)
            self.num_arrived += 1

    @rule()
    def consume(self) -> None:
        result = self.consumer.next()
        if self.is_closed or (len(self.consumed) == self.num_arrived and self.ended_at is not None):
            assert result == EndOfStream(self.error)
        elif len(self.consumed) == self.num_arrived:
            assert result is None
        else:
            assert isinstance(result, Next) and result.item == self.produced[len(self.consumed)], "in order, each once"
            self.consumed.append(result.item)
            if result.ack is not None:
                assert result.ack == Position(len(self.consumed), sum(cost for _, cost in self.consumed))
                self.to_producer.append(result.ack)

    @rule(error=st.sampled_from([None, ValueError("closed")]), now=RARELY)
    def close(self, error: Exception | None, now: bool) -> None:
        if not (now or self.is_closed):
            return
        unread, must_notify = self.consumer.close(error)
        if self.is_closed:
            assert (unread, must_notify) == ([], False)
            return
        assert unread == self.produced[len(self.consumed) : self.num_arrived]
        assert must_notify == (self.ended_at is None)
        if must_notify:
            self.to_producer.append("cancel")
        self.is_closed, self.error, self.ended_at = True, error, self.num_arrived

    @precondition(lambda self: not self.is_lost)
    @rule(now=RARELY)
    def lose(self, now: bool) -> None:
        """The link ends: messages on their way are lost, and the call fails."""
        if not now:
            return
        self.is_lost = True
        self.to_consumer.clear()
        self.to_producer.clear()
        lost = ConnectionError("lost")
        self.consumer.on_end(lost)
        self.record_end(lost)

    def record_end(self, error: Exception | None) -> None:
        if self.ended_at is None:
            self.ended_at, self.error = self.num_arrived, error

    # -- invariants

    @invariant()
    def the_producer_is_ahead_by_at_most_the_window_and_one_item(self) -> None:
        ahead = self.produced[len(self.consumed) :]
        assert len(ahead) <= self.window.num_items
        assert sum(cost for _, cost in ahead[:-1]) < self.window.num_bytes
        assert self.consumer.num_buffered == (0 if self.is_closed else self.num_arrived - len(self.consumed))

    @invariant()
    def the_producer_never_waits_for_ever(self) -> None:
        """When everything was consumed and no message is on its way, the producer has room."""
        is_quiet = not self.to_consumer and not self.to_producer and len(self.consumed) == len(self.produced)
        if is_quiet and not (self.is_closed or self.is_lost or self.is_answered):
            assert self.producer.has_room()

    @invariant()
    def closing_cancels_the_producer(self) -> None:
        if self.is_closed and not self.to_producer and not self.is_lost and not self.is_answered:
            assert self.producer.is_cancelled


TestOneStream = OneStream.TestCase
TestOneStream.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class AcknowledgesTooEarly(ConsumerWindow[Item]):
    """Acknowledges received items instead of consumed ones, so the window bounds nothing."""

    def _next_ack(self) -> Position | None:
        self.acknowledged = self.received
        return self.received


class AcknowledgesTooLate(ConsumerWindow[Item]):
    """Acknowledges a whole window of items only, so a producer ahead by bytes waits forever."""

    def _next_ack(self) -> Position | None:
        if self.end is not None or self.consumed.num_items - self.acknowledged.num_items < self.window.num_items:
            return None
        self.acknowledged = self.consumed
        return self.acknowledged


class RaisesTooEarly(ConsumerWindow[Item]):
    """Raises an error before the items received before it."""

    def next(self) -> Next[Item] | EndOfStream | None:
        return self.end if self.end is not None and self.end.error is not None else ConsumerWindow.next(self)


class IgnoresBytes(ProducerWindow):
    """Ignores the limit of bytes."""

    def has_room(self) -> bool:
        return self.sent.num_items - self.acknowledged.num_items < self.window.num_items


@pytest.mark.parametrize("broken", [AcknowledgesTooEarly, AcknowledgesTooLate, RaisesTooEarly, IgnoresBytes])
def test_the_model_detects_broken_windows(broken: type, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(BaseException) as caught:  # an exception group if there are several
        run_state_machine_as_test(OneStream, settings=few)
    assert not isinstance(caught.value, KeyboardInterrupt | SystemExit)


def test_impossible_messages_are_refused() -> None:
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

"""Both sides of a stream, with items, acknowledgments, cancellation and loss of the link in any order."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

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

from fanwise.rpc.streams.stream import EndOfStream, StreamReader
from fanwise.rpc.streams.window import Amount, Window
from fanwise.rpc.worker_info import WorkerInfo

Item = tuple[int, int]  # number and cost
# Ends are rare, so that streams become long.
RARELY = st.integers(0, 9).map(lambda number: number == 9)


class FakeAgent:
    """Records discarded items."""

    is_closed = False

    def __init__(self) -> None:
        self.discarded: list[Any] = []

    def discard(self, item: Any, link: object) -> None:
        self.discarded.append(item)


class FakeReply:
    """The reply of the call on the consumer: records acknowledgments and "cancel" for the producer."""

    link = None

    def __init__(self) -> None:
        self.to_producer: deque[Any] = deque()
        self.end: Callable[[Any], None]
        self.error: Exception | None = None

    def add_done_callback(self, callback: Any) -> None:
        self.end = callback

    def result(self) -> None:
        if self.error is not None:
            raise self.error

    def take(self, num_items: int, num_bytes: int) -> None:
        self.to_producer.append(Amount(num_items, num_bytes))

    def cancel(self) -> None:
        self.to_producer.append("cancel")

    def complete(self, error: Exception | None) -> None:
        self.error = error
        self.end(self)


class OneStream(RuleBasedStateMachine):
    """Both sides of a stream, and the messages on their way, in order in each direction.

    The model is the list of produced items, and how many of them were consumed.
    """

    producer: Window
    consumer: StreamReader

    @initialize(limit=st.builds(Amount, st.integers(1, 6), st.integers(1, 20)))
    def begin(self, limit: Amount) -> None:
        self.limit = limit
        self.agent, self.reply = FakeAgent(), FakeReply()
        self.producer = ProducerWindow(limit)
        self.consumer = ConsumerReader(cast(Any, self.agent), WorkerInfo("w1", 1), limit, is_of_call=False)
        self.consumer.start(cast(Any, self.reply))
        self.to_producer = self.reply.to_producer
        self.to_consumer: deque[Any] = deque()  # items, then the end
        self.produced: list[Item] = []
        self.consumed: list[Item] = []
        self.num_arrived = 0
        self.error: Exception | None = None
        self.is_answered = self.is_closed = self.is_lost = self.is_cancelled = False
        self.ended_at: int | None = None  # number of items before the end

    # -- the producer

    @precondition(lambda self: not self.is_answered and self.producer.has_room() and not self.is_cancelled)
    @rule(cost=st.integers(1, 40))
    def produce(self, cost: int) -> None:
        item = (len(self.produced), cost)
        self.produced.append(item)
        self.producer.add(cost)
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
            self.is_cancelled = True
        else:
            self.producer.acknowledge(message)

    @precondition(lambda self: self.produced and not self.is_answered)
    @rule(late=st.integers(0, 10))
    def receive_old_acknowledgment(self, late: int) -> None:
        acknowledged = self.producer.acknowledged
        self.producer.acknowledge(Amount(*(max(0, number - late) for number in acknowledged)))
        assert self.producer.acknowledged == acknowledged

    # -- the consumer

    @precondition(lambda self: self.to_consumer and not self.is_lost)
    @rule()
    def receive_item(self) -> None:
        message = self.to_consumer.popleft()
        if isinstance(message, EndOfStream):
            self.reply.complete(message.error)
            self.record_end(message.error)
        else:
            self.consumer.on_item(cast(Any, message), message[1])
            assert (message in self.agent.discarded) == self.is_closed
            self.num_arrived += 1

    @rule()
    def consume(self) -> None:
        result = self.consumer.next()
        if self.is_closed or (len(self.consumed) == self.num_arrived and self.ended_at is not None):
            assert result == EndOfStream(self.error)
        elif len(self.consumed) == self.num_arrived:
            assert result is None
        else:
            assert cast(Any, result) == self.produced[len(self.consumed)], "in order, each once"
            self.consumed.append(cast(Any, result))
            if self.to_producer and self.to_producer[-1] != "cancel":
                assert self.to_producer[-1] <= Amount(len(self.consumed), sum(cost for _, cost in self.consumed))

    @rule(error=st.sampled_from([None, ValueError("closed")]), now=RARELY)
    def close(self, error: Exception | None, now: bool) -> None:
        if not (now or self.is_closed):
            return
        num_before = len(self.to_producer), len(self.agent.discarded)
        self.consumer.close(error)
        if self.is_closed:
            assert num_before == (len(self.to_producer), len(self.agent.discarded))
            return
        assert self.agent.discarded == self.produced[len(self.consumed) : self.num_arrived]
        assert len(self.to_producer) - num_before[0] == (self.ended_at is None)
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
        self.reply.complete(lost)
        self.record_end(lost)

    def record_end(self, error: Exception | None) -> None:
        if self.ended_at is None:
            self.ended_at, self.error = self.num_arrived, error

    # -- invariants

    @invariant()
    def the_producer_is_ahead_by_at_most_the_window_and_one_item(self) -> None:
        ahead = self.produced[len(self.consumed) :]
        assert len(ahead) <= self.limit.num_items
        assert sum(cost for _, cost in ahead[:-1]) < self.limit.num_bytes
        assert len(self.consumer._buffer) == (0 if self.is_closed else self.num_arrived - len(self.consumed))

    @invariant()
    def the_producer_never_waits_for_ever(self) -> None:
        """When everything was consumed and no message is on its way, the producer has room."""
        is_quiet = not self.to_consumer and not self.to_producer and len(self.consumed) == len(self.produced)
        if is_quiet and not (self.is_closed or self.is_lost or self.is_answered):
            assert self.producer.has_room()

    @invariant()
    def closing_cancels_the_producer(self) -> None:
        if self.is_closed and not self.to_producer and not self.is_lost and not self.is_answered:
            assert self.is_cancelled


class ProducerWindow(Window):
    """Replaced by the broken ones below."""


class ConsumerReader(StreamReader):
    """Replaced by the broken ones below."""


TestOneStream = OneStream.TestCase
TestOneStream.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class AcknowledgesTooEarly(StreamReader):
    """Acknowledges received items instead of consumed ones, so the window bounds nothing."""

    def next(self) -> Any:
        result = super().next()
        self._window.acknowledge(self._window.sent)
        self._reply.take(*self._window.sent)  # type: ignore[union-attr]
        return result


class NeverAcknowledges(StreamReader):
    """A producer that has filled the window waits forever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._window.is_half_consumed = lambda consumed: False  # type: ignore[method-assign]


class RaisesTooEarly(StreamReader):
    """Raises an error before the items received before it."""

    def next(self) -> Any:
        return self._end if self._end is not None and self._end.error is not None else super().next()


class IgnoresBytes(Window):
    """Ignores the limit of bytes."""

    def has_room(self) -> bool:
        return self.sent.num_items - self.acknowledged.num_items < self.limit.num_items


@pytest.mark.parametrize("broken", [AcknowledgesTooEarly, NeverAcknowledges, RaisesTooEarly, IgnoresBytes])
def test_the_model_detects_broken_streams(broken: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ProducerWindow" if issubclass(broken, Window) else "ConsumerReader", broken)
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
    window = Window(Amount(2, 100))
    window.add(10)
    for position in (Amount(2, 10), Amount(1, 11)):
        with pytest.raises(ValueError, match="only sent Amount"):
            window.acknowledge(position)
    window.add(1)
    with pytest.raises(ValueError, match="beyond the window"):
        window.add(1)
    by_bytes = Window(Amount(10, 100))
    by_bytes.add(100)
    with pytest.raises(ValueError, match="beyond the window"):
        by_bytes.add(1)
    reader = StreamReader(cast(Any, FakeAgent()), WorkerInfo("w1", 1), Amount(2, 100), is_of_call=False)
    reply = FakeReply()
    reader.start(cast(Any, reply))
    reply.complete(None)
    with pytest.raises(ValueError, match="after the end"):
        reader.on_item(cast(Any, "a"), 1)

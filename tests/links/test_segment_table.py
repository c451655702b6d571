"""The shared segments of a link: the sender's table against a model, and the checks of the receiver."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanwise.base.errors import WireError
from fanwise.links.shared_memory.segment_table import ReceivedSegments, SegmentTable, SharedBuffer, segment_bytes_for

MIB = 1 << 20
# The first two need segments of the same size.
SIZES = (1000 << 10, 1 << 20, (1 << 20) + 1, 64 << 20)


@given(st.integers(1, 1 << 40))
def test_segment_wastes_at_most_a_quarter_or_a_page(size_bytes: int) -> None:
    segment_bytes = segment_bytes_for(size_bytes)
    page_bytes = 4096 if size_bytes <= 2 * MIB else 2 * MIB
    assert size_bytes <= segment_bytes < max(1.25 * size_bytes, size_bytes + page_bytes)
    assert segment_bytes % page_bytes == 0 and segment_bytes_for(segment_bytes) == segment_bytes


class Machine(RuleBasedStateMachine):
    """The model is the size of each segment and the time of its return, or None while it is in use."""

    @initialize()
    def begin(self) -> None:
        self.table = SegmentTable()
        self.model: dict[int, tuple[int, float | None]] = {}
        self.number = self.unknown = 0
        self.now_s = 0.0

    @rule(size_bytes=st.sampled_from(SIZES))
    def use(self, size_bytes: int) -> None:
        needed = segment_bytes_for(size_bytes)
        free = [(free_s, n) for n, (size, free_s) in self.model.items() if size == needed and free_s is not None]
        segment = self.table.take(size_bytes)
        if free:
            assert segment == max(free)[1], "the most recently used one"
        else:
            assert segment is None
            self.number += 1
            segment = self.table.add(needed)
            assert segment == self.number
        self.model[segment] = needed, None

    @rule(which=st.integers(0, 8), reusable=st.booleans())
    def give_back(self, which: int, reusable: bool) -> None:
        self.now_s += 1.0
        size_bytes, free_s = self.model.get(which, (0, 0.0))
        dropped = self.table.give_back(which, self.now_s, reusable=reusable)
        if free_s is not None:
            self.unknown += 1
            assert dropped is None
        elif reusable:
            assert dropped is None
            self.model[which] = size_bytes, self.now_s
        else:
            assert dropped == size_bytes
            del self.model[which]

    @rule(age_s=st.integers(0, 5))
    def remove_idle(self, age_s: int) -> None:
        idle = {n for n, (_, free_s) in self.model.items() if free_s is not None and free_s <= self.now_s - age_s}
        assert set(self.table.remove_idle(self.now_s - age_s)) == idle
        for number in idle:
            del self.model[number]

    @invariant()
    def counts_are_the_models(self) -> None:
        if hasattr(self, "table"):
            in_use = sum(free_s is None for _, free_s in self.model.values())
            assert self.table.num_in_use == in_use and self.table.has_free == (in_use < len(self.model))
            assert self.table.unknown_returns == self.unknown


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSegmentTable = Machine.TestCase


# -- checks of the receiver --------------------------------------------------------------------------------------------


@pytest.fixture
def received() -> ReceivedSegments:
    received = ReceivedSegments(limit_bytes=MIB)
    received.add(7, 1 << 16)
    return received


@pytest.mark.parametrize("buffer", [SharedBuffer(8, 4096), SharedBuffer(7, (1 << 16) + 1), SharedBuffer(7, 0)])
def test_buffer_that_does_not_fit_its_segment_is_refused(received: ReceivedSegments, buffer: SharedBuffer) -> None:
    with pytest.raises(WireError, match=f"was announced in segment {buffer.segment}"):
        received.take(buffer)
    assert received == ReceivedSegments(MIB, {7: 1 << 16})


def test_segment_holds_one_buffer_at_a_time(received: ReceivedSegments) -> None:
    received.take(SharedBuffer(7, 5000))
    with pytest.raises(WireError, match="65536 bytes and is in use"):
        received.take(SharedBuffer(7, 1))
    with pytest.raises(WireError, match="7 was dropped that is unknown or in use"):
        received.drop(7)
    assert received.done(7) == 5000
    received.take(SharedBuffer(7, 1))


def test_segments_of_a_peer_have_a_limit_and_unique_numbers(received: ReceivedSegments) -> None:
    for number, size_bytes in ((8, MIB - (1 << 16) + 1), (7, 1), (9, 0)):
        with pytest.raises(WireError, match=r"announced"):
            received.add(number, size_bytes)
    received.drop(7)
    received.add(7, MIB)
    with pytest.raises(WireError, match="8 was dropped that is unknown"):
        received.drop(8)

"""Who holds which part of which segment: the table against a map of pages, and broken tables that it must catch."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fanwise.base.errors import WireError
from fanwise.links.shared_memory.segment_table import PAGE_BYTES, Part, Range, Received, SegmentTable, rounded

SEGMENT_BYTES = 2 << 20
LOST = -1
# Few holders and sizes, so that gaps of just the right size turn up often.
holders = st.sampled_from(["a", "b"])
sizes = st.sampled_from([1, PAGE_BYTES, PAGE_BYTES + 1, 300_000, 1 << 20, SEGMENT_BYTES, SEGMENT_BYTES + 1])


class Pages:
    """The model of a segment: for each page whose it is (0: nobody's), and how far there is memory."""

    def __init__(self, size_bytes: int) -> None:
        self.owners = [0] * (size_bytes // PAGE_BYTES)
        self.written = 0
        self.needed = 0

    @property
    def is_condemned(self) -> bool:
        return LOST in self.owners

    @property
    def highest(self) -> int:
        return max((i + 1 for i, owner in enumerate(self.owners) if owner), default=0)

    def first_gap(self, count: int) -> int | None:
        fits = (i for i in range(len(self.owners) - count + 1) if not any(self.owners[i : i + count]))
        return None if self.is_condemned else next(fits, None)

    def gaps(self) -> list[tuple[int, int]]:
        edges = [i for i in range(len(self.owners) + 1) if self.is_free(i) != self.is_free(i - 1)]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(start * PAGE_BYTES, end * PAGE_BYTES) for start, end in pairs]

    def is_free(self, page: int) -> bool:
        return 0 <= page < len(self.owners) and self.owners[page] == 0


class Machine(RuleBasedStateMachine):
    """Whatever is asked in whatever order, the answers and the whole state are those of the map of pages."""

    table_class: type[SegmentTable] = SegmentTable

    @initialize()
    def begin(self) -> None:
        self.table = self.table_class(SEGMENT_BYTES)
        self.segments: dict[int, Pages] = {}
        self.parts: dict[int, tuple[Hashable, Part]] = {}
        self.made = self.placed = self.unknown = 0

    @rule(size_bytes=sizes, holder=holders)
    def place(self, size_bytes: int, holder: str) -> None:
        count = rounded(size_bytes, PAGE_BYTES) // PAGE_BYTES
        fits = ((number, pages.first_gap(count)) for number, pages in self.segments.items())
        number, start = next(((number, start) for number, start in fits if start is not None), (0, 0))
        part = self.table.place(size_bytes, holder)
        if not number:
            assert part is None
            return
        pages = self.segments[number]
        self.placed += 1
        fresh = sum(page >= pages.written for page in range(start, start + count))
        assert part == Part(self.placed, number, start * PAGE_BYTES, size_bytes, fresh * PAGE_BYTES)
        pages.owners[start : start + count] = [part.id] * count
        pages.written, pages.needed = max(pages.written, start + count), max(pages.needed, start + count)
        self.parts[part.id] = holder, part

    @rule(size_bytes=sizes, limit_bytes=st.integers(0, 4).map(lambda steps: steps * SEGMENT_BYTES))
    def grow(self, size_bytes: int, limit_bytes: int) -> None:
        left = limit_bytes - sum(len(p.owners) * PAGE_BYTES for p in self.segments.values())
        need = rounded(size_bytes, SEGMENT_BYTES)
        grown = self.table.grow(size_bytes, limit_bytes)
        if need > left:
            assert grown is None
            return
        self.made += 1
        assert grown == (self.made, need)
        self.segments[self.made] = Pages(need)

    @rule(which=st.integers(0, 5), holder=holders, twice=st.booleans())
    def give_back(self, which: int, holder: str, twice: bool) -> None:
        known = list(self.parts)
        part_id = known[which] if which < len(known) else 1000 + which
        owner, part = self.parts.get(part_id, (None, None))
        dropped = self.table.give_back([part_id] * (1 + twice), holder)
        if part is None or owner != holder:
            self.unknown += 1 + twice
            assert dropped == []
            return
        self.unknown += twice
        del self.parts[part_id]
        pages = self.segments[part.segment]
        pages.owners = [0 if page == part_id else page for page in pages.owners]
        assert dropped == self.finished([part.segment])

    @rule(holder=holders)
    def lose(self, holder: str) -> None:
        lost = [part for owner, part in self.parts.values() if owner == holder]
        for part in lost:
            del self.parts[part.id]
            pages = self.segments[part.segment]
            pages.owners = [LOST if page == part.id else page for page in pages.owners]
        assert self.table.lose(holder) == self.finished(sorted({part.segment for part in lost}))

    def finished(self, numbers: list[int]) -> list[int]:
        """Those that nobody can use any more; forgotten here too."""
        done = [n for n in numbers if self.segments[n].is_condemned and not any(o > 0 for o in self.segments[n].owners)]
        for number in done:
            del self.segments[number]
        return done

    @rule()
    def tick(self) -> None:
        idle = []
        for number, pages in self.segments.items():
            if pages.written > pages.needed and not pages.is_condemned:
                bounds = pages.needed * PAGE_BYTES, (pages.written - pages.needed) * PAGE_BYTES
                idle.append(Range(number, *bounds))
                pages.written = pages.needed
            pages.needed = pages.highest
        assert self.table.tick() == idle

    @invariant()
    def the_whole_state_is_the_models(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.table._parts._by_id == self.parts
        assert self.table.unknown_returns == self.unknown
        assert self.table.total_bytes == sum(len(pages.owners) * PAGE_BYTES for pages in self.segments.values())
        assert list(self.table._segments) == list(self.segments)
        for number, pages in self.segments.items():
            segment = self.table._segments[number]
            assert segment.condemned == pages.is_condemned
            assert segment.gaps == pages.gaps()
            assert segment.num_parts == len(set(pages.owners) - {0, LOST})
            assert (segment.touched, segment.peak) == (pages.written * PAGE_BYTES, pages.needed * PAGE_BYTES) or (
                pages.is_condemned
            )
        assert self.table.has_idle == any(
            not pages.is_condemned and pages.written > pages.highest for pages in self.segments.values()
        )


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSegmentTable = Machine.TestCase


# Broken tables, each with one method replaced. Any: they reach into what is private.


def trusts_any_return(self: Any, part_ids: list[int], holder: Hashable) -> list[int]:
    """A return of another's part frees it."""
    return [
        number
        for part_id in part_ids
        for number in SegmentTable.give_back(self, [part_id], self._parts._by_id.get(part_id, (holder,))[0])
    ]


def uses_what_was_lost_again(self: Any, holder: Hashable) -> list[int]:
    """What an ended link held is free, though somebody may still read it."""
    return SegmentTable.give_back(self, [i for i, (owner, _) in self._parts._by_id.items() if owner == holder], holder)


def forgets_to_join_gaps(self: Any, part: Part) -> None:
    """Two gaps side by side stay two."""
    segment = self._segments[part.segment]
    segment.gaps = sorted([*segment.gaps, (part.offset, part.offset + rounded(part.size_bytes, PAGE_BYTES))])
    segment.num_parts -= 1


def releases_what_is_used(self: Any) -> list[Range]:
    """A period in which a part came and went does not count."""
    for segment in self._segments.values():
        segment.peak = segment.highest_end()
    return SegmentTable.tick(self)


def keeps_condemned_segments(self: Any, number: int) -> list[int]:
    """A segment that nobody can use is never dropped."""
    return []


def ignores_the_limit(self: Any, size_bytes: int, limit_bytes: int) -> tuple[int, int] | None:
    """Grows for ever."""
    return SegmentTable.grow(self, size_bytes, limit_bytes + SEGMENT_BYTES)


BROKEN: dict[str, Callable[..., Any]] = {  # Any: each has the signature of what it replaces
    "give_back": trusts_any_return,
    "lose": uses_what_was_lost_again,
    "_free": forgets_to_join_gaps,
    "tick": releases_what_is_used,
    "_drop_if_done": keeps_condemned_segments,
    "grow": ignores_the_limit,
}


@pytest.mark.parametrize("method", BROKEN, ids=lambda method: BROKEN[method].__name__)
def test_the_machine_catches_a_table_that(method: str) -> None:
    broken = type("Broken", (SegmentTable,), {method: BROKEN[method]})
    machine: Any = type("BrokenMachine", (Machine,), {"table_class": broken})  # Any: has no name for mypy
    quickly = settings(derandomize=True, database=None, max_examples=1000, phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quickly)


# -- what a receiver believes ------------------------------------------------------------------------------------------


@pytest.fixture
def received() -> Received:
    received = Received(limit_bytes=1 << 20)
    received.add_segment(7, 1 << 16)
    return received


@pytest.mark.parametrize(
    "part",
    [
        Part(1, 8, 0, 4096),
        Part(1, 7, 0, (1 << 16) + 1),
        Part(1, 7, 1 << 16, 1),
        Part(1, 7, 61440, 4097),
        Part(1, 7, 2**64 - 4096, 4097),
        Part(1, 7, 0, 0),
        Part(1, 7, 64, 4096),
    ],
)
def test_a_part_outside_of_what_is_mapped_is_refused(received: Received, part: Part) -> None:
    with pytest.raises(WireError, match="that does not fit: part 1"):
        received.take(part)
    assert received == Received(1 << 20, received._mapped)


def test_a_part_is_in_use_until_it_is_done(received: Received) -> None:
    part = Part(3, 7, 4096, 5000)
    assert received.take(part) == 4096
    with pytest.raises(WireError, match="does not fit: part 3"):
        received.take(part)
    assert received.done(3) == 5000
    assert received.take(part) == 4096 + 8192, "its pages were used before"


def test_a_peer_may_share_so_much_and_each_segment_once(received: Received) -> None:
    received.check_segment(8, (1 << 20) - (1 << 16))
    for number, size_bytes in ((8, (1 << 20) - (1 << 16) + 1), (7, 1), (9, 0)):
        with pytest.raises(WireError, match=r"announced"):
            received.check_segment(number, size_bytes)
    received.drop_segment(7)
    received.check_segment(7, 1 << 20)
    with pytest.raises(WireError, match="7 was dropped that is not known"):
        received.drop_segment(7)

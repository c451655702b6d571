"""Who holds which part of which shared segment. Pure book-keeping: maps nothing, sends nothing, reads no clock.

    sender     place -> Part: the first gap, lowest address first, so that what was used before is used again, warm
               give_back, lose -> the segments to drop
               tick -> the ranges that nobody has used for a whole period: their memory goes back to the system
    receiver   Received: what the peer has shared, against which every place it names is checked

A part belongs to its holder (one link) until that returns it by its id (`outstanding`). When a link ends while it holds
parts, nobody knows whether somebody still reads them: their segment takes nothing new and is dropped when all others
have returned.

Invariants: parts and gaps of a segment do not overlap and together are the whole of it; no two gaps touch; bytes at
and above `touched` have no memory of their own.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...base.errors import WireError
from ..outstanding import Outstanding

# Whole pages, so that two parts never share one. All engines adopt memory that is aligned like this.
PAGE_BYTES = 4096
# A page table covers so much; big pages have this size.
_SEGMENT_STEP_BYTES = 2 << 20


class Part(NamedTuple):
    """A piece of a segment. `fresh_bytes`: so many of its last bytes have no memory yet, and are slow to write."""

    id: int
    segment: int
    offset: int
    size_bytes: int
    fresh_bytes: int = 0


class Range(NamedTuple):
    """Bytes of a segment that nobody uses."""

    segment: int
    offset: int
    size_bytes: int


@dataclass(slots=True)
class _Segment:
    size_bytes: int
    gaps: list[tuple[int, int]]  # (offset, end), in order
    num_parts: int = 0
    touched: int = 0
    peak: int = 0  # the highest end of a part in this period
    condemned: bool = False

    def highest_end(self) -> int:
        return self.gaps[-1][0] if self.gaps and self.gaps[-1][1] == self.size_bytes else self.size_bytes


@dataclass(slots=True)
class SegmentTable:
    """The segments of one sender. The caller makes and drops the memory itself, as told.

    Args:
        segment_bytes: the size of a segment, unless one part needs more.
    """

    segment_bytes: int
    _segments: dict[int, _Segment] = field(default_factory=dict)
    _parts: Outstanding[Part] = field(default_factory=Outstanding)
    _last_segment: int = 0

    @property
    def unknown_returns(self) -> int:
        """Of parts that the other did not have."""
        return self._parts.unknown_returns

    @property
    def total_bytes(self) -> int:
        """The sum of the sizes of all segments; more than the memory they have."""
        return sum(segment.size_bytes for segment in self._segments.values())

    def grow(self, size_bytes: int, limit_bytes: int) -> tuple[int, int] | None:
        """A new segment with room for `size_bytes`: its id and size. None when that would pass the limit."""
        left_bytes = (limit_bytes - self.total_bytes) // PAGE_BYTES * PAGE_BYTES
        size_bytes = max(rounded(size_bytes, _SEGMENT_STEP_BYTES), min(self.segment_bytes, left_bytes))
        if size_bytes > left_bytes:
            return None
        self._last_segment += 1
        self._segments[self._last_segment] = _Segment(size_bytes, [(0, size_bytes)])
        return self._last_segment, size_bytes

    def forget(self, segment: int) -> None:
        """There was no memory for a segment that nothing was placed in."""
        del self._segments[segment]

    def place(self, size_bytes: int, holder: Hashable) -> Part | None:
        """A part of `size_bytes` for `holder`, in the first gap that has room. None: there is no such gap."""
        need = rounded(size_bytes, PAGE_BYTES)
        for number, segment in self._segments.items():
            if not segment.condemned:
                for i, (start, end) in enumerate(segment.gaps):
                    if end - start >= need:
                        return self._take(number, i, size_bytes, holder)
        return None

    def _take(self, number: int, gap: int, size_bytes: int, holder: Hashable) -> Part:
        segment = self._segments[number]
        start, end = segment.gaps[gap]
        part_end = start + rounded(size_bytes, PAGE_BYTES)
        segment.gaps[gap : gap + 1] = [(part_end, end)] if part_end < end else []
        fresh = max(0, part_end - max(start, segment.touched))
        segment.touched = max(segment.touched, part_end)
        segment.peak = max(segment.peak, part_end)
        segment.num_parts += 1
        part = Part(self._parts.next_id, number, start, size_bytes, fresh)
        self._parts.give(part, holder)
        return part

    def give_back(self, part_ids: Iterable[int], holder: Hashable) -> list[int]:
        """`holder` uses these parts no more. Returns the segments to drop."""
        dropped = []
        for part_id in part_ids:
            part = self._parts.take_back(part_id, holder)
            if part is not None:
                self._free(part)
                dropped += self._drop_if_done(part.segment)
        return dropped

    def lose(self, holder: Hashable) -> list[int]:
        """The link of `holder` has ended; what it held may be read for ever. Returns the segments to drop."""
        lost = self._parts.lose(holder).values()
        for part in lost:
            segment = self._segments[part.segment]
            segment.condemned = True
            segment.num_parts -= 1
        return [number for number in sorted({part.segment for part in lost}) if self._drop_if_done(number)]

    def tick(self) -> list[Range]:
        """A period is over. The ranges whose memory was not needed in it, and is to be given back to the system."""
        idle = []
        for number, segment in self._segments.items():
            if segment.touched > segment.peak and not segment.condemned:
                idle.append(Range(number, segment.peak, segment.touched - segment.peak))
                segment.touched = segment.peak
            segment.peak = segment.highest_end()
        return idle

    @property
    def has_idle(self) -> bool:
        """Whether there is memory that a later `tick` may give back, if nothing more is placed."""
        return any(one.touched > one.highest_end() and not one.condemned for one in self._segments.values())

    def _free(self, part: Part) -> None:
        segment = self._segments[part.segment]
        start, end = part.offset, part.offset + rounded(part.size_bytes, PAGE_BYTES)
        gaps = segment.gaps
        segment.num_parts -= 1
        i = bisect_left(gaps, (start, end))
        if i < len(gaps) and gaps[i][0] == end:
            end = gaps.pop(i)[1]
        if i > 0 and gaps[i - 1][1] == start:
            i -= 1
            start = gaps.pop(i)[0]
        gaps.insert(i, (start, end))

    def _drop_if_done(self, number: int) -> list[int]:
        segment = self._segments[number]
        if not segment.condemned or segment.num_parts:
            return []
        del self._segments[number]
        return [number]


@dataclass(slots=True)
class _Mapped:
    size_bytes: int
    touched: int = 0


@dataclass(slots=True)
class Received:
    """What one peer has shared with us, and which parts of it are in use here."""

    limit_bytes: int
    _mapped: dict[int, _Mapped] = field(default_factory=dict)
    _in_use: dict[int, int] = field(default_factory=dict)

    def check_segment(self, segment: int, size_bytes: int) -> None:
        """Raises `WireError` when the peer may not share this segment."""
        if segment in self._mapped or size_bytes < 1:
            raise WireError(f"a shared segment {segment} of {size_bytes} bytes was announced twice, or is empty.")
        total = size_bytes + sum(mapped.size_bytes for mapped in self._mapped.values())
        if total > self.limit_bytes:
            raise WireError(f"shared segments of {total} bytes were announced; this link takes {self.limit_bytes}.")

    def add_segment(self, segment: int, size_bytes: int) -> None:
        """It is mapped. After `check_segment`."""
        self._mapped[segment] = _Mapped(size_bytes)

    def drop_segment(self, segment: int) -> None:
        """The peer sends nothing in it any more. Raises `WireError` when it never did."""
        if self._mapped.pop(segment, None) is None:
            raise WireError(f"a shared segment {segment} was dropped that is not known.")

    def take(self, part: Part) -> int:
        """The part is in use here from now on.

        Returns from which offset on its bytes were never used here. Raises `WireError` when it is not within what is
        mapped.
        """
        mapped = self._mapped.get(part.segment)
        end = part.offset + part.size_bytes
        if (
            mapped is None
            or part.size_bytes < 1
            or end > mapped.size_bytes
            or part.offset % PAGE_BYTES
            or part.id in self._in_use
        ):
            raise WireError(
                f"a buffer was announced in shared memory that does not fit: part {part.id}, {part.size_bytes} bytes "
                f"from {part.offset} of segment {part.segment}, which has {mapped.size_bytes if mapped else 0}."
            )
        self._in_use[part.id] = part.size_bytes
        fresh_from = max(part.offset, mapped.touched)
        mapped.touched = max(mapped.touched, rounded(end, PAGE_BYTES))
        return fresh_from

    def done(self, part_id: int) -> int:
        """Nothing here uses the part any more. Returns how many bytes it has."""
        return self._in_use.pop(part_id)


def rounded(size_bytes: int, step_bytes: int) -> int:
    """The next multiple of `step_bytes`."""
    return -(-size_bytes // step_bytes) * step_bytes

"""The state of the shared segments of one link, on both sides. Pure: maps nothing, sends nothing, reads no clock.

    sender     take --> a free segment of the right size, most recently used first; add: a new one
               give_back, remove_idle
    receiver   ReceivedSegments: the segments that the peer has shared, against which every buffer is checked

A segment holds one buffer at a time. It is free until `take`, in use until the receiver returns it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ...base.errors import WireError

_PAGE_BYTES = 4096
_HUGE_PAGE_BYTES = 2 << 20


class SharedBuffer(NamedTuple):
    """A buffer at the beginning of a shared segment."""

    segment: int
    size_bytes: int


def segment_bytes_for(size_bytes: int) -> int:
    """Return the size of the segments for buffers of this size: one of four for each power of two, in whole pages."""
    step = max((1 << (size_bytes - 1).bit_length()) >> 3, _PAGE_BYTES)
    if size_bytes > _HUGE_PAGE_BYTES:
        step = max(step, _HUGE_PAGE_BYTES)
    return -(-size_bytes // step) * step


@dataclass(slots=True)
class SegmentTable:
    """The segments that one side of a link sends buffers in."""

    unknown_returns: int = 0
    _last_segment: int = 0
    _in_use: dict[int, int] = field(default_factory=dict)  # segment -> its size
    _free: dict[int, dict[int, float]] = field(default_factory=dict)  # size -> segment -> time of its return, in order

    def take(self, size_bytes: int) -> int | None:
        """Return a free segment for a buffer of this size, which is in use from now on; None if there is none."""
        size_bytes = segment_bytes_for(size_bytes)
        if not self._free.get(size_bytes):
            return None
        segment, _ = self._free[size_bytes].popitem()
        self._in_use[segment] = size_bytes
        return segment

    def add(self, size_bytes: int) -> int:
        """Return the number of a new segment, which is in use from now on."""
        self._last_segment += 1
        self._in_use[self._last_segment] = size_bytes
        return self._last_segment

    def give_back(self, segment: int, now_s: float, *, reusable: bool) -> int | None:
        """The receiver has returned a segment. Return its size if it must be dropped, because it is not reusable."""
        size_bytes = self._in_use.pop(segment, None)
        if size_bytes is None:
            self.unknown_returns += 1
            return None
        if not reusable:
            return size_bytes
        self._free.setdefault(size_bytes, {})[segment] = now_s
        return None

    def remove_idle(self, since_s: float) -> list[int]:
        """Remove the segments that have been free since `since_s` or longer, and return their numbers."""
        idle = [n for segments in self._free.values() for n, free_s in segments.items() if free_s <= since_s]
        self._free = {
            size_bytes: left
            for size_bytes, segments in self._free.items()
            if (left := {n: free_s for n, free_s in segments.items() if free_s > since_s})
        }
        return idle

    @property
    def num_in_use(self) -> int:
        return len(self._in_use)

    @property
    def has_free(self) -> bool:
        return any(self._free.values())


@dataclass(slots=True)
class ReceivedSegments:
    """The segments that the peer has shared, and which of them are in use here.

    Attributes:
        limit_bytes: of all segments together.
    """

    limit_bytes: int
    _sizes: dict[int, int] = field(default_factory=dict)
    _in_use: dict[int, int] = field(default_factory=dict)  # segment -> size of its buffer

    def add(self, segment: int, size_bytes: int) -> None:
        """Raises `WireError` if the peer may not share this segment."""
        if segment in self._sizes or size_bytes < 1:
            raise WireError(f"a shared segment {segment} of {size_bytes} bytes was announced twice, or is empty.")
        total_bytes = size_bytes + sum(self._sizes.values())
        if total_bytes > self.limit_bytes:
            raise WireError(
                f"shared segments of {total_bytes} bytes were announced; this link takes {self.limit_bytes}."
            )
        self._sizes[segment] = size_bytes

    def drop(self, segment: int) -> None:
        """The peer does not use the segment again. Raises `WireError` if it is unknown, or in use here."""
        if segment in self._in_use or self._sizes.pop(segment, None) is None:
            raise WireError(f"a shared segment {segment} was dropped that is unknown or in use.")

    def take(self, buffer: SharedBuffer) -> None:
        """The buffer is in use from now on. Raises `WireError` if it does not fit its segment."""
        size_bytes = self._sizes.get(buffer.segment, 0)
        if not 0 < buffer.size_bytes <= size_bytes or buffer.segment in self._in_use:
            raise WireError(
                f"a buffer of {buffer.size_bytes} bytes was announced in segment {buffer.segment}, which has "
                f"{size_bytes} bytes and is {'in use' if buffer.segment in self._in_use else 'not in use'}."
            )
        self._in_use[buffer.segment] = buffer.size_bytes

    def forget(self, segment: int) -> None:
        """The buffer of the segment, if it is in use, will be taken again."""
        self._in_use.pop(segment, None)

    def done(self, segment: int) -> int:
        """Nothing here refers to the buffer of the segment any more. Return the buffer's size."""
        return self._in_use.pop(segment)

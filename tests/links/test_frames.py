"""Frames survive any division of the stream. Invalid ones are refused before memory is allocated."""

import ctypes
import itertools
import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import WireError
from fanwise.links import frames
from fanwise.links.frames import BUFFERS_MAX, HEADER, MAGIC, Frame, FrameReader, Limits, encode, encode_shared
from fanwise.links.shared_memory.segment_table import SharedBuffer

KINDS = (frames.REQUEST, frames.NOTICE, frames.REPLY, frames.ERROR, frames.GOODBYE)
STAGING = 1 << 16

Sent = tuple[int, int, bytes, list[bytes]]

# Sizes around those where the reader changes its way: nothing, small, the staging area, more than it.
sizes = st.sampled_from([0, 1, 7, 8, 31, 32, 33, 100, 4096, STAGING - 33, STAGING - 32, STAGING - 31, STAGING, 100_001])


def filling(size: int) -> bytes:
    return random.Random(size).randbytes(size)


sent_frames = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 2**64 - 1),
    sizes.map(filling),
    st.lists(sizes.map(filling), max_size=4),
)


def encoded(messages: Sequence[Sent]) -> bytes:
    parts = [encode(kind, call, head, [memoryview(b) for b in buffers]) for kind, call, head, buffers in messages]
    return b"".join(bytes(part) for message in parts for part in message)


def read(reader: FrameReader, data: bytes, pieces: Sequence[int]) -> list[Frame]:
    """Feed `data` in pieces of these sizes, over and over, each cut to the room that the reader offers."""
    got: list[Frame] = []
    at = turn = 0
    while at < len(data):
        space = reader.space()
        assert len(space) > 0
        size = min(len(space), pieces[turn % len(pieces)], len(data) - at)
        space[:size] = data[at : at + size]
        got += reader.filled(size)
        at += size
        turn += 1
    return got


def plain(got: Sequence[Frame]) -> list[Sent]:
    return [(f.kind, f.call_id, bytes(f.head), [bytes(b) for b in f.buffers]) for f in got]


@given(st.lists(sent_frames, max_size=6), st.lists(st.sampled_from([1, 3, 31, 32, 33, 1000, 65536]), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(messages: list[Sent], pieces: list[int]) -> None:
    data = encoded(messages)
    if len(data) > 200_000:
        pieces = [max(piece, 31) for piece in pieces]  # a byte at a time is tried on the shorter streams
    got = read(FrameReader(Limits()), data, pieces)
    assert plain(got) == messages


numbers = st.integers(1, 2**64 - 1)
places = st.one_of(st.none(), st.builds(SharedBuffer, numbers, st.just(70_000)))


@given(
    st.lists(st.tuples(sent_frames, st.lists(places, min_size=1, max_size=4)), max_size=4),
    st.lists(st.sampled_from([1, 31, 33, 1000, 65536]), min_size=1),
)
def test_buffers_that_lie_elsewhere_are_named_among_those_that_follow(
    messages: list[tuple[Sent, list[SharedBuffer | None]]], pieces: list[int]
) -> None:
    data = b""
    for (kind, call, head, _), parts in messages:
        buffers = [memoryview(filling(100 + i if part is None else 70_000)) for i, part in enumerate(parts)]
        data += b"".join(bytes(sent) for sent in encode_shared(kind, call, head, buffers, parts))
    got = read(FrameReader(Limits()), data, [max(piece, 31) for piece in pieces])
    assert [(f.kind, f.call_id, bytes(f.head)) for f in got] == [message[:3] for message, _ in messages]
    assert [list(f.parts) for f in got] == [parts for _, parts in messages]
    inline = [[bytes(b) for b, part in zip(f.buffers, f.parts, strict=True) if part is None] for f in got]
    assert inline == [[filling(100 + i) for i, part in enumerate(parts) if part is None] for _, parts in messages]


@given(st.lists(sent_frames, min_size=1, max_size=4), st.integers(1000, 100_000))
def test_buffers_are_writable_memory_of_their_own_aligned_to_64_bytes(messages: list[Sent], piece: int) -> None:
    got = read(FrameReader(Limits()), encoded(messages), [piece])
    buffers = [buffer for frame in got for buffer in frame.buffers if len(buffer)]
    starts = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers]
    assert [start % 64 for start in starts] == [0] * len(starts)
    ranges = sorted((start, start + len(buffer)) for start, buffer in zip(starts, buffers, strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


@given(st.lists(sent_frames, min_size=1, max_size=3), st.data())
def test_a_stream_that_is_cut_short_gives_the_whole_frames_and_no_more(
    messages: list[Sent], data: st.DataObject
) -> None:
    stream = encoded(messages)
    end = data.draw(st.integers(0, len(stream) - 1))
    got = plain(read(FrameReader(Limits()), stream[:end], [65536]))
    assert got == messages[: len(got)] and len(got) < len(messages)


@given(st.binary(min_size=32, max_size=200))
def test_random_bytes_only_give_wire_errors(data: bytes) -> None:
    with pytest.raises(WireError, match="not a frame"):
        read(FrameReader(Limits()), data if data[:2] != b"\x57\xfa" else b"\0" + data, [len(data)])


small_frames = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 9), st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=3)
)


@given(st.lists(small_frames, min_size=1, max_size=4), st.data())
def test_mutated_bytes_give_frames_or_wire_errors_and_never_more_memory_than_the_limit(
    messages: list[Sent], data: st.DataObject
) -> None:
    stream = bytearray(encoded(messages))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    allocations: list[int] = []

    def counted(size_bytes: int) -> memoryview:
        allocations.append(size_bytes)
        return memoryview(bytearray(size_bytes))

    limits = Limits(frame_bytes=1000, buffers=8)
    try:
        read(FrameReader(limits, counted), bytes(stream), [len(stream)])
    except WireError:
        pass
    else:
        assert sum(allocations) <= limits.frame_bytes * len(messages) + len(stream)
    assert max(allocations, default=0) <= limits.frame_bytes


def header(
    *, buffers: int = 0, head: int = 0, total: int = 0, magic: int = MAGIC, kind: int = 1, flags: int = 0
) -> bytes:
    return HEADER.pack(magic, kind, flags, buffers, 1, head, total)


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (header(head=2**60, total=2**60), f"a frame of {2**60} bytes was announced; this link takes {2**36}"),
        (header(head=2**36 + 1, total=2**36 + 1), f"a frame of {2**36 + 1} bytes was announced"),
        (header(buffers=2**31, total=2**35), f"a frame of {2**31} buffers was announced; this link takes 4096"),
        (header(head=2**64 - 1, total=10), f"lengths contradict each other: head {2**64 - 1}, total 10"),
        (header(head=5, total=10), "lengths contradict each other: head 5, total 10"),
        (header(buffers=2, head=5, total=20), "lengths contradict each other: head 5, total 20"),
        (header(buffers=1, head=0, total=20) + (2**60).to_bytes(8, "little"), f"buffers have {2**60} bytes"),
        (header(magic=0x1234), "not a frame: magic 0x1234, kind 1, flags 0"),
        (header(kind=17), "not a frame: magic 0xfa57, kind 17"),
        (header(flags=2), "flags 2"),
        (header(flags=1, buffers=4096, total=4096 * 16), "4096 buffers was announced, some in shared memory"),
        (header(flags=1, buffers=1, head=5, total=20), "lengths contradict each other: head 5, total 20"),
    ],
    ids=range(12),
)
def test_what_a_header_announces_is_checked_before_memory_is_asked_for(first: bytes, text: str) -> None:
    allocations: list[int] = []

    def counted(size_bytes: int) -> memoryview:
        allocations.append(size_bytes)
        return memoryview(bytearray(size_bytes))

    reader = FrameReader(Limits(), counted)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=text):
            read(reader, first, [len(first)])
        assert allocations == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_frame_that_the_machine_has_no_memory_for_is_a_wire_error() -> None:
    first = header(head=1 << 30, total=1 << 30)

    def none(size_bytes: int) -> memoryview:
        raise MemoryError

    with pytest.raises(WireError, match=f"no memory for a part of {1 << 30} bytes"):
        read(FrameReader(Limits(), none), first, [32])


def test_memory_is_asked_for_when_the_first_byte_of_a_part_comes() -> None:
    allocations: list[int] = []

    def counted(size_bytes: int) -> memoryview:
        allocations.append(size_bytes)
        return memoryview(bytearray(size_bytes))

    stream = encoded([(1, 1, b"head", [bytes(300_000), b"", bytes(200_000), bytes(100_000)])])
    reader = FrameReader(Limits(), counted)
    seen = []
    for at in range(0, len(stream), 1000):
        result = read(reader, stream[at : at + 1000], [1000])
        seen.append(tuple(allocations))
    assert seen[1] == (4, 300_000), "memory is allocated for the part that is arriving, not for all announced ones"
    assert seen[-1] == (4, 300_000, 0, 200_000, 100_000) and len(result) == 1


def test_the_limits_are_exact() -> None:
    limits = Limits(frame_bytes=100, buffers=2)
    fits = encoded([(1, 1, bytes(84), [b"", b""])])
    assert plain(read(FrameReader(limits), fits, [1])) == [(1, 1, bytes(84), [b"", b""])]
    for too_much in ([(1, 1, bytes(85), [b"", b""])], [(1, 1, b"", [b"", b"", b""])]):
        with pytest.raises(WireError, match="was announced"):
            read(FrameReader(limits), encoded(too_much), [1])


def test_the_greatest_number_of_buffers_passes_and_a_greater_limit_is_refused() -> None:
    many = [(1, 7, b"head", [bytes([i % 256]) for i in range(BUFFERS_MAX)])]
    assert plain(read(FrameReader(Limits(buffers=BUFFERS_MAX)), encoded(many * 2), [65536])) == many * 2
    with pytest.raises(ValueError, match="at most 8188 buffers, got a limit of 8189"):
        FrameReader(Limits(buffers=BUFFERS_MAX + 1))


def test_big_parts_are_not_copied_when_a_frame_is_encoded() -> None:
    head, buffer = bytes(100_000), memoryview(bytearray(100_000))
    parts = encode(frames.REQUEST, 1, head, [buffer])
    assert len(parts) == 3 and parts[1] is head
    assert isinstance(parts[2], memoryview) and parts[2].obj is buffer.obj

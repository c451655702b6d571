"""Many pieces of memory in few buffers: what comes out is what went in, and nothing outside of it."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import WireError
from fanwise.links.frames import SHARED_BUFFERS_MAX
from fanwise.rpc.messages import pickling
from fanwise.rpc.messages.messages import compose, dumps, loads, parse
from fanwise.rpc.messages.packing import pack, size_of_rows, unpack


def memory(size: int, fill: int) -> memoryview:
    return memoryview(bytearray([fill % 256]) * size)


@given(st.lists(st.sampled_from([1, 63, 64, 5000, 300_000, 1 << 20, (1 << 20) + 1]), max_size=40))
def test_what_is_packed_comes_out(sizes: list[int]) -> None:
    pieces = [memory(size, number) for number, size in enumerate(sizes)]
    buffers, rows = pack(pieces)
    assert len(rows) == size_of_rows(len(pieces))
    assert unpack(rows, buffers) == pieces


def test_pieces_begin_where_engines_adopt_memory() -> None:
    buffers, rows = pack([memory(size, 1) for size in (1, 65, 4097, 3)])
    assert len(buffers) == 1 and [at % 64 for _, at, _ in struct.iter_unpack("<IQQ", rows)] == [0] * 4


@pytest.mark.parametrize(
    ("size", "count"),
    [(5000, 6000), (300_000, 1100), ((1 << 20) + 7, 1100)],  # the last ones are packed because there are so many
)
def test_any_number_of_pieces_becomes_few_enough_for_shared_memory(size: int, count: int) -> None:
    one = memoryview(bytes(size))  # many pieces may be one memory here: only what is packed is copied
    sizes = [one[: size - i % 7] for i in range(count)]
    assert count > SHARED_BUFFERS_MAX / 4
    buffers, _ = pack(sizes)
    assert len(buffers) < SHARED_BUFFERS_MAX / 4


def test_rows_that_point_outside_of_their_buffer_are_refused() -> None:
    for number, at, size in ((1, 0, 1), (0, 10, 1), (0, 9, 2), (0, 2**64 - 1, 1)):
        with pytest.raises(WireError, match="do not exist"):
            unpack(struct.pack("<IQQ", number, at, size), [memory(10, 0)])


@pytest.mark.parametrize("call", ["f", None])
def test_thousands_of_tensors_and_arrays_are_one_message_that_a_link_takes(call: str | None) -> None:
    tensors = [torch.full((1 + 700 * (i % 4),), float(i)) for i in range(3000)]
    arrays = [np.full(2000, i) for i in range(2000)]
    data, found, buffers = pickling.encode((tensors, arrays), 1)
    head, beside = dumps(compose(b"extra", found, data, buffers, call))
    assert len(beside) < SHARED_BUFFERS_MAX
    came = loads(head, [memoryview(bytearray(buffer)) for buffer in beside])
    opened = parse(came if call is None else came[0])
    back_tensors, back_arrays = pickling.decode(opened.pickle, opened.tensors, opened.buffers)
    assert bytes(opened.extra) == b"extra"
    assert all(torch.equal(one, other) for one, other in zip(tensors, back_tensors, strict=True))
    assert all(np.array_equal(one, other) for one, other in zip(arrays, back_arrays, strict=True))
    back_tensors[5].add_(1.0)  # its neighbours in the pack keep what they have
    back_arrays[5][:] = 0
    assert torch.equal(back_tensors[6], tensors[6]) and np.array_equal(back_arrays[6], arrays[6])


def test_arrays_alone_are_packed_too() -> None:
    arrays = [np.full(1000, i) for i in range(5000)]
    data, _, buffers = pickling.encode(arrays, 1)
    head, beside = dumps(compose(b"", [], data, buffers, None))
    assert len(beside) < 100
    opened = parse(loads(head, beside))
    assert all(map(np.array_equal, arrays, pickling.decode(opened.pickle, [], opened.buffers)))


def test_more_tensors_than_sixteen_bits_count_are_one_message() -> None:
    message = compose(b"", [torch.ones(1)] * 66_000, b"", [], "f")
    assert len(parse(message).tensors) == 66_000

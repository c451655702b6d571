"""Memory to receive into: its alignment, its size, its life."""

import ctypes
import os

import pytest

from fanwise.tensor import aligned_buffer

BIG = 2**20


@pytest.mark.parametrize("size_bytes", [0, 1, 63, 4096, BIG, BIG + 1])
def test_a_buffer_is_aligned_writable_and_zero(size_bytes: int) -> None:
    buffer = aligned_buffer(size_bytes)
    assert len(buffer) == size_bytes
    assert buffer.format == "B"
    assert not buffer.readonly
    assert bytes(buffer) == bytes(size_bytes)
    if size_bytes:
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % 64 == 0
        buffer[-1] = 255
        assert buffer[-1] == 255


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child only writes a byte and leaves
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_into_memory_of_its_own() -> None:
    buffer = aligned_buffer(BIG)
    child = os.fork()
    if child == 0:
        buffer[0] = 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert buffer[0] == 0


@pytest.mark.parametrize(
    ("size_bytes", "error", "says"),
    [
        (-1, ValueError, "size_bytes must be at least 0, got -1"),
        (2**62, MemoryError, str(2**62 + 64)),
        (2**80, MemoryError, str(2**80 + 64)),
    ],
)
def test_impossible_buffers_are_refused(size_bytes: int, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        aligned_buffer(size_bytes)

"""Large buffers in shared memory: ownership, lifetime, malicious peers and memory use."""

import contextlib
import ctypes
import fcntl
import gc
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from virtual_clock import VirtualClock

from fanwise.base.errors import WireError, WorkerLostError
from fanwise.links import frames
from fanwise.links.frames import Limits, encode, encode_shared
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.shared_memory import segments
from fanwise.links.shared_memory.segment_table import SegmentTable, SharedBuffer
from fanwise.links.shared_memory.sharing import SHARED_FROM_BYTES, Sharing
from fanwise.links.transports.unix import UnixListener, dial, new_key
from fanwise.links.transports.wires import SocketWire
from fanwise.links.writer import Writer
from fanwise.testing import within

MIB = 1 << 20
ANY = Limits()


class Pair:
    """Two linked ends in this process, each with a hub of its own. What arrives at `far` is kept in `got`."""

    def __init__(self, folder: Path, near: Hub, far: Hub, *, limits: Limits = ANY) -> None:
        self.got: list[Any] = []  # Any: the received values
        self.go_on = threading.Event()
        self.go_on.set()
        arrived: list[Link] = []
        key, path = new_key(), folder / f"hub{near.name}"
        listener = UnixListener(far, path, key, on_link=arrived.append, limits=limits)
        self.near = dial(near, path, key, limits=limits)
        within(30.0, lambda: arrived, "the link has arrived")
        self.far = arrived[0]
        far.call_soon(listener.close)
        self.near_ended: list[str] = []
        self.near.on_ended(lambda link, ending: self.near_ended.append(ending.reason))
        self.far.handler = self._keep
        self.near.open()

    def _keep(self, request: Request) -> None:
        self.go_on.wait(20.0)
        if request.method == "keep":
            self.got.append(request.args[0])
        if request.method == "back":
            request.answer(request.args[0])
        else:
            request.answer(None)

    @property
    def sharing(self) -> Sharing:
        assert self.near._sharing is not None
        return self.near._sharing

    @property
    def table(self) -> SegmentTable:
        return self.sharing._table

    def arrays(self) -> int:
        """Return how many segments the near end believes to be in use at the far end."""
        return self.table.num_in_use

    def returned(self) -> None:
        """Wait until all segments have been returned."""
        gc.collect()
        within(30.0, lambda: self.arrays() == 0, "all segments are returned")


@pytest.fixture
def hubs() -> Iterator[tuple[Hub, Hub]]:
    near, far = Hub(name="near"), Hub(name="far")
    near.start()
    far.start()
    yield near, far
    near.close()
    far.close()


@pytest.fixture
def pair(hubs: tuple[Hub, Hub], tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, *hubs)
    yield pair
    pair.got.clear()  # an array keeps its segment open, and pytest keeps the pair


def same_memory(array: Any, pair: Pair) -> bool:  # Any: an array of either engine
    """Return True if the array is in a segment of the near end, so that writes to the segment change it."""
    (number,) = pair.table._in_use
    pair.sharing._sent[number]._map.view[0] = 201
    return bool(array.reshape(-1)[0] == 201)


# -- whose the memory is, and how long ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_an_array_is_adopted_without_a_copy_and_writable(pair: Pair, make: Callable[..., Any]) -> None:
    pair.near.ask("keep", make((1024, 1024), dtype=np.uint8 if make is np.zeros else torch.uint8))
    (array,) = pair.got
    assert same_memory(array, pair)
    array[1] = 7
    assert int(array.sum()) == 201 + 7 * 1024


def test_buffers_are_aligned_for_every_engine(pair: Pair) -> None:
    for size in (SHARED_FROM_BYTES, SHARED_FROM_BYTES + 1, 3 * MIB):
        pair.near.ask("keep", np.zeros(size, np.uint8))
    assert [array.ctypes.data % 64 for array in pair.got] == [0, 0, 0]
    assert pair.arrays() == 3


def test_small_buffers_go_through_the_socket_among_big_ones(pair: Pair) -> None:
    sent = [np.full(size, i, np.uint8) for i, size in enumerate((10, MIB, 5000, MIB, 100_000, 0))]
    pair.near.ask("keep", sent)
    assert pair.arrays() == 2
    assert all(np.array_equal(a, b) for a, b in zip(sent, pair.got[0], strict=True))


@pytest.mark.parametrize("more", [0, 3])
def test_large_arrays_are_copied_whole_by_one_thread_and_by_two(pair: Pair, more: int) -> None:
    sent = np.random.default_rng(more).integers(0, 256, 9 * MIB + more, np.uint8)
    cpus = os.sched_getaffinity(0)
    pair.near.ask("keep", sent)
    try:
        os.sched_setaffinity(0, {min(cpus)})
        pair.near.ask("keep", sent)
    finally:
        os.sched_setaffinity(0, cpus)
    assert [np.array_equal(got, sent) for got in pair.got] == [True, True]
    pair.got.clear()
    pair.returned()


def test_an_interrupt_does_not_leave_another_thread_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted, written, me = threading.Event(), [], threading.get_ident()

    def move(target: int, source: int, size_bytes: int) -> None:
        if threading.get_ident() == me:
            interrupted.set()
            raise KeyboardInterrupt
        assert interrupted.wait(30.0)
        for _ in range(1000):
            os.sched_yield()
        written.append(size_bytes)

    monkeypatch.setattr(ctypes, "memmove", move)
    with pytest.raises(KeyboardInterrupt):
        segments._copy_with_two_threads(0, 0, 11)
    assert written == [6]


def test_memory_is_returned_when_the_last_view_has_gone(pair: Pair) -> None:
    pair.near.ask("keep", torch.full((MIB,), 3.0))
    view = pair.got.pop()[4:].view(-1, 4).numpy()[::2]
    for i in range(4):
        pair.near.ask("drop", torch.full((MIB,), float(i)))
    gc.collect()
    within(30.0, lambda: pair.arrays() == 1, "the others are returned")
    assert (view == 3.0).all()
    del view
    pair.returned()


def test_memory_that_came_back_is_used_again(pair: Pair) -> None:
    for i in range(20):
        pair.near.ask("keep", np.full(4 * MIB, i, np.uint8))
        assert pair.got.pop().max() == i
    pair.returned()
    assert len(pair.sharing._sent) <= 3


def test_arrays_outlive_their_link_and_hub(hubs: tuple[Hub, Hub], pair: Pair) -> None:
    pair.near.ask("keep", np.full(MIB, 9, np.uint8))
    pair.near.close()
    hubs[0].close()
    (array,) = pair.got
    assert (array == 9).all()
    array[:] = 10
    assert int(array.sum()) == 10 * MIB


def test_the_segments_of_an_ended_link_are_dropped_and_its_arrays_stay(pair: Pair) -> None:
    pair.near.ask("keep", np.full(MIB, 1, np.uint8))
    budget = pair.sharing._budget
    assert budget.num_segments >= 1
    pair.far._wire.hang_up()
    within(30.0, lambda: pair.near_ended and budget.num_segments == 0, "the segments are dropped")
    assert budget.num_bytes == 0 and (pair.got[0] == 1).all()


def test_nothing_is_asked_of_a_finalizer_that_could_wait_for_a_lock(pair: Pair) -> None:
    pair.near.ask("keep", np.zeros(MIB, np.uint8))
    sharing = pair.far._sharing
    assert sharing is not None
    with sharing._lock, sharing._returning, pair.far._writer._lock, pair.far._state.lock, pair.far._hub._waking:
        pair.got.clear()  # its finalizer runs here
    pair.returned()


def test_memory_that_a_forked_child_may_read_is_not_used_again(pair: Pair) -> None:
    pair.near.ask("keep", np.full(MIB, 6, np.uint8))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0 if (pair.got[0] == 6).all() else 1)
    pair.got.clear()
    (shared,) = pair.table._in_use
    for i in range(5):
        pair.near.ask("drop", np.full(MIB, 7 + i, np.uint8))
    within(30.0, lambda: shared not in pair.sharing._sent, "its segment is dropped")
    pair.returned()
    os.write(writer, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reader)
    os.close(writer)


def test_an_array_of_this_process_outlives_a_forked_child(pair: Pair) -> None:
    pair.near.ask("keep", np.full(MIB, 6, np.uint8))
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    for i in range(3):
        pair.near.ask("drop", np.full(MIB, 7 + i, np.uint8))
    within(30.0, lambda: pair.arrays() == 1, "the others are returned")
    assert (pair.got[0] == 6).all()
    pair.got.clear()
    pair.returned()


def test_a_read_only_array_is_sent_as_any_other(pair: Pair) -> None:
    array = np.full(MIB, 8, np.uint8)
    array.flags.writeable = False
    pair.near.ask("keep", array)
    assert pair.arrays() == 1 and (pair.got[0] == 8).all()


# -- how much memory ---------------------------------------------------------------------------------------------------


def test_what_the_pool_has_no_room_for_goes_through_the_socket(hubs: tuple[Hub, Hub], tmp_path: Path) -> None:
    pair = Pair(tmp_path, *hubs, limits=Limits(pool_bytes=4 * MIB))
    for i in range(6):
        pair.near.ask("keep", np.full(MIB, i, np.uint8))
    pair.near.ask("keep", np.full(5 * MIB, 6, np.uint8))
    assert pair.arrays() == 4 and pair.sharing._budget.num_bytes == 4 * MIB
    assert all((array == i).all() for i, array in enumerate(pair.got))


def test_links_may_do_without_shared_memory(hubs: tuple[Hub, Hub], tmp_path: Path) -> None:
    pair = Pair(tmp_path, *hubs, limits=Limits(pool_bytes=0, mapped_bytes=0))
    for i in range(3):
        pair.near.ask("keep", np.full(MIB, i, np.uint8))
    assert all((array == i).all() for i, array in enumerate(pair.got)) and pair.arrays() == 0


def test_idle_memory_goes_back_to_the_system(hubs: tuple[Hub, Hub], tmp_path: Path) -> None:
    clock = VirtualClock()
    near = Hub(name="patient", clock=clock)
    try:
        pair = Pair(tmp_path, near, hubs[1])
        for _ in range(2):
            pair.near.ask("keep", np.zeros(8 * MIB, np.uint8))
        kept, idle = pair.sharing._sent
        idle_map = pair.sharing._sent[idle]._map
        idle_map.view[0] = 1
        del pair.got[1]
        for _ in range(2):
            within(30.0, lambda: pair.near.ask("drop", 0) or pair.arrays() == 1, "the second is returned")
            near.turn()
            assert list(pair.sharing._sent) == [kept, idle] and idle_map.view[0] == 1
            clock.advance(6.0)
        near.turn()
        assert list(pair.sharing._sent) == [kept] and pair.sharing._budget.num_bytes == 8 * MIB
        assert idle_map.view[0] == 0, "the memory is released, also for others who have it mapped"
        far = pair.far._sharing
        assert far is not None
        within(30.0, lambda: list(far._mapped) == [kept], "the receiver has unmapped it")
        pair.near.ask("keep", np.full(8 * MIB, 1, np.uint8))
        assert pair.got[0].max() == 0 and pair.got[1].min() == 1
    finally:
        near.close()


def test_free_segments_of_other_sizes_make_room_for_a_new_one(hubs: tuple[Hub, Hub], tmp_path: Path) -> None:
    pair = Pair(tmp_path, *hubs, limits=Limits(pool_bytes=4 * MIB))
    for size in (1, 2, 3, 4, 1):
        pair.near.ask("drop", np.full(size * MIB, size, np.uint8))
        pair.returned()
        pair.near.ask("keep", np.full(size * MIB, size, np.uint8))
        assert pair.arrays() == 1, "it did not go through the socket"
        assert pair.got.pop().min() == size
        pair.returned()


def test_an_interrupted_copy_keeps_no_segment(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(segments.Segment, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pair.near.ask("keep", np.zeros(MIB, np.uint8))
    assert pair.arrays() == 0


def test_a_descriptor_for_a_link_that_has_closed_its_wire_is_given_back() -> None:
    near_socket, far_end = socket.socketpair()
    hub = Hub(name="closed")
    sender = Writer(hub, SocketWire(near_socket))
    sender.close()
    fd = os.memfd_create("late")
    sender.put_with_descriptor(b"too late", fd, lambda part, fd: len(part))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    far_end.close()
    hub.close()


def test_a_segment_is_told_of_in_order_when_the_socket_is_full(pair: Pair) -> None:
    pair.go_on.clear()
    replies = [pair.near.call("keep", bytes(100_000)) for _ in range(60)]
    assert pair.near._writer.waits
    replies += [pair.near.call("keep", np.full(MIB, i, np.uint8)) for i in range(3)]
    assert pair.near._writer._carriers, "the descriptor waits"
    pair.go_on.set()
    for reply in replies:
        reply.result(20.0)
    assert [int(array[0]) for array in pair.got[60:]] == [0, 1, 2]
    assert pair.arrays() == 3


# -- peers that lie ----------------------------------------------------------------------------------------------------


class Liar:
    """A link whose far end is a bare socket, to send arbitrary bytes."""

    def __init__(self, hub: Hub) -> None:
        near_end, far_end = socket.socketpair()
        self.socket = far_end
        wire = SocketWire(near_end)
        self.link = Link(hub, wire, sharing=Sharing(hub, wire, Limits()))
        self.errors: list[WireError] = []
        self.got: list[Any] = []  # Any: the received values
        self.link.on_malformed = self.errors.append
        self.link.handler = lambda request: self.got.append(request.args)
        self.link.open()

    def say(self, kind: int, head: bytes = b"", fd: int = -1) -> None:
        (part,) = encode(kind, 0, head)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))] if fd >= 0 else []
        self.socket.sendmsg([part], rights)

    def refused(self) -> str:
        within(30.0, lambda: self.errors and self.link.ending, "the link has ended")
        assert self.link.ending is not None and not self.link.ending.clean
        return self.errors[0].message


@pytest.fixture
def liar(hubs: tuple[Hub, Hub]) -> Iterator[Liar]:
    liar = Liar(hubs[0])
    yield liar
    liar.link.close()
    liar.socket.close()


@contextlib.contextmanager
def memory(size_bytes: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> Iterator[int]:
    fd = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    yield fd
    os.close(fd)


def announced(number: int, size_bytes: int) -> bytes:
    return struct.pack("<QQ", number, size_bytes)


def test_memory_that_its_owner_could_cut_short_is_refused(liar: Liar) -> None:
    with memory(MIB, fcntl.F_SEAL_GROW) as fd:
        liar.say(frames.SEGMENT, announced(1, MIB), fd)
        assert "is not sealed" in liar.refused()


def test_memory_of_another_size_is_refused(liar: Liar) -> None:
    with memory(MIB) as fd:
        liar.say(frames.SEGMENT, announced(1, 2 * MIB), fd)
        assert "is not sealed, or has another size" in liar.refused()


def test_what_is_no_memory_is_refused(liar: Liar, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        liar.say(frames.SEGMENT, announced(1, MIB), file.fileno())
        assert "could not be mapped" in liar.refused()


@pytest.mark.parametrize(
    ("kind", "head", "text"),
    [
        (frames.SEGMENT, announced(1, MIB), "no descriptor came with it"),
        (frames.SEGMENT, b"short", "has 5 bytes, expected 16"),
        (frames.DROPPED, struct.pack("<Q", 5), "5 was dropped that is unknown"),
        (frames.RETURN, b"short", "a return of 5 bytes came"),
    ],
)
def test_what_cannot_be_ends_the_link(liar: Liar, kind: int, head: bytes, text: str) -> None:
    liar.say(kind, head)
    assert text in liar.refused()


def test_a_descriptor_that_nobody_announced_is_closed_and_ends_the_link(liar: Liar) -> None:
    with memory(MIB) as fd:
        liar.say(frames.RETURN, b"", fd)
        assert "a descriptor came that nobody had announced" in liar.refused()


@pytest.mark.parametrize("shared", [SharedBuffer(2, 4096), SharedBuffer(1, MIB + 1), SharedBuffer(1, 2**64 - 1)])
def test_a_buffer_outside_of_its_segment_ends_the_link(liar: Liar, shared: SharedBuffer) -> None:
    with memory(MIB) as fd:
        liar.say(frames.SEGMENT, announced(1, MIB), fd)
        buffer = memoryview(b"")
        for data in encode_shared(frames.NOTICE, 0, b"head", [buffer], [shared]):
            table = struct.pack("<QQ", shared.size_bytes, shared.segment)
            liar.socket.sendall(bytes(data[:32]) + table + bytes(data[48:]))
        assert "was announced in segment" in liar.refused()
    assert liar.got == []


def test_returns_of_what_is_not_theirs_are_counted(pair: Pair) -> None:
    pair.near.ask("keep", np.zeros(MIB, np.uint8))
    (number,) = pair.table._in_use
    assert pair.far._sharing is not None
    pair.far._sharing._put(frames.RETURN, struct.pack("<Q?Q?Q?", 999, True, number, True, number, True))
    within(30.0, lambda: pair.table.unknown_returns == 2, "they are counted")
    assert pair.arrays() == 0 and pair.near.ending is None


def test_a_link_without_shared_memory_refuses_frames_about_it(hubs: tuple[Hub, Hub]) -> None:
    near_end, far_end = socket.socketpair()
    link = Link(hubs[0], SocketWire(near_end))
    link.open()
    far_end.sendall(b"".join(encode(frames.RETURN, 0, b"")))
    with far_end, pytest.raises(WorkerLostError, match="this link has none"):
        link.call("anything").result(30.0)

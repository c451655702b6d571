"""The wire between hosts by itself: what polling does not show, records that did not fit or were changed, its end."""

import itertools
import os
import random
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fanwise.base.errors import WireError
from fanwise.links.security.record_keys import SHARE_SIZE, TAG_SIZE, new_share, record_keys
from fanwise.links.transports.sealed import RECORD_BYTES, SealedWire

CHANGED = "bytes came that the other side did not send"
Pair = tuple[SealedWire, SealedWire]


def read_waiting(wire: SealedWire, view: memoryview) -> int:
    assert wire.wait_readable(10.0)
    return wire.read_into(view)


def new_pair(came: bytes = b"") -> Pair:
    """`came`: of the first one's records, with the greeting."""
    dialler, listener = socket.socketpair()
    for end in (dialler, listener):
        end.setblocking(False)
    shares = new_share(), new_share()
    a = SealedWire(dialler, *record_keys("dialler", *shares))
    return a, SealedWire(listener, *record_keys("listener", *reversed(shares)), came)


@pytest.fixture
def pair() -> Iterator[Pair]:
    wires = new_pair()
    yield wires
    for wire in wires:
        wire.close()


def is_polled_readable(wire: SealedWire) -> bool:
    return bool(select.select([wire.fileno()], [], [], 0.0)[0])


def test_bytes_that_polling_does_not_show_are_told_of_and_waited_for_no_more(pair: Pair) -> None:
    a, b = pair
    assert a.write([b"0123456789"]) == 10
    assert not b.holds_bytes and b.wait_readable(10.0)
    view = memoryview(bytearray(4))
    assert (b.read_into(view), bytes(view)) == (4, b"0123")
    assert b.holds_bytes and not is_polled_readable(b)
    assert b.wait_readable(None) and b.wait_any(None)
    assert (read_waiting(b, view), bytes(view)) == (4, b"4567")
    assert (b.read_into(view), bytes(view[:2])) == (2, b"89")
    assert not b.holds_bytes and not b.wait_readable(0.0) and b.read_into(view) == 0


def test_a_big_view_is_filled_from_many_records(pair: Pair) -> None:
    a, b = pair
    data = random.Random(5).randbytes(100_000)
    assert a.write([data]) == len(data)
    into = memoryview(bytearray(200_000))
    assert b.read_into(into) == len(data) and into[: len(data)] == data


@pytest.mark.parametrize("seed", range(10))
def test_what_did_not_fit_may_be_offered_again_with_more_or_fewer_parts_behind_it(pair: Pair, seed: int) -> None:
    a, b = pair
    chance = random.Random(seed)
    waiting = deque(memoryview(chance.randbytes(chance.choice([1, 80, 5000, 20000, 300000]))) for _ in range(60))
    sent = b"".join(waiting)
    got = bytearray()
    into = memoryview(bytearray(1 << 20))
    stuck = 0
    while waiting:
        # A link offers at least what it offered before, or so many that none but the first ones matter.
        size = a.write(list(itertools.islice(waiting, chance.randint(8, 20))))
        stuck += size == 0
        if size == 0 or chance.random() < 0.1:
            got += into[: b.read_into(into[: chance.choice([7, 5000, 100_000, 1 << 20])])]
        while waiting and size >= len(waiting[0]):
            size -= len(waiting.popleft())
        if size:
            waiting[0] = waiting[0][size:]
    a.hang_up()
    while (size := read_waiting(b, into)) >= 0:
        got += into[:size]
    assert stuck and got == sent


def test_a_hang_up_is_read_after_what_came_before_it(pair: Pair) -> None:
    a, b = pair
    assert a.write([b"last words"]) == 10
    a.hang_up()
    into = memoryview(bytearray(4))
    got = bytearray()
    while (size := read_waiting(b, into)) > 0:
        got += into[:size]
    assert (bytes(got), size) == (b"last words", -1)
    assert b.read_into(into) == -1, "and again"
    b.hang_up()
    assert (a.read_into(into), a.write([b"more"]), b.write([b"more"])) == (-1, -1, -1)


def test_a_hang_up_wakes_who_waits(pair: Pair) -> None:
    a, _ = pair
    sizes: list[int] = []
    thread = threading.Thread(target=lambda: sizes.append(read_waiting(a, memoryview(bytearray(1)))))
    thread.start()
    a.hang_up()
    thread.join(10.0)
    assert sizes == [-1]


def test_a_peer_that_is_gone_kills_nobody_who_has_restored_sigpipe() -> None:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        a, b = new_pair()
        b.close()
        sizes = [a.write([b"x" * 100]) for _ in range(3)]
        os._exit(0 if sizes[-1] == -1 and not signal.pthread_sigmask(signal.SIG_BLOCK, []) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_bytes_that_are_no_records_are_an_error_after_what_came_before(pair: Pair) -> None:
    a, b = pair
    assert a.write([b"good"]) == 4
    a.socket.send(b"plain text, put in by somebody else")
    into = memoryview(bytearray(100))
    assert b.read_into(into) == 4
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(b, into)


@pytest.mark.parametrize(
    "use", [lambda wire: wire.read_into(memoryview(bytearray(1))), lambda wire: wire.write([b"x"])]
)
def test_a_closed_wire_is_at_its_end_and_never_goes_on_in_plain_text(
    pair: Pair, use: Callable[[SealedWire], int]
) -> None:
    a, b = pair
    a.close()
    assert use(a) == -1
    assert a.wait_writable(None) and a.wait_any(0.0)
    assert read_waiting(b, memoryview(bytearray(1))) == -1


def test_records_of_every_size_and_split_arrive_as_they_were(pair: Pair) -> None:
    a, b = pair
    into = memoryview(bytearray(3 * RECORD_BYTES))
    for size in (1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 2 * RECORD_BYTES + 5):
        data = os.urandom(size)
        for step in (1000, RECORD_BYTES, 3 * RECORD_BYTES):
            sent, got = 0, b""
            while len(got) < size:
                sent += a.write([data[sent:]]) if sent < size else 0
                got += bytes(into[: b.read_into(into[:step])])
            assert got == data


def sealed_by(wire: SealedWire, other: SealedWire, data: bytes) -> bytearray:
    """The record of `data`, taken off the line."""
    assert wire.write([data]) == len(data)
    return bytearray(other.socket.recv(len(data) + 4 + TAG_SIZE))


@pytest.mark.parametrize("at", [0, 3, 4, 10, -1], ids=["length", "length, far", "first byte", "middle", "tag"])
def test_a_record_with_one_bit_changed_does_not_open(pair: Pair, at: int) -> None:
    a, b = pair
    record = sealed_by(a, b, b"weights of a model")
    record[at] ^= 1
    a.socket.send(record + bytes(100))
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(b, memoryview(bytearray(100)))
    with pytest.raises(WireError, match=CHANGED):
        b.read_into(memoryview(bytearray(100)))


@pytest.mark.parametrize("case", ["repeated", "left out", "sent back", "of another link"])
def test_a_record_that_is_not_the_next_of_this_direction_does_not_open(pair: Pair, case: str) -> None:
    a, b = pair
    into = memoryview(bytearray(100))
    first = sealed_by(a, b, b"first")
    match case:
        case "repeated":
            a.socket.send(first + first)
            assert read_waiting(b, into) == 5
        case "left out":
            assert a.write([b"second"]) == 6
        case "sent back":
            b.socket.send(first)
            b = a
        case "of another link":
            other, b = new_pair(bytes(first))
            other.close()
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(b, into)
    b.close()


@pytest.mark.parametrize("size", [0, RECORD_BYTES + 1, 1 << 31])
def test_a_length_that_no_record_has_is_an_error_and_no_memory_is_taken_for_it(pair: Pair, size: int) -> None:
    a, b = pair
    a.socket.send(size.to_bytes(4, "little"))
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(b, memoryview(bytearray(100)))


def test_a_record_of_which_the_end_is_missing_is_never_given_out(pair: Pair) -> None:
    a, b = pair
    record = sealed_by(a, b, b"half of it")
    a.socket.send(record[:-1])
    into = memoryview(bytearray(100))
    assert (read_waiting(b, into), b.holds_bytes) == (0, False)
    a.hang_up()
    assert read_waiting(b, into) == -1


def test_what_came_with_the_greeting_is_told_of() -> None:
    shares = new_share(), new_share()
    seals, _ = record_keys("dialler", *shares)
    record = memoryview(bytearray(4 + TAG_SIZE + 4))
    record[:4] = (4).to_bytes(4, "little")
    seals.seal(b"good", record[4:])
    one, other = socket.socketpair()
    with one, other:
        other.setblocking(False)
        wire = SealedWire(other, *record_keys("listener", *reversed(shares)), bytes(record))
        told: list[bool] = []
        wire.on_readable(lambda: told.append(True))
        into = memoryview(bytearray(10))
        assert told and wire.wait_readable(0.0) and wire.read_into(into) == 4 and bytes(into[:4]) == b"good"


def test_keys_change_and_both_sides_go_on(pair: Pair) -> None:
    a, b = pair
    for key in (a._seals, b._opens):
        key._records_a_key = 3
    into = memoryview(bytearray(10))
    first = a._seals._aead
    for number in range(10):
        assert a.write([b"%d" % number]) == 1
        assert (b.read_into(into), bytes(into[:1])) == (1, b"%d" % number)
    assert a._seals._aead is not first and b.write([b"back"]) == 4 and a.read_into(into) == 4


def test_each_link_and_direction_has_keys_of_its_own() -> None:
    shares = [bytes([number]) * SHARE_SIZE for number in range(3)]
    keys = list(record_keys("dialler", shares[0], shares[1]))
    keys += [*record_keys("dialler", shares[0], shares[2]), *record_keys("dialler", shares[2], shares[1])]
    sealed = []
    for key in keys:
        record = bytearray(4 + TAG_SIZE)
        key.seal(b"same", memoryview(record))
        sealed.append(bytes(record))
    assert len(set(sealed)) == len(sealed)


# -- interrupts --------------------------------------------------------------------------------------------------------


class Interrupted:
    """In the place of a socket or a key: Ctrl-C comes before or after `name` has done its work, once."""

    def __init__(self, real: Any, name: str, *, after: bool, part: int | None = None) -> None:
        self._real, self._name, self._after, self._part = real, name, after, part
        self.hit = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        return self._interrupt if name == self._name and not self.hit else method

    def _interrupt(self, first: Any, *args: Any) -> Any:
        self.hit = True
        if self._after:
            getattr(self._real, self._name)(first if self._part is None else first[: self._part], *args)
        raise KeyboardInterrupt


WRITING = {
    "before the record is sealed": ("_seals", "seal", False, None),
    "after the record was sealed": ("_seals", "seal", True, None),
    "before it is sent": ("socket", "send", False, None),
    "after a part of it was sent": ("socket", "send", True, 7),
    "after all of it was sent": ("socket", "send", True, None),
}
READING = {
    "before bytes are received": ("socket", "recv_into", False, None),
    "after bytes were received": ("socket", "recv_into", True, None),
    "before the record is opened": ("_opens", "open", False, None),
    "after the record was opened": ("_opens", "open", True, None),
}


def all_read(wire: SealedWire) -> bytes:
    """Up to the end of the connection."""
    got, into = bytearray(), memoryview(bytearray(1000))
    while (size := read_waiting(wire, into)) >= 0:
        got += into[:size]
    return bytes(got)


@pytest.mark.parametrize("case", WRITING)
def test_after_an_interrupt_while_writing_no_more_is_written(pair: Pair, case: str) -> None:
    a, b = pair
    of, name, after, part = WRITING[case]
    assert a.write([b"first"]) == 5
    setattr(a, of, Interrupted(getattr(a, of), name, after=after, part=part))
    with pytest.raises(KeyboardInterrupt):
        a.write([b"second"])
    assert [a.write([b"third"]) for _ in range(3)] == [-1] * 3
    assert all_read(b) in (b"first", b"firstsecond")
    assert all_read(a) == b""


@pytest.mark.parametrize("case", READING)
def test_after_an_interrupt_while_reading_the_connection_has_ended(pair: Pair, case: str) -> None:
    a, b = pair
    of, name, after, _ = READING[case]
    assert a.write([b"first"]) == 5
    setattr(b, of, Interrupted(getattr(b, of), name, after=after))
    with pytest.raises(KeyboardInterrupt):
        read_waiting(b, memoryview(bytearray(100)))
    assert a.write([b"second"]) in (6, -1)
    assert all_read(b) == b"" and b.write([b"back"]) == -1
    assert all_read(a) == b""

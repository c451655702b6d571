"""The wire between hosts by itself: bytes that polling does not show, writes that did not fit, changed data."""

import contextlib
import itertools
import os
import random
import select
import signal
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fanwise.base.errors import WireError
from fanwise.links.security.certificates import Identity, Side, is_server
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports.tls import Handshake, TlsWire

IDENTITY = Identity(new_secret())
CHANGED = "failed the checks of TLS"
Pair = tuple[TlsWire, TlsWire]


def read_waiting(wire: TlsWire, view: memoryview) -> int:
    assert wire.wait_readable(10.0)
    return wire.read_into(view)


def secured(end: socket.socket, side: Side) -> Handshake:
    end.setblocking(False)
    context = IDENTITY.context(side)
    return Handshake(context.wrap_socket(end, server_side=is_server(side), do_handshake_on_connect=False), "the peer")


def completed(dialer: socket.socket, listener: socket.socket, carry: Callable[[], None] = lambda: None) -> Pair:
    """Return the wires over both ends. `carry` moves bytes between them, if they are not connected."""
    handshakes = secured(dialer, "dialer"), secured(listener, "listener")
    wires: dict[int, TlsWire] = {}
    while len(wires) < 2:
        for number in {0, 1} - set(wires):
            with contextlib.suppress(ssl.SSLWantReadError):
                wires[number] = handshakes[number].step()
        carry()
    return wires[0], wires[1]


def new_pair() -> Pair:
    return completed(*socket.socketpair())


@pytest.fixture
def pair() -> Iterator[Pair]:
    wires = new_pair()
    yield wires
    for wire in wires:
        wire.close()


class Line:
    """Two wires, and between them a line that the test carries data over: TLS records, one at a time."""

    def __init__(self) -> None:
        dialer, self._dialer_end = socket.socketpair()
        listener, self._listener_end = socket.socketpair()
        self.a, self.b = completed(dialer, listener, self._carry)

    def _carry(self) -> None:
        ends = self._dialer_end, self._listener_end
        for source, target in (ends, reversed(ends)):
            with contextlib.suppress(BlockingIOError):
                target.sendall(source.recv(1 << 20, socket.MSG_DONTWAIT))

    def record_of(self, data: bytes) -> bytearray:
        """Return the record that `a` sends for `data`."""
        assert self.a.write([data]) == len(data)
        return bytearray(self._dialer_end.recv(1 << 20))

    def send_to_b(self, record: bytes | bytearray) -> None:
        self._listener_end.sendall(record)

    def send_to_a(self, record: bytes | bytearray) -> None:
        self._dialer_end.sendall(record)

    def hang_up(self) -> None:
        self._listener_end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for wire in (self.a, self.b):
            wire.close()
        self._dialer_end.close()
        self._listener_end.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def is_polled_readable(wire: TlsWire) -> bool:
    return bool(select.select([wire.fileno()], [], [], 0.0)[0])


def test_bytes_that_polling_does_not_show_are_reported_and_not_waited_for(pair: Pair) -> None:
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


def test_all_small_records_that_have_arrived_are_read_at_once(pair: Pair) -> None:
    a, b = pair
    for _ in range(5):
        assert a.write([b"0123456789"]) == 10
    assert read_waiting(b, memoryview(bytearray(100))) == 50, "a write in between could lose the rest to a reset"


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
        # As a link does: repeat at least the unsent bytes at the beginning.
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


def test_memory_of_a_write_that_did_not_fit_may_be_changed_by_its_owner(pair: Pair) -> None:
    a, b = pair
    data = bytearray(random.Random(6).randbytes(8 << 20))
    sent, copy = 0, bytes(data)
    while (size := a.write([memoryview(data)[sent:]])) > 0:
        sent += size
    data[sent:] = bytes(len(data) - sent)
    got, into = bytearray(), memoryview(bytearray(1 << 20))
    while len(got) < len(copy):
        if sent < len(copy):
            sent += a.write([memoryview(copy)[sent:]])
        got += into[: b.read_into(into)]
    assert got == copy


def test_both_directions_are_used_by_two_threads_at_once(pair: Pair) -> None:
    data = random.Random(7).randbytes(16 << 20)
    received: dict[int, bytearray] = {0: bytearray(), 1: bytearray()}

    def write(wire: TlsWire) -> None:
        sent = 0
        while sent < len(data):
            sent += wire.write([memoryview(data)[sent:]])
            wire.wait_writable(10.0)

    def read(number: int) -> None:
        into = memoryview(bytearray(1 << 20))
        while len(received[number]) < len(data):
            received[number] += into[: read_waiting(pair[number], into)]

    threads = [threading.Thread(target=write, args=(wire,)) for wire in pair]
    threads += [threading.Thread(target=read, args=(number,)) for number in received]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert received[0] == data and received[1] == data


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


def test_a_hang_up_wakes_a_waiting_reader(pair: Pair) -> None:
    a, _ = pair
    sizes: list[int] = []
    thread = threading.Thread(target=lambda: sizes.append(read_waiting(a, memoryview(bytearray(1)))))
    thread.start()
    a.hang_up()
    thread.join(10.0)
    assert sizes == [-1]


def test_a_lost_peer_does_not_kill_a_process_that_has_restored_sigpipe() -> None:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        a, b = new_pair()
        b.close()
        sizes = [a.write([b"x" * 100]) for _ in range(3)]
        os._exit(0 if sizes[-1] == -1 and not signal.pthread_sigmask(signal.SIG_BLOCK, []) else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    "use", [lambda wire: wire.read_into(memoryview(bytearray(1))), lambda wire: wire.write([b"x"])]
)
@pytest.mark.parametrize("end", ["close", "hang_up"])
def test_an_ended_wire_never_continues_in_plain_text(pair: Pair, use: Callable[[TlsWire], int], end: str) -> None:
    a, b = pair
    getattr(a, end)()
    assert use(a) == -1
    assert a.wait_writable(None) and a.wait_any(0.0)
    assert read_waiting(b, memoryview(bytearray(1))) == -1


def test_plain_text_is_an_error_after_what_came_before(line: Line) -> None:
    line.send_to_b(line.record_of(b"good") + b"plain text, inserted by somebody else")
    into = memoryview(bytearray(100))
    assert read_waiting(line.b, into) == 4
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(line.b, into)
    with pytest.raises(WireError, match=CHANGED):
        line.b.read_into(into)


@pytest.mark.parametrize("place", [0, 5, 10, -1], ids=["type", "first byte", "middle", "tag"])
def test_a_record_with_one_bit_changed_is_refused(line: Line, place: int) -> None:
    record = line.record_of(b"weights of a model")
    record[place] ^= 1
    line.send_to_b(bytes(record))
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(line.b, memoryview(bytearray(100)))


@pytest.mark.parametrize("case", ["repeated", "left out", "sent back", "of another link"])
def test_a_record_that_is_not_the_next_of_its_direction_is_refused(line: Line, case: str) -> None:
    into = memoryview(bytearray(100))
    first, reader = line.record_of(b"first"), line.b
    match case:
        case "repeated":
            line.send_to_b(first + first)
            assert read_waiting(line.b, into) == 5
        case "left out":
            line.send_to_b(line.record_of(b"second"))
        case "sent back":
            line.send_to_a(first)
            reader = line.a
        case "of another link":
            other = Line()
            line.send_to_b(other.record_of(b"first"))
            other.close()
    with pytest.raises(WireError, match=CHANGED):
        read_waiting(reader, into)


def test_an_incomplete_record_is_never_returned(line: Line) -> None:
    line.send_to_b(line.record_of(b"half of it")[:-1])
    into = memoryview(bytearray(100))
    assert (read_waiting(line.b, into), line.b.holds_bytes) == (0, False)
    line.hang_up()
    assert read_waiting(line.b, into) == -1


# -- interrupts --------------------------------------------------------------------------------------------------------


class Interrupted:
    """A socket whose method `name` is interrupted once by Ctrl-C, before or after it has done its work."""

    def __init__(self, connection: ssl.SSLSocket, name: str, *, after: bool) -> None:
        self._connection, self._name, self._after = connection, name, after
        self._is_done = False

    def __getattr__(self, name: str) -> Any:  # Any: of each method
        return self._interrupt if name == self._name and not self._is_done else getattr(self._connection, name)

    def _interrupt(self, data: Any) -> None:  # Any: bytes to send, or memory to receive into
        self._is_done = True
        if self._after:
            getattr(self._connection, self._name)(data)
        raise KeyboardInterrupt


def all_read(wire: TlsWire) -> bytes:
    """Read up to the end of the connection."""
    got, into = bytearray(), memoryview(bytearray(1000))
    while (size := read_waiting(wire, into)) >= 0:
        got += into[:size]
    return bytes(got)


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[TlsWire, str, bool], None]:
    def interrupt(wire: TlsWire, name: str, after: bool) -> None:
        connection = wire.socket
        monkeypatch.setattr(wire, "socket", Interrupted(connection, name, after=after))
        monkeypatch.setattr(wire, "hang_up", lambda: socket.socket.shutdown(connection, socket.SHUT_RDWR))

    return interrupt


Interrupt = Callable[[TlsWire, str, bool], None]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_after_an_interrupt_while_writing_no_more_is_written(pair: Pair, keep: Interrupt, after: bool) -> None:
    a, b = pair
    assert a.write([b"first"]) == 5
    keep(a, "send", after)
    with pytest.raises(KeyboardInterrupt):
        a.write([b"second"])
    assert [a.write([b"third"]) for _ in range(3)] == [-1] * 3
    assert all_read(b) == (b"firstsecond" if after else b"first")
    assert all_read(a) == b""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_after_an_interrupt_while_reading_the_connection_has_ended(pair: Pair, keep: Interrupt, after: bool) -> None:
    a, b = pair
    assert a.write([b"first"]) == 5
    keep(b, "recv_into", after)
    with pytest.raises(KeyboardInterrupt):
        read_waiting(b, memoryview(bytearray(100)))
    assert a.write([b"second"]) in (6, -1)
    assert all_read(b) == b"" and b.write([b"back"]) == -1
    assert all_read(a) == b""

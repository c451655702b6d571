"""The wire over TLS by itself: what polling does not show, records that did not fit, and its end."""

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

import pytest

from fanwise.base.errors import WireError
from fanwise.links.security.certificates import Identity
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports.tls import TlsStream, TlsWire

IDENTITY = Identity(new_secret())
Pair = tuple[TlsWire, TlsWire]


def read_waiting(wire: TlsWire, view: memoryview) -> int:
    wire.wait_readable(None)
    return wire.read_into(view)


def new_pair() -> Pair:
    dialler, listener = socket.socketpair()
    streams = (
        TlsStream(dialler, IDENTITY.context("dialler"), server_side=True),
        TlsStream(listener, IDENTITY.context("listener"), server_side=False),
    )
    left = list(streams)
    while left:
        with contextlib.suppress(ssl.SSLWantReadError):
            left[0].do_handshake()
            left.pop(0)
            continue
        left.reverse()
    return TlsWire(streams[0]), TlsWire(streams[1])


@pytest.fixture
def pair() -> Iterator[Pair]:
    wires = new_pair()
    yield wires
    for wire in wires:
        wire.close()


def is_polled_readable(wire: TlsWire) -> bool:
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
    a._stream.socket.send(b"plain text, put in by somebody else")
    into = memoryview(bytearray(100))
    assert b.read_into(into) == 4
    with pytest.raises(WireError, match="bytes came that the other side did not send"):
        read_waiting(b, into)


@pytest.mark.parametrize(
    "use", [lambda wire: wire.read_into(memoryview(bytearray(1))), lambda wire: wire.write([b"x"])]
)
def test_a_closed_wire_is_at_its_end_and_never_goes_on_in_plain_text(pair: Pair, use: Callable[[TlsWire], int]) -> None:
    a, b = pair
    a.close()
    assert use(a) == -1
    assert a.wait_writable(None) and a.wait_any(0.0)
    assert read_waiting(b, memoryview(bytearray(1))) == -1

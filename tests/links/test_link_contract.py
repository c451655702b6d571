"""Every kind of link keeps the contract, driven by hub threads or read by whoever waits; broken ones do not."""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from link_contract import (
    CHECKS,
    Check,
    LinkPair,
    a_clean_close_reaches_the_other_side,
    arrays_belong_to_the_receiver,
    loss_fails_every_open_call,
    notices_keep_their_order_among_calls,
    ten_thousand_calls_may_be_open_at_once,
)

from fanwise.base.errors import FanwiseError
from fanwise.links import frames
from fanwise.links.frames import Frame
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.security.certificates import Identity
from fanwise.links.shared_memory.sharing import Sharing
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports import unix
from fanwise.links.transports.tcp import TcpListener, dial_tcp
from fanwise.links.transports.unix import UnixListener, dial, new_key
from fanwise.links.transports.wires import Buffer, SocketWire
from fanwise.testing import within

IDENTITY = Identity(new_secret())

Make = Callable[[Path, bool], contextlib.AbstractContextManager[LinkPair]]


@contextlib.contextmanager
def hubs(near_is_driven: bool) -> Iterator[tuple[Hub, Hub]]:
    near, far = Hub(name="near"), Hub(name="far")
    far.start()
    if near_is_driven:
        near.start()
    try:
        yield near, far
    finally:
        near.close()
        far.close()


@contextlib.contextmanager
def over_a_socket(folder: Path, near_is_driven: bool) -> Iterator[LinkPair]:
    arrived: list[Link] = []
    key = new_key()
    with hubs(near_is_driven) as (hub_a, hub_b):
        listener = UnixListener(hub_b, folder / "hub", key, on_link=arrived.append)
        near = dial(hub_a, folder / "hub", key)
        near.open()
        within(30.0, lambda: arrived, "the link has arrived")
        hub_b.call_soon(listener.close)
        yield LinkPair(near, arrived[0], arrived[0]._wire.hang_up, near_is_driven)


@contextlib.contextmanager
def over_tls(_folder: Path, near_is_driven: bool) -> Iterator[LinkPair]:
    arrived: list[Link] = []
    with hubs(near_is_driven) as (hub_a, hub_b):
        listener = TcpListener(hub_b, "127.0.0.1", 0, IDENTITY, on_link=arrived.append)
        near = dial_tcp(hub_a, "127.0.0.1", listener.port, IDENTITY)
        near.open()
        within(30.0, lambda: arrived, "the link has arrived")
        hub_b.call_soon(listener.close)
        yield LinkPair(near, arrived[0], arrived[0]._wire.hang_up, near_is_driven)


@pytest.mark.parametrize("near_is_driven", [True, False], ids=["driven", "undriven"])
@pytest.mark.parametrize("make", [over_a_socket, over_tls])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_link_keeps_the_contract(check: Check, make: Make, near_is_driven: bool, tmp_path: Path) -> None:
    with make(tmp_path, near_is_driven) as pair:
        check(pair)


Spoil = Callable[[int, bytes], list[bytes]]


class BrokenWire:
    """A wire that does something wrong.

    Args:
        spoil: returns the bytes that really go out, of the message with this number.
        ends: whether its reader learns that the other side has ended.
    """

    def __init__(self, wire: SocketWire, spoil: Spoil, *, ends: bool = True) -> None:
        self._wire = wire
        self._spoil = spoil
        self._ends = ends
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def read_into(self, view: memoryview) -> int:
        size = self._wire.read_into(view)
        return size if self._ends else max(0, size)

    def write(self, parts: Sequence[Buffer]) -> int:
        self._written += 1
        data = b"".join(parts)
        left = memoryview(b"".join(self._spoil(self._written, data)))
        while len(left) and (size := self._wire.write([left])) >= 0:
            left = left[size:]
            self._wire.wait_writable(0.1)
        return len(data)


def whole(_number: int, data: bytes) -> list[bytes]:
    return [data]


def lost_now_and_then(number: int, data: bytes) -> list[bytes]:
    return [] if number % 50 == 0 else [data]


def sent_twice_now_and_then(number: int, data: bytes) -> list[bytes]:
    return [data, data] if number % 50 == 0 else [data]


def no_goodbye(_number: int, data: bytes) -> list[bytes]:
    return [] if data[2] == frames.GOODBYE else [data]


def overtaken() -> Spoil:
    held: list[bytes] = []

    def spoil(number: int, data: bytes) -> list[bytes]:
        if number % 100 == 7:
            held.append(data)
            return []
        out = [data, *held]
        held.clear()
        return out

    return spoil


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (lambda wire: BrokenWire(wire, lost_now_and_then), ten_thousand_calls_may_be_open_at_once),
        (lambda wire: BrokenWire(wire, sent_twice_now_and_then), notices_keep_their_order_among_calls),
        (lambda wire: BrokenWire(wire, overtaken()), notices_keep_their_order_among_calls),
        (lambda wire: BrokenWire(wire, no_goodbye), a_clean_close_reaches_the_other_side),
        (lambda wire: BrokenWire(wire, whole, ends=False), loss_fails_every_open_call),
    ],
    ids=["loses", "doubles", "swaps", "mute", "hides its end"],
)
def test_a_broken_link_fails_the_contract(
    broken: Callable[[SocketWire], BrokenWire], check: Check, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with hubs(True) as (hub_a, hub_b):
        a, b = map(SocketWire, socket.socketpair())
        near, far = Link(hub_a, broken(a)), Link(hub_b, broken(b))
        near.open()
        far.open()
        with pytest.raises((AssertionError, FanwiseError, TimeoutError)):
            check(LinkPair(near, far, b.hang_up, patience_s=0.3))


class ReturnsTooEarly(Sharing):
    """Broken: says of each part that nobody uses it, while the handler has it."""

    def adopt(self, frame: Frame) -> Frame:
        adopted = super().adopt(frame)
        self._unused.extend(self._watches)
        self.send_returns()
        return adopted


def test_shared_memory_that_is_returned_too_early_fails_the_contract(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unix, "Sharing", ReturnsTooEarly)
        with over_a_socket(tmp_path, True) as pair, pytest.raises(AssertionError):
            arrays_belong_to_the_receiver(pair)


@pytest.mark.parametrize(
    "check",
    [
        ten_thousand_calls_may_be_open_at_once,
        notices_keep_their_order_among_calls,
        a_clean_close_reaches_the_other_side,
        loss_fails_every_open_call,
    ],
)
def test_the_wire_of_the_broken_links_is_sound_when_nothing_is_spoilt(check: Check) -> None:
    with hubs(True) as (hub_a, hub_b):
        a, b = map(SocketWire, socket.socketpair())
        near, far = Link(hub_a, BrokenWire(a, whole)), Link(hub_b, BrokenWire(b, whole))
        near.open()
        far.open()
        check(LinkPair(near, far, b.hang_up))

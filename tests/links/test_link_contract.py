"""Every kind of link keeps the contract, driven by hub threads or read by whoever waits; broken ones do not."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fanwise.links import Hub, Link, UnixListener, dial, memory_links, new_key
from fanwise.links.wires import Buffer, MemoryWire
from fanwise.testing import within
from fanwise.testing.link_contract import (
    CHECKS,
    Check,
    LinkPair,
    a_call_returns_the_answer,
    a_clean_close_reaches_the_other_side,
    big_arrays_go_both_ways_at_once,
    loss_fails_every_open_call,
    notices_keep_their_order_among_calls,
    ten_thousand_calls_may_be_open_at_once,
)

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
def in_memory(_folder: Path, near_is_driven: bool) -> Iterator[LinkPair]:
    with hubs(near_is_driven) as (hub_a, hub_b):
        near, far = memory_links(hub_a, hub_b)
        near.open()
        far.open()
        yield LinkPair(near, far, far._wire.hang_up, near_is_driven)


@contextlib.contextmanager
def over_a_socket(folder: Path, near_is_driven: bool) -> Iterator[LinkPair]:
    arrived: list[Link] = []
    key = new_key()
    with hubs(near_is_driven) as (hub_a, hub_b):
        listener = UnixListener(hub_b, folder / "hub", key, on_link=arrived.append)
        near = dial(hub_a, folder / "hub", key)
        near.open()
        within(5.0, lambda: arrived, "the link has arrived")
        hub_b.call_soon(listener.close)
        yield LinkPair(near, arrived[0], arrived[0]._wire.hang_up, near_is_driven)


@pytest.mark.parametrize("near_is_driven", [True, False], ids=["driven", "undriven"])
@pytest.mark.parametrize("make", [in_memory, over_a_socket])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_link_keeps_the_contract(check: Check, make: Make, near_is_driven: bool, tmp_path: Path) -> None:
    with make(tmp_path, near_is_driven) as pair:
        check(pair)


class _BrokenWire:
    """A wire in memory that does something wrong to what is written into it."""

    def __init__(self, wire: MemoryWire) -> None:
        self._wire = wire
        self._written = 0
        self.read_into = wire.read_into
        self.wait_readable = wire.wait_readable
        self.wait_writable = wire.wait_writable
        self.wait_any = wire.wait_any
        self.fileno = wire.fileno
        self.on_readable = wire.on_readable
        self.hang_up = wire.hang_up
        self.close = wire.close

    def write(self, parts: Sequence[Buffer]) -> int:
        self._written += 1
        return self.write_number(self._written, b"".join(parts))

    def write_number(self, number: int, data: bytes) -> int:
        return self._wire.write([data])


class Loses(_BrokenWire):
    """One message in fifty is lost."""

    def write_number(self, number: int, data: bytes) -> int:
        return len(data) if number % 50 == 0 else self._wire.write([data])


class Swaps(_BrokenWire):
    """Of a hundred messages, one overtakes the one before it."""

    _held = b""

    def write_number(self, number: int, data: bytes) -> int:
        if number % 100 == 7:
            self._held = data
            return len(data)
        held, self._held = self._held, b""
        self._wire.write([data, held])
        return len(data)


class NeverTells(_BrokenWire):
    """Its reader is never told that there is something to read."""

    def __init__(self, wire: MemoryWire) -> None:
        super().__init__(wire)
        self.on_readable = lambda tell: None


class CutsShort(_BrokenWire):
    """It claims to have taken big messages whole."""

    def write_number(self, number: int, data: bytes) -> int:
        self._wire.write([data[: 1 << 20]])
        return len(data)


class HidesItsEnd(_BrokenWire):
    """The other side does not learn that it was closed."""

    def __init__(self, wire: MemoryWire) -> None:
        super().__init__(wire)
        self.read_into = lambda view: max(0, wire.read_into(view))


class Mute(_BrokenWire):
    """A goodbye does not get through."""

    def write_number(self, number: int, data: bytes) -> int:
        return len(data) if data[2] == 5 else self._wire.write([data])


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Loses, ten_thousand_calls_may_be_open_at_once),
        (Swaps, notices_keep_their_order_among_calls),
        (NeverTells, a_call_returns_the_answer),
        (CutsShort, big_arrays_go_both_ways_at_once),
        (HidesItsEnd, loss_fails_every_open_call),
        (Mute, a_clean_close_reaches_the_other_side),
    ],
)
def test_a_broken_link_fails_the_contract(
    broken: type[_BrokenWire], check: Check, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with hubs(True) as (hub_a, hub_b):
        a, b = MemoryWire.pair()
        near, far = Link(hub_a, broken(a)), Link(hub_b, broken(b))
        near.open()
        far.open()
        with pytest.raises(Exception) as failure:
            check(LinkPair(near, far, b.hang_up, patience_s=0.3))
        near.close()
        far.close()
        a.close()
        b.close()
    assert not isinstance(failure.value, AttributeError | TypeError), "the check itself is sound"

"""Ctrl-C at every point where the interpreter can deliver it: no call and no end of a link is lost."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from fanwise.base.errors import FanwiseError
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.shared_memory.sharing import SHARED_FROM_BYTES
from fanwise.links.transports.unix import UnixListener, dial, link_pair, new_key
from fanwise.testing import within

POINTS_MAX = 400

Call = Callable[[], object]


class Pair:
    """Two ends of a link. `turn` lets the far side read."""

    def __init__(self) -> None:
        self.hubs = Hub(name="near"), Hub(name="far")
        self.near, self.far = link_pair(*self.hubs)
        self.near.open()
        self.far.open()
        self.turn = self.hubs[1].turn

    def close(self) -> None:
        for hub in self.hubs:
            hub.close()


class Interrupt:
    """Makes a call, with a KeyboardInterrupt at one point.

    CPython runs signal handlers where a function begins and where a function in C has returned. A profiler is called
    in the same places, and its exception is raised there.
    """

    def __init__(self, point: int) -> None:
        self._left = point
        self.has_come = False

    def __call__(self, call: Call) -> None:
        sys.setprofile(self._profile)
        try:
            call()
        except (FanwiseError, KeyboardInterrupt):
            pass
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:  # Any: as profilers are called
        is_here = event in ("call", "c_return") and "fanwise" in frame.f_code.co_filename
        if is_here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not delayed
            self._left -= 1
            if self._left < 0:
                self.has_come = True
                raise KeyboardInterrupt


def at_each_point(scenario: Callable[[Pair, Interrupt], None]) -> None:
    """Run a scenario with an interrupt at the first point of its call, the second, and so on to the end of the call."""
    for point in range(POINTS_MAX):
        pair, interrupt = Pair(), Interrupt(point)
        try:
            scenario(pair, interrupt)
        finally:
            pair.close()
        if not interrupt.has_come:
            assert point > 5
            return
    raise AssertionError("the call has more points")


def test_an_interrupt_of_the_thread_that_reads_loses_no_answer() -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        pair.far.handler = lambda request: request.answer(request.method)
        called: list[str] = []
        replies = [pair.near.call(method) for method in "ab"]
        for reply in replies:
            reply.add_done_callback(lambda reply: called.append(f"{reply.method}0"))
            reply.add_done_callback(lambda reply: called.append(f"{reply.method}1"))
        pair.turn()
        interrupt(replies[0].wait)
        for reply in replies:
            reply.wait(within_s=10.0)
        assert all(reply._error is None or type(reply._error) is KeyboardInterrupt for reply in replies)
        assert {*called} == {"a0", "a1", "b0", "b1"} and pair.near.num_open == 0 and pair.near.ending is None

    at_each_point(scenario)


def test_an_interrupt_loses_no_call_of_the_peer() -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        received: list[str] = []
        pair.far.handler = lambda request: request.answer()
        pair.near.handler = lambda request: received.append(request.method)
        for method in "abc":
            pair.far.call(method)
        reply = pair.near.call("call")
        pair.turn()
        interrupt(reply.wait)
        reply.wait(within_s=10.0)
        assert received == [*"abc"]

    at_each_point(scenario)


def test_an_interrupt_while_an_answer_in_shared_memory_is_read_does_not_end_the_link(tmp_path: Path) -> None:
    far, array = Hub(name="far"), np.ones(SHARED_FROM_BYTES // 8 + 10)
    far.start()
    for point in range(POINTS_MAX):
        near, interrupt = Hub(name=f"near{point}"), Interrupt(point)
        arrived: list[Link] = []
        key, path = new_key(), tmp_path / near.name
        listener = UnixListener(far, path, key, on_link=arrived.append)
        link = dial(near, path, key)
        within(10.0, lambda arrived=arrived: arrived, "the link has arrived")  # type: ignore[misc]
        arrived[0].handler = lambda request: request.answer(request.args[0])
        link.open()
        reply = link.call("back", array)
        within(10.0, lambda link=link: link._wire.wait_readable(0.0), "the answer has arrived")  # type: ignore[misc]
        interrupt(reply.wait)
        assert reply.wait(within_s=10.0) and link.ending is None
        near.close()
        far.call_soon(listener.close)
        if not interrupt.has_come:
            break
    far.close()
    assert point > 50


@pytest.mark.parametrize("way", ["call", "ask"])
def test_a_call_that_is_interrupted_before_its_first_byte_is_not_open(way: str) -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        arrived: list[Request] = []
        pair.far.handler = arrived.append
        interrupt(lambda: pair.near.call("x") if way == "call" else pair.near.ask("x", within_s=0.0))
        pair.turn()
        pair.far.handler = lambda request: request.answer(1)
        reply = pair.near.call("y")
        pair.turn()
        assert reply.result(within_s=10.0) == 1 and pair.near.num_open <= len(arrived)

    at_each_point(scenario)


@pytest.mark.parametrize("end", [Link.close, Link.lose])
def test_an_interrupt_of_the_end_of_a_link_fails_every_call(end: Callable[[Link, str], None]) -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        called: list[str] = []
        replies = [pair.near.call(method) for method in "abc"]
        for reply in replies:
            reply.add_done_callback(lambda reply: called.append(reply.method))
        pair.near.on_ended(lambda link, ending: called.append("end"))
        interrupt(lambda: end(pair.near, "over"))
        end(pair.near, "over")
        # The callback of the end that is being called when the interrupt arrives is not repeated.
        assert {*"abc"} <= {*called}
        assert all(reply.done() for reply in replies) and pair.near.num_open == 0
        with pytest.raises(FanwiseError):
            pair.near.notify("x")

    at_each_point(scenario)


def test_an_interrupt_at_the_end_of_a_link_leaves_no_descriptor_open() -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        reply = pair.near.call("x")
        pair.far.close()
        interrupt(reply.wait)
        with pytest.raises(FanwiseError):
            reply.result(within_s=10.0)
        assert pair.near._wire.fileno() == -1

    at_each_point(scenario)


def test_an_interrupt_of_a_wait_for_room_leaves_no_descriptor_open() -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        interrupt(lambda: pair.near._writer.wait_for_room(10.0))
        pair.near.close()
        assert pair.near._wire.fileno() == -1

    at_each_point(scenario)


def test_an_interrupt_of_a_wait_for_another_reading_thread_leaves_no_waiter() -> None:
    def scenario(pair: Pair, interrupt: Interrupt) -> None:
        waiters = pair.near._reader.waiters
        interrupt(lambda: waiters.wait_unless("reply", lambda: False, 0.0))
        assert not waiters.asleep

    at_each_point(scenario)


def test_a_reply_that_was_too_late_once_is_too_late_again() -> None:
    pair = Pair()
    reply = pair.near.call("x")
    for _ in range(2):
        with pytest.raises(FanwiseError, match=r"was not answered by .* within 0\.01 s"):
            reply.result(within_s=0.01)
    pair.close()

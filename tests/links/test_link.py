"""A link in the corners: big messages without a hub, peers that never read, interrupts, ends from everywhere."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import pytest
from virtual_clock import VirtualClock

from fanwise.base.errors import ClosedError, DeadlineExceeded, NotSendableError, WireError, WorkerLostError
from fanwise.links import frames
from fanwise.links.codec import dumps
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Reply, Request
from fanwise.links.peers import Ending
from fanwise.links.transports.unix import link_pair
from fanwise.links.transports.wires import SocketWire
from fanwise.testing import within

T = TypeVar("T")

BIG = 4 << 20


@pytest.fixture
def make_hub() -> Iterator[Callable[[str], Hub]]:
    hubs: list[Hub] = []

    def make(name: str) -> Hub:
        hubs.append(Hub(name=name))
        return hubs[-1]

    yield make
    for hub in hubs:
        hub.close()


@pytest.fixture
def a(make_hub: Callable[[str], Hub]) -> Hub:
    return make_hub("a")


@pytest.fixture
def b(make_hub: Callable[[str], Hub]) -> Hub:
    return make_hub("b")


def socket_links(a: Hub, b: Hub) -> tuple[Link, Link]:
    ends = socket.socketpair()
    links = Link(a, SocketWire(ends[0])), Link(b, SocketWire(ends[1]))
    for link in links:
        link.open()
    return links


def with_raw_end(hub: Hub) -> tuple[Link, socket.socket]:
    """A link, and the bare socket at its other end. Who owns the socket closes it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10.0)
    link = Link(hub, SocketWire(ours))
    link.open()
    return link, theirs


def started(work: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def echo(request: Request) -> None:
    request.answer(request.args)


# -- without a hub that reads ------------------------------------------------------------------------------------------


def test_two_undriven_sides_that_send_big_notices_at_once_do_not_wait_for_each_other(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    got: list[tuple[str, int]] = []
    near.handler = lambda request: got.append(("near", request.args[0].nbytes))
    far.handler = lambda request: got.append(("far", request.args[0].nbytes))

    def send(link: Link, hub: Hub) -> None:
        for _ in range(3):
            link.notify("big", np.ones(BIG, np.uint8))
        while len(got) < 6:
            hub.turn(0.01)

    sends = [started(lambda: send(near, a)), started(lambda: send(far, b))]
    for one in sends:
        one.result(20.0)
    assert sorted(got) == [("far", BIG)] * 3 + [("near", BIG)] * 3


def test_two_undriven_sides_may_ask_each_other_at_once(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    near.handler = far.handler = echo
    both = threading.Barrier(2)

    def ask(link: Link, hub: Hub, done: threading.Event, other: threading.Event) -> int:
        both.wait(10.0)
        sums = sum(int(link.ask("echo", np.ones(BIG, np.uint8))[0].sum()) for _ in range(3))
        done.set()
        while not other.is_set():
            hub.turn(0.01)  # who is done still answers the other
        return sums

    first, second = threading.Event(), threading.Event()
    asks = [started(lambda: ask(near, a, first, second)), started(lambda: ask(far, b, second, first))]
    assert [one.result(20.0) for one in asks] == [3 * BIG] * 2


def test_threads_of_an_undriven_side_send_and_wait_on_one_link(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = echo
    b.start()

    def work(number: int) -> int:
        total = 0
        for i in range(20):
            near.notify("note", np.ones(100_000, np.uint8))
            total += int(near.ask("echo", np.full(300_000, i, np.uint8))[0][0])
            total += near.call("echo", number, deadline_s=60.0).result()[0]
        return total

    works = [started(lambda number=number: work(number)) for number in range(6)]  # type: ignore[misc]
    assert [one.result(30.0) for one in works] == [sum(range(20)) + 20 * number for number in range(6)]


class HeldWire:
    """A wire whose poll for room lasts until the test lets it end, though it was hung up."""

    def __init__(self, wire: SocketWire) -> None:
        self._wire = wire
        self.polls, self.may_end = threading.Event(), threading.Event()
        self.was_open: list[bool] = []

    def __getattr__(self, name: str) -> Any:  # Any: what a wire has
        return getattr(self._wire, name)

    def wait_writable(self, timeout_s: float | None) -> bool:
        self.polls.set()
        assert self.may_end.wait(20.0)
        self.was_open.append(self._wire.fileno() >= 0)
        return self._wire.wait_writable(0.0)


def test_a_descriptor_that_is_polled_for_room_is_not_given_back_when_the_link_ends(a: Hub) -> None:
    ours, theirs = socket.socketpair()
    wire = HeldWire(SocketWire(ours))
    link = Link(a, wire)
    link.open()
    with theirs:
        asks = started(lambda: link.ask("nobody", within_s=20.0))  # it reads
        within(20.0, link._reader.lock.locked, "it reads")
        notes = started(lambda: link.notify("note", np.ones(BIG, np.uint8)))  # it polls for room
        assert wire.polls.wait(20.0)
    assert isinstance(asks.exception(20.0), WorkerLostError), "the other side has closed"
    assert wire.fileno() >= 0, "another file could have its number, while it is polled"
    wire.may_end.set()
    notes.exception(20.0)
    assert wire.was_open == [True] and wire.fileno() < 0


def test_a_turn_serves_what_has_come_and_never_blocks(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    near.handler = lambda request: request.answer(np.ones(BIG, np.uint8))  # more than the socket holds
    reply = far.call("give")
    a.turn(1.0)
    assert not reply.done(), "most of the answer waits at its sender, which did not wait for us"
    while not reply.done():
        b.turn(0.0)
        a.turn(0.0)
    assert reply.result().nbytes == BIG


def test_answers_given_while_waiting_are_written_before_the_wait_is_over(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    b.start()
    near.handler = lambda request: request.answer(np.ones(BIG, np.uint8))
    given: list[Reply] = []

    def far_handler(request: Request) -> None:
        given.append(far.call("give"))
        request.answer()  # so the asker is done at once, with most of his own answer still unwritten

    far.handler = far_handler
    near.ask("go", within_s=10.0)
    assert given[0].result(10.0).nbytes == BIG


def test_a_notice_to_a_peer_that_is_gone_finds_the_end_without_a_hub(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    endings: list[Ending] = []
    link.on_ended(lambda link, ending: endings.append(ending))
    theirs.close()
    link.notify("first")
    assert endings == [Ending(False, "the other side ended without a goodbye")]
    with pytest.raises(WorkerLostError, match="'second' cannot be told: the link to process 0 has ended"):
        link.notify("second")


def test_what_a_peer_sent_before_it_went_is_read_before_the_end_is_found(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    got: list[str] = []
    link.handler = lambda request: got.append(request.method)
    theirs.setblocking(True)  # a time limit would wait until the buffer is nearly empty
    for i in range(30):
        theirs.sendall(b"".join(map(bytes, frames.encode(frames.NOTICE, 0, *dumps((f"note {i}", (bytes(3000),)))))))
    theirs.close()
    link.notify("anything")
    assert got == [f"note {i}" for i in range(30)]
    assert link.ending is not None


# -- peers that never read ---------------------------------------------------------------------------------------------


def test_asking_a_peer_that_never_reads_ends_at_its_limit_also_while_it_is_sent(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    with pytest.raises(DeadlineExceeded, match=r"'big' was not answered by process 0 within 0\.05 s"):
        link.ask("big", np.ones(BIG, np.uint8), within_s=0.05)
    with pytest.raises(DeadlineExceeded):
        link.ask("small", within_s=0.05)
    link.close()
    theirs.close()


@pytest.mark.parametrize("way", ["ask", "call", "notify"])
@pytest.mark.parametrize("much", [np.ones(1 << 16, np.uint8), "x" * (1 << 16)], ids=["buffer", "head"])
def test_what_the_other_side_would_refuse_is_not_sent_and_the_link_goes_on(a: Hub, way: str, much: object) -> None:
    left, right = link_pair(a, a, limits=frames.Limits(frame_bytes=1 << 15))
    left.open()
    right.open()
    right.handler = echo
    a.start()
    with pytest.raises(NotSendableError, match=r"a message of \d+ bytes .* is too big: a link takes 32768") as caught:
        getattr(left, way)("echo", much)
    assert "Send tensors and arrays in several calls" in str(caught.value)
    assert left.num_open == 0 and left.ask("echo", 1, within_s=10.0) == (1,)


def test_what_the_other_side_says_that_it_takes_counts(a: Hub) -> None:
    left, right = link_pair(a, a)
    left.open()
    right.open()
    right.handler = echo
    a.start()
    left.peer_takes(1 << 15)
    with pytest.raises(NotSendableError, match="takes 32768 bytes"):
        left.ask("echo", "x" * (1 << 16), within_s=10.0)
    left.peer_takes(right.frame_bytes)
    assert left.ask("echo", 1, within_s=10.0) == (1,)


def test_an_answer_that_the_caller_would_refuse_is_an_error_there_and_the_link_goes_on(a: Hub) -> None:
    left, right = link_pair(a, a, limits=frames.Limits(frame_bytes=1 << 15))
    left.open()
    right.open()
    right.handler = lambda request: request.answer(np.ones(request.args[0], np.uint8))
    a.start()
    with pytest.raises(NotSendableError, match="is too big"):
        left.ask("ones", 1 << 16, within_s=10.0)
    assert len(left.ask("ones", 5, within_s=10.0)) == 5


def test_memory_that_was_lent_to_ask_may_be_changed_after_it_gave_up(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    array = np.ones(BIG, np.uint8)
    with pytest.raises(DeadlineExceeded):
        link.ask("big", array, within_s=0.05)
    array[:] = 0
    reader = frames.FrameReader(frames.Limits())
    got: list[frames.Frame] = []
    asked = started(lambda: link.ask("next", within_s=10.0))
    while len(got) < 2:
        got += reader.filled(theirs.recv_into(reader.space()))
    assert int(np.frombuffer(got[0].buffers[0], np.uint8).sum()) == BIG
    theirs.sendall(frames.encode(frames.REPLY, 2, *dumps("fine"))[0])
    assert asked.result(10.0) == "fine"
    theirs.close()


def test_a_driven_hub_is_not_held_up_by_a_peer_that_never_reads(a: Hub, b: Hub) -> None:
    link, theirs = with_raw_end(a)
    other, far = socket_links(a, b)
    far.handler = echo
    a.start()
    b.start()
    a.call_soon(lambda: link.notify("big", np.ones(BIG, np.uint8)))
    within(10.0, lambda: link._writer.waits, "something waits to be written")
    assert other.ask("echo", 1, within_s=10.0) == (1,)
    link.close()
    theirs.close()


@pytest.mark.parametrize("driven", [True, False])
def test_closing_does_not_wait_for_a_peer_that_never_reads(a: Hub, driven: bool) -> None:
    link, theirs = with_raw_end(a)
    theirs.setblocking(False)
    if driven:
        a.start()
        link.notify("big", np.ones(BIG, np.uint8))
    else:
        with pytest.raises(DeadlineExceeded):
            link.ask("big", np.ones(BIG, np.uint8), within_s=0.01)
    started(lambda: link.close("enough")).result(10.0)
    assert link.ending == Ending(True, "enough")
    theirs.close()


def test_a_close_from_another_thread_wakes_who_is_blocked_in_sending(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    sending = started(lambda: link.notify("big", np.ones(BIG, np.uint8)))
    within(10.0, lambda: link._writer.waits and link._reader.lock.locked(), "it waits for room")
    link.close()
    sending.result(10.0)
    theirs.close()


# -- handlers and callbacks --------------------------------------------------------------------------------------------


def test_waiting_on_the_hubs_own_thread_is_refused_and_nothing_is_sent(a: Hub, b: Hub) -> None:
    near, far = link_pair(a, b)
    near.open()
    got: list[str] = []
    far.handler = lambda request: got.append(request.method)
    far.open()
    failures: list[RuntimeError] = []

    def ask() -> None:
        try:
            near.ask("from the loop")
        except RuntimeError as error:
            failures.append(error)

    a.start()
    a.call_soon(ask)
    within(10.0, lambda: failures, "it was refused")
    assert "waiting for 'from the loop' here would never end" in str(failures[0])
    b.turn()
    assert got == []


def test_a_handler_on_the_thread_of_a_waiting_caller_may_not_wait_either(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    b.start()

    def near_handler(request: Request) -> None:
        near.ask("never", within_s=10.0)

    def far_handler(request: Request) -> None:
        far.call("back").add_done_callback(lambda reply: request.answer(repr(reply._error)))

    near.handler, far.handler = near_handler, far_handler
    assert "waiting for 'never' here would never end" in near.ask("go", within_s=10.0)


def test_a_handler_that_leaves_by_sys_exit_fails_its_call_and_the_hub_goes_on(
    a: Hub, b: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = socket_links(a, b)

    def handler(request: Request) -> None:
        if request.method == "exit":
            raise SystemExit(3)
        request.answer(request.method)

    far.handler = handler
    replies = [near.call(method) for method in ("before", "exit", "after")]
    b.start()  # so that all three come at once
    assert replies[0].result(10.0) == "before"
    with pytest.raises(SystemExit):
        replies[1].result(10.0)
    assert replies[2].result(10.0) == "after"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_notice_that_fails_is_logged_with_its_traceback(a: Hub, b: Hub, caplog: pytest.LogCaptureFixture) -> None:
    near, far = socket_links(a, b)

    def handler(request: Request) -> None:
        raise ValueError("cannot handle it")

    far.handler = handler
    near.notify("note", 1)
    b.turn(1.0)
    (record,) = caplog.records
    assert record.getMessage() == "notice 'note' of process 0 was not handled"
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_an_interrupt_while_waiting_leaves_the_link_whole(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    b.start()
    far.handler = echo
    interrupts = [KeyboardInterrupt()]

    def near_handler(request: Request) -> None:
        if interrupts:
            raise interrupts.pop()

    near.handler = near_handler
    far_reply = far.call("interrupt")
    with pytest.raises(KeyboardInterrupt):
        near.ask("echo", 0, within_s=10.0)
    with pytest.raises(KeyboardInterrupt):
        far_reply.result(10.0)
    assert [near.ask("echo", i, within_s=10.0) for i in range(3)] == [(0,), (1,), (2,)]
    assert near.call("echo", 4, deadline_s=10.0).result() == (4,)


def test_an_interrupt_after_bytes_were_read_loses_none(a: Hub, b: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket_links(a, b)
    hits: list[int] = []
    read_into = near._wire.read_into

    def interrupted(view: memoryview) -> int:
        size = read_into(view)
        if size > 0 and not hits:
            hits.append(size)
            raise KeyboardInterrupt
        return size

    b.start()
    far.handler = echo
    monkeypatch.setattr(near._wire, "read_into", interrupted)
    with pytest.raises(KeyboardInterrupt):
        near.ask("echo", 0, within_s=10.0)
    assert near.ask("echo", 1, within_s=10.0) == (1,)


def test_a_handlers_own_wire_error_is_its_callers_and_ends_no_link(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)

    def handler(request: Request) -> None:
        raise WireError("a bad header in a file")

    far.handler = handler
    b.start()
    with pytest.raises(WireError, match="a bad header in a file"):
        near.ask("read", within_s=10.0)
    with pytest.raises(WireError, match="a bad header in a file"):
        near.ask("read", within_s=10.0)
    assert near.ending is None and far.ending is None


def test_an_answer_that_is_no_pickle_fails_its_call_and_ends_the_link(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    told: list[WireError] = []
    link.on_malformed = told.append
    first, second = link.call("first"), link.call("second")
    theirs.sendall(frames.encode(frames.REPLY, first.call_id, b"\x80\x05\xff")[0])
    with pytest.raises(WireError, match="a message of 3 bytes cannot be read"):
        first.result(10.0)
    with pytest.raises(WorkerLostError):
        second.result(10.0)
    assert len(told) == 1 and link.ending is not None and not link.ending.clean
    theirs.close()


class Unreadable:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return int, ("not a number",)


def test_a_value_that_cannot_be_rebuilt_here_fails_only_its_call(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = lambda request: request.answer(Unreadable() if request.method == "bad" else "good")
    b.start()
    with pytest.raises(ValueError, match="not a number"):
        near.ask("bad", within_s=10.0)
    assert near.ask("good", within_s=10.0) == "good"
    with pytest.raises(ValueError, match="not a number"):  # the other way: the request cannot be read
        near.ask("good", Unreadable(), within_s=10.0)
    assert near.ask("good", within_s=10.0) == "good"


def test_an_answer_that_cannot_be_sent_fails_its_call(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = lambda request: request.answer(lambda: None)
    b.start()
    with pytest.raises(Exception, match="pickle"):
        near.ask("give", within_s=10.0)
    assert far.ending is None


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_many_deadlines_use_one_timer_and_expire_in_order(b: Hub) -> None:
    clock = VirtualClock()
    hub = Hub(clock=clock)
    near, _far = link_pair(hub, b)
    near.open()
    expired: list[int] = []
    for i in range(1000):
        reply = near.call("never", i, deadline_s=100.0 + (i * 7) % 1000)
        reply.add_done_callback(lambda reply, i=i: expired.append((i * 7) % 1000))  # type: ignore[misc]
    hub.turn()
    assert len(hub._timers) <= 2
    for _ in range(1100):
        clock.advance(1.0)
        hub.turn()
        hub.turn()
    assert expired == list(range(1000))
    assert near.num_open == 0 and near._calls._alarm._due_s is None
    hub.close()


def test_a_reply_is_too_late_only_when_its_own_time_has_come(b: Hub) -> None:
    clock = VirtualClock()
    hub = Hub(clock=clock)
    near, _far = link_pair(hub, b)
    near.open()
    early, late, never = near.call("a", deadline_s=1.0), near.call("b", deadline_s=2.0), near.call("c")
    clock.advance(1.5)
    hub.turn()
    hub.turn()
    assert (early.done(), late.done(), never.done()) == (True, False, False)
    with pytest.raises(DeadlineExceeded, match="'a' was not answered by process 0 before its deadline"):
        early.result()
    hub.close()


def test_asking_for_a_result_within_no_time_takes_what_is_there(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = echo
    reply = near.call("echo", 1)
    b.turn(1.0)
    assert reply.result(within_s=0.0) == (1,)
    with pytest.raises(DeadlineExceeded):
        near.call("echo", 2).result(within_s=0.0)


# -- ends --------------------------------------------------------------------------------------------------------------


def test_closing_a_hub_ends_its_links_for_both_sides(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    near.handler = far.handler = lambda request: None
    b.start()
    asked = started(lambda: near.ask("never"))
    within(10.0, lambda: near._reader.lock.locked(), "it waits")
    reply = far.call("never")
    a.close()
    with pytest.raises(ClosedError, match="'never' was not answered"):
        asked.result(10.0)
    with pytest.raises(ClosedError):
        reply.result(10.0)
    with pytest.raises(ClosedError, match="the hub 'a' of process"):
        near.call("more")
    near.close()


def test_a_callback_of_the_end_may_look_at_the_other_replies(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    replies = [near.call("never") for _ in range(3)]
    seen: list[str] = []

    def look(reply: Reply) -> None:
        for other in replies:
            try:
                other.result(within_s=10.0)
            except WorkerLostError as error:
                seen.append(type(error).__name__)

    replies[0].add_done_callback(look)
    far._wire.hang_up()
    a.turn(1.0)
    assert seen == ["WorkerLostError"] * 3


def test_a_link_that_ended_before_it_was_opened_stays_out_of_the_poll(a: Hub, b: Hub) -> None:
    ends = socket.socketpair()
    near, far = Link(a, SocketWire(ends[0])), Link(b, SocketWire(ends[1]))
    before = dict(a._callbacks)
    near.close()
    near.open()
    assert a._callbacks == before
    far.open()
    far.open()
    b.turn(1.0)
    assert far.ending == Ending(True, "closed")


def test_messages_after_a_goodbye_are_not_served(a: Hub) -> None:
    link, theirs = with_raw_end(a)
    got: list[str] = []
    link.handler = lambda request: got.append(request.method)
    note = frames.encode(frames.NOTICE, 0, *dumps(("note", ())))[0]
    theirs.sendall(bytes(note) + bytes(frames.encode(frames.GOODBYE, 0, b"bye")[0]) + bytes(note))
    a.turn(1.0)
    assert got == ["note"] and link.ending == Ending(True, "bye")
    theirs.close()


def test_a_handler_may_close_its_link(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = lambda request: far.close("one is enough")
    b.start()
    replies = [near.call("first"), near.call("second")]
    for reply in replies:
        with pytest.raises(ClosedError, match="one is enough"):
            reply.result(10.0)


def test_a_link_closed_by_this_side_never_looks_lost(a: Hub, b: Hub) -> None:
    a.start()
    b.start()
    for _ in range(100):
        near, far = socket_links(a, b)
        near.close("on purpose")
        within(10.0, lambda far=far: far.ending is not None, "the far side knows")  # type: ignore[misc]
        assert (near.ending, far.ending) == (Ending(True, "on purpose"), Ending(True, "on purpose"))


def test_what_came_in_memory_behind_the_awaited_answer_is_read_by_the_hub(a: Hub, b: Hub) -> None:
    near, far = link_pair(a, b)
    for link in (near, far):
        link.open()
    got: list[str] = []
    near.handler = lambda request: got.append(request.method)
    far.handler = echo
    a.start()
    with near._reader.lock:  # as if somebody were reading, so that the hub leaves it alone
        reply = near.call("echo", 1)
        b.turn()
        far.notify("behind it")
        within(10.0, lambda: not near._reader.is_scheduled, "the hub has tried to read")
    assert reply.result(10.0) == (1,)
    within(10.0, lambda: got == ["behind it"], "the notice is read")


def test_what_came_together_with_the_last_frame_of_a_link_does_not_keep_its_hub(a: Hub) -> None:
    ours, theirs = socket.socketpair()
    link, got = Link(a, SocketWire(ours)), list[int]()

    def take(request: Request) -> None:
        got.append(request.args[0])
        request.link.close()

    link.handler = take
    link.open()
    theirs.sendall(
        b"".join(part for number in (1, 2) for part in frames.encode(frames.NOTICE, 0, *dumps(("note", (number,)))))
    )
    a.turn()
    assert got == [1] and link.ending is not None
    theirs.close()

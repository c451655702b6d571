"""Links in corner cases: big messages without a hub, peers that never read, interrupts, ends at any moment."""

import gc
import logging
import pickle
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from link_contract import started
from listeners import EchoServer
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
    """Return a link and the bare socket at its other end, which the caller closes."""
    end, peer = socket.socketpair()
    peer.settimeout(10.0)
    link = Link(hub, SocketWire(end))
    link.open()
    return link, peer


def echo(request: Request) -> None:
    request.answer(request.args)


# -- without a hub that reads ------------------------------------------------------------------------------------------


def test_big_notices_of_two_undriven_sides_do_not_block_each_other(a: Hub, b: Hub) -> None:
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

    def ask(link: Link, hub: Hub, done: threading.Event, other_done: threading.Event) -> int:
        both.wait(10.0)
        sums = sum(int(link.ask("echo", np.ones(BIG, np.uint8))[0].sum()) for _ in range(3))
        done.set()
        while not other_done.is_set():
            hub.turn(0.01)  # to answer the other side
        return sums

    first, second = threading.Event(), threading.Event()
    asks = [started(lambda: ask(near, a, first, second)), started(lambda: ask(far, b, second, first))]
    assert [one.result(20.0) for one in asks] == [3 * BIG] * 2


class HeldWire:
    """A wire whose poll for room ends when the test says so, even after a hang-up."""

    def __init__(self, wire: SocketWire) -> None:
        self._wire = wire
        self.polls, self.may_end = threading.Event(), threading.Event()
        self.was_open: list[bool] = []

    def __getattr__(self, name: str) -> Any:  # Any: attributes of a wire
        return getattr(self._wire, name)

    def wait_writable(self, timeout_s: float | None) -> bool:
        self.polls.set()
        assert self.may_end.wait(20.0)
        self.was_open.append(self._wire.fileno() >= 0)
        return self._wire.wait_writable(0.0)


def test_descriptor_is_not_closed_while_a_thread_polls_it(a: Hub) -> None:
    end, peer = socket.socketpair()
    wire = HeldWire(SocketWire(end))
    link = Link(a, wire)
    link.open()
    with peer:
        asks = started(lambda: link.ask("nobody", within_s=20.0))
        within(20.0, link._reader.lock.locked, "it reads")
        notes = started(lambda: link.notify("note", np.ones(BIG, np.uint8)))  # it polls for room
        assert wire.polls.wait(20.0)
    assert isinstance(asks.exception(20.0), WorkerLostError), "the other side has closed"
    assert wire.fileno() >= 0, "another file could have its number, while it is polled"
    wire.may_end.set()
    notes.exception(20.0)
    assert wire.was_open == [True] and wire.fileno() < 0


def test_turn_serves_requests_and_never_blocks(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    near.handler = lambda request: request.answer(np.ones(BIG, np.uint8))  # more than the socket holds
    reply = far.call("give")
    a.turn(1.0)
    assert not reply.done(), "most of the answer is still at its sender, which did not block"
    while not reply.done():
        b.turn(0.0)
        a.turn(0.0)
    assert reply.result().nbytes == BIG


def test_answers_of_a_waiting_thread_are_written_before_it_returns(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    b.start()
    near.handler = lambda request: request.answer(np.ones(BIG, np.uint8))
    replies: list[Reply] = []

    def far_handler(request: Request) -> None:
        replies.append(far.call("give"))
        request.answer()  # so `ask` could return at once, with most of its own answer unwritten

    far.handler = far_handler
    near.ask("go", within_s=10.0)
    assert replies[0].result(10.0).nbytes == BIG


def test_notice_to_a_lost_peer_ends_the_link_without_a_hub(a: Hub) -> None:
    link, peer = with_raw_end(a)
    endings: list[Ending] = []
    link.on_ended(lambda link, ending: endings.append(ending))
    peer.close()
    link.notify("first")
    assert endings == [Ending(False, "the other side ended without a goodbye")]
    with pytest.raises(WorkerLostError, match=r"'second' cannot be .*: the link to process 0 has ended"):
        link.notify("second")


def test_messages_sent_before_the_end_are_handled(a: Hub) -> None:
    link, peer = with_raw_end(a)
    got: list[str] = []
    link.handler = lambda request: got.append(request.method)
    peer.setblocking(True)  # a time limit would wait until the buffer is nearly empty
    for i in range(30):
        peer.sendall(b"".join(map(bytes, frames.encode(frames.NOTICE, 0, *dumps((f"note {i}", (bytes(3000),)))))))
    peer.close()
    link.notify("anything")
    assert got == [f"note {i}" for i in range(30)]
    assert link.ending is not None


# -- peers that never read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ask", "call", "notify"])
@pytest.mark.parametrize("large", [np.ones(1 << 16, np.uint8), "x" * (1 << 16)], ids=["buffer", "head"])
def test_too_large_message_is_not_sent_and_the_link_stays(a: Hub, way: str, large: object) -> None:
    left, right = link_pair(a, a)
    left.open()
    right.open()
    right.handler = echo
    a.start()
    left.peer_takes(1 << 15)
    with pytest.raises(NotSendableError, match=r"a message of \d+ bytes .* is too big: a link takes 32768") as caught:
        getattr(left, way)("echo", large)
    assert "Send tensors and arrays in several calls" in str(caught.value)
    assert left.num_open == 0 and left.ask("echo", 1, within_s=10.0) == (1,)


def test_too_large_answer_is_an_error_of_its_call(a: Hub) -> None:
    left, right = link_pair(a, a, limits=frames.Limits(frame_bytes=1 << 15))
    left.open()
    right.open()
    right.handler = lambda request: request.answer(np.ones(request.args[0], np.uint8))
    a.start()
    with pytest.raises(NotSendableError, match="is too big"):
        left.ask("ones", 1 << 16, within_s=10.0)
    assert len(left.ask("ones", 5, within_s=10.0)) == 5


def test_arguments_may_be_changed_after_a_call_timed_out(a: Hub) -> None:
    link, peer = with_raw_end(a)
    array = np.ones(BIG, np.uint8)
    with pytest.raises(DeadlineExceeded, match=r"'big' was not answered by process 0 within 0\.05 s"):
        link.ask("big", array, within_s=0.05)
    array[:] = 0
    reader = frames.FrameReader(frames.Limits())
    got: list[frames.Frame] = []
    future = started(lambda: link.ask("next", within_s=10.0))
    while len(got) < 2:
        got += reader.filled(peer.recv_into(reader.space()))
    assert int(np.frombuffer(got[0].buffers[0], np.uint8).sum()) == BIG
    peer.sendall(frames.encode(frames.REPLY, 2, *dumps("fine"))[0])
    assert future.result(10.0) == "fine"
    peer.close()


def test_peer_that_never_reads_does_not_block_the_hub(a: Hub, b: Hub) -> None:
    link, peer = with_raw_end(a)
    near, far = socket_links(a, b)
    far.handler = echo
    a.start()
    b.start()
    a.call_soon(lambda: link.notify("big", np.ones(BIG, np.uint8)))
    within(10.0, lambda: link._writer.waits, "something waits to be written")
    assert near.ask("echo", 1, within_s=10.0) == (1,)
    link.close()
    peer.close()


@pytest.mark.parametrize("driven", [True, False])
def test_close_does_not_wait_for_a_peer_that_never_reads(a: Hub, driven: bool) -> None:
    link, peer = with_raw_end(a)
    peer.setblocking(False)
    if driven:
        a.start()
        link.notify("big", np.ones(BIG, np.uint8))
    else:
        with pytest.raises(DeadlineExceeded):
            link.ask("big", np.ones(BIG, np.uint8), within_s=0.01)
    started(lambda: link.close("enough")).result(10.0)
    assert link.ending == Ending(True, "enough")
    peer.close()


def test_close_wakes_a_blocked_sender(a: Hub) -> None:
    link, peer = with_raw_end(a)
    sending = started(lambda: link.notify("big", np.ones(BIG, np.uint8)))
    within(10.0, lambda: link._writer.waits and link._reader.lock.locked(), "it waits for room")
    link.close()
    sending.result(10.0)
    peer.close()


# -- handlers and callbacks --------------------------------------------------------------------------------------------


def test_waiting_on_the_hub_thread_is_refused_before_anything_is_sent(a: Hub, b: Hub) -> None:
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


def test_handler_on_the_thread_of_a_waiting_caller_must_not_wait(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    b.start()

    def near_handler(request: Request) -> None:
        near.ask("never", within_s=10.0)

    def far_handler(request: Request) -> None:
        far.call("back").add_done_callback(lambda reply: request.answer(repr(reply._error)))

    near.handler, far.handler = near_handler, far_handler
    assert "waiting for 'never' here would never end" in near.ask("go", within_s=10.0)


def test_sys_exit_in_a_handler_fails_only_its_call(a: Hub, b: Hub, caplog: pytest.LogCaptureFixture) -> None:
    near, far = socket_links(a, b)

    def handler(request: Request) -> None:
        if request.method == "exit":
            raise SystemExit(3)
        request.answer(request.method)

    far.handler = handler
    replies = [near.call(method) for method in ("before", "exit", "after")]
    b.start()  # so that all three arrive at once
    assert replies[0].result(10.0) == "before"
    with pytest.raises(SystemExit):
        replies[1].result(10.0)
    assert replies[2].result(10.0) == "after"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_failure_of_a_notice_is_logged_with_its_traceback(a: Hub, b: Hub, caplog: pytest.LogCaptureFixture) -> None:
    near, far = socket_links(a, b)

    def handler(request: Request) -> None:
        raise ValueError("cannot handle it")

    far.handler = handler
    near.notify("note", 1)
    b.turn(1.0)
    (record,) = caplog.records
    assert record.getMessage() == "notice 'note' of process 0 was not handled"
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_interrupt_while_waiting_leaves_the_link_usable(a: Hub, b: Hub) -> None:
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


def test_interrupt_after_a_read_loses_no_bytes(a: Hub, b: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_wire_error_of_a_handler_is_raised_by_the_call_and_ends_no_link(a: Hub, b: Hub) -> None:
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


def test_answer_that_is_no_pickle_fails_its_call_and_ends_the_link(a: Hub) -> None:
    link, peer = with_raw_end(a)
    errors: list[WireError] = []
    link.on_malformed = errors.append
    first, second = link.call("first"), link.call("second")
    peer.sendall(frames.encode(frames.REPLY, first.call_id, b"\x80\x05\xff")[0])
    with pytest.raises(WireError, match="a message of 3 bytes cannot be read"):
        first.result(10.0)
    with pytest.raises(WorkerLostError):
        second.result(10.0)
    assert len(errors) == 1 and link.ending is not None and not link.ending.clean
    peer.close()


class Unreadable:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return int, ("not a number",)


def test_value_that_cannot_be_loaded_fails_only_its_call(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = lambda request: request.answer(Unreadable() if request.method == "bad" else "good")
    b.start()
    with pytest.raises(ValueError, match="not a number"):
        near.ask("bad", within_s=10.0)
    assert near.ask("good", within_s=10.0) == "good"
    with pytest.raises(ValueError, match="not a number"):  # the other way: the request cannot be read
        near.ask("good", Unreadable(), within_s=10.0)
    assert near.ask("good", within_s=10.0) == "good"


def test_answer_that_cannot_be_pickled_fails_its_call(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = lambda request: request.answer(lambda: None)
    b.start()
    with pytest.raises(Exception, match="pickle"):
        near.ask("give", within_s=10.0)
    assert far.ending is None


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_calls_expire_at_their_own_deadlines(b: Hub) -> None:
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


def test_result_within_zero_seconds_reads_an_answer_that_has_arrived(a: Hub, b: Hub) -> None:
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
    future = started(lambda: near.ask("never"))
    within(10.0, lambda: near._reader.lock.locked(), "it waits")
    reply = far.call("never")
    a.close()
    with pytest.raises(ClosedError, match="'never' was not answered"):
        future.result(10.0)
    with pytest.raises(ClosedError):
        reply.result(10.0)
    with pytest.raises(ClosedError, match="the hub 'a' of process"):
        near.call("more")
    near.close()


def test_done_callback_at_the_end_of_a_link_may_read_other_replies(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    replies = [near.call("never") for _ in range(3)]
    errors: list[str] = []

    def read_others(reply: Reply) -> None:
        for each_reply in replies:
            try:
                each_reply.result(within_s=10.0)
            except WorkerLostError as error:
                errors.append(type(error).__name__)

    replies[0].add_done_callback(read_others)
    far._wire.hang_up()
    a.turn(1.0)
    assert errors == ["WorkerLostError"] * 3


def test_link_that_ended_before_open_is_not_polled(a: Hub, b: Hub) -> None:
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


def test_messages_after_a_goodbye_are_not_handled(a: Hub) -> None:
    link, peer = with_raw_end(a)
    got: list[str] = []
    link.handler = lambda request: got.append(request.method)
    note = frames.encode(frames.NOTICE, 0, *dumps(("note", ())))[0]
    peer.sendall(bytes(note) + bytes(frames.encode(frames.GOODBYE, 0, b"bye")[0]) + bytes(note))
    a.turn(1.0)
    assert got == ["note"] and link.ending == Ending(True, "bye")
    peer.close()


def test_hub_reads_the_messages_behind_an_awaited_answer(a: Hub, b: Hub) -> None:
    near, far = link_pair(a, b)
    for link in (near, far):
        link.open()
    got: list[str] = []
    near.handler = lambda request: got.append(request.method)
    far.handler = echo
    a.start()
    with near._reader.lock:  # as if another thread were reading
        reply = near.call("echo", 1)
        b.turn()
        far.notify("behind it")
        within(10.0, lambda: not near._reader.is_scheduled, "the hub has tried to read")
    assert reply.result(10.0) == (1,)
    within(10.0, lambda: got == ["behind it"], "the notice is read")


def test_frames_behind_the_last_handled_one_are_dropped(a: Hub) -> None:
    end, peer = socket.socketpair()
    link, got = Link(a, SocketWire(end)), list[int]()

    def take(request: Request) -> None:
        got.append(request.args[0])
        request.link.close()

    link.handler = take
    link.open()
    peer.sendall(
        b"".join(part for number in (1, 2) for part in frames.encode(frames.NOTICE, 0, *dumps(("note", (number,)))))
    )
    a.turn()
    assert got == [1] and link.ending is not None
    peer.close()


# -- peers that break the protocol -------------------------------------------------------------------------------------


def next_frame(peer: socket.socket) -> frames.Frame:
    reader, received = frames.FrameReader(frames.Limits()), list[frames.Frame]()
    while not received:
        received += reader.filled(peer.recv_into(reader.space()))
    return received[0]


@pytest.mark.parametrize(
    "head",
    [pickle.dumps(5), pickle.dumps(("method",)), b"", b"cnowhere\nnothing\n."],
    ids=["no pair", "no arguments", "empty", "unknown class"],
)
def test_request_that_cannot_be_read_fails_alone(a: Hub, head: bytes) -> None:
    link, peer = with_raw_end(a)
    link.handler = echo
    a.start()
    with peer:
        peer.sendall(bytes(frames.encode(frames.REQUEST, 1, head)[0]))
        failure = next_frame(peer)
        assert (failure.kind, failure.call_id) == (frames.ERROR, 1)
        peer.sendall(bytes(frames.encode(frames.REQUEST, 2, pickle.dumps(("echo", (2,))))[0]))
        assert pickle.loads(next_frame(peer).head) == (2,)


def test_answers_to_unknown_calls_are_counted_and_ignored(a: Hub) -> None:
    link, peer = with_raw_end(a)
    with peer:
        for call_id in (0, 1, 2**63):
            peer.sendall(bytes(frames.encode(frames.REPLY, call_id, pickle.dumps(None))[0]))
        a.turn(1.0)
        assert link._calls.num_late_answers == 3 and link.ending is None


# -- object lifetimes --------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Objects in reference cycles stay alive."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("size", [1000, 1 << 20], ids=["socket", "shared memory"])
@pytest.mark.parametrize("way", ["ask", "call"])
def test_failed_call_does_not_keep_its_arguments_alive(server: EchoServer, near: Link, way: str, size: int) -> None:
    def fail(request: Request) -> None:
        raise ValueError("it has failed")

    server.handler = fail
    x = np.ones(size)
    reference = weakref.ref(x)
    try:
        near.call(way, x).result(10.0) if way == "call" else near.ask(way, x, within_s=10.0)
    except ValueError:
        del x
    assert reference() is None


class CannotBeLoaded(ValueError):
    """Raised by loading `FailsToLoad`."""


def fail_to_load() -> None:
    raise CannotBeLoaded


class FailsToLoad:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return fail_to_load, ()


@pytest.mark.usefixtures("no_collections")
def test_error_of_an_answer_that_cannot_be_loaded_is_in_no_cycle_with_the_received_bytes(a: Hub, b: Hub) -> None:
    near, far = socket_links(a, b)
    far.handler = lambda request: request.answer(FailsToLoad())
    b.start()
    references: list[weakref.ref[CannotBeLoaded]] = []
    try:
        near.ask("read", within_s=10.0)
    except CannotBeLoaded as error:
        references.append(weakref.ref(error))
    assert [reference() for reference in references] == [None]

"""Counters of links: both ends agree on bytes and calls, latencies are measured, and nothing is counted twice."""

import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_clock import VirtualClock

from fanwise.base.errors import DeadlineExceeded, WindowFullError
from fanwise.links.counts import LATENCY_BOUNDS_S, Latencies, LinkCounts
from fanwise.links.credits import WINDOW_MAX
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.transports.unix import UnixListener, dial, link_pair, new_key
from fanwise.links.transports.wires import SocketWire
from fanwise.testing import within

LIMIT_S = 30.0

NUM_BUCKETS = len(LATENCY_BOUNDS_S) + 1
counts = st.builds(
    LinkCounts,
    *[st.integers(0, 100)] * 6,
    refused=st.dictionaries(st.sampled_from(["malformed", "window_full", "not_allowed"]), st.integers(1, 5)),
    latencies=st.builds(
        Latencies, st.lists(st.integers(0, 9), min_size=NUM_BUCKETS, max_size=NUM_BUCKETS), st.integers(0, 9)
    ),
)


@given(counts, counts)
def test_what_several_links_carried_is_the_sum_of_all_that_each_did(one: LinkCounts, other: LinkCounts) -> None:
    both = one + other
    for field in fields(LinkCounts):
        if field.name == "refused":
            assert all(both.refused[why] == one.refused.get(why, 0) + other.refused.get(why, 0) for why in both.refused)
            assert sum(both.refused.values()) == sum(one.refused.values()) + sum(other.refused.values())
        elif field.name == "latencies":
            assert both.latencies.count == one.latencies.count + other.latencies.count
            assert both.latencies.sum_s == one.latencies.sum_s + other.latencies.sum_s
            for place, number in enumerate(both.latencies.buckets):
                assert number == one.latencies.buckets[place] + other.latencies.buckets[place]
        else:
            assert getattr(both, field.name) == getattr(one, field.name) + getattr(other, field.name)
    assert one + LinkCounts() == one


@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_a_time_is_in_the_first_bucket_that_reaches_it(times_s: list[float]) -> None:
    latencies = Latencies()
    for time_s in times_s:
        latencies.add(time_s)
    for place, bound_s in enumerate(LATENCY_BOUNDS_S):
        assert sum(latencies.buckets[: place + 1]) == sum(time_s <= bound_s for time_s in times_s)
    assert latencies.count == len(times_s)
    assert latencies.sum_s == pytest.approx(sum(times_s))


class Pair:
    """Two ends, each with a hub of its own; calls to `far` wait in `came`, unless it answers."""

    def __init__(self, near: Link, far: Link) -> None:
        self.near, self.far = near, far
        self.came: deque[Request] = deque()
        self.far.handler = self.came.append

    def answers(self) -> None:
        self.far.handler = lambda request: request.answer(request.method)

    def agree(self) -> None:
        """Return True if each end has received all bytes of the other."""
        near, far = self.near, self.far
        within(LIMIT_S, lambda: near.counts().bytes_sent == far.counts().bytes_received, "all came")
        within(LIMIT_S, lambda: far.counts().bytes_sent == near.counts().bytes_received, "and all went back")
        assert near.counts().calls_made == far.counts().calls_received


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    hubs = Hub(name="near"), Hub(name="far")
    for hub in hubs:
        hub.start()
    accepted: list[Link] = []
    key = new_key()
    UnixListener(hubs[1], tmp_path / "hub", key, on_link=accepted.append)
    near = dial(hubs[0], tmp_path / "hub", key)
    within(LIMIT_S, lambda: accepted, "the link was accepted")
    pair = Pair(near, accepted[0])
    for link in (near, accepted[0]):
        link.open()
    yield pair
    for hub in hubs:
        hub.close()


def test_calls_and_bytes_are_the_same_at_both_ends(pair: Pair) -> None:
    pair.answers()
    for number in range(100):
        assert pair.near.ask_on_credit("x" * number) == "x" * number
        pair.near.ask("book-keeping")
        pair.near.notify("a notice")
    assert [pair.near.call_on_credit("y").result(LIMIT_S) for _ in range(50)] == ["y"] * 50
    pair.agree()
    assert pair.near.counts().calls_made == 150 and pair.far.counts().calls_made == 0
    assert 8_000 < pair.near.counts().bytes_sent < 30_000


def test_what_goes_by_shared_memory_counts_as_what_goes_through_the_socket(pair: Pair) -> None:
    pair.answers()
    big = np.zeros(1 << 20, dtype=np.uint8)
    for _ in range(5):  # the first only offers to share
        pair.near.ask_on_credit(("array", big))  # type: ignore[arg-type]  # any value that can be dumped
    pair.agree()
    for link in (pair.near, pair.far):
        assert 5 << 20 < link.counts().bytes_sent < 6 << 20


def test_calls_on_credit_are_timed_and_other_messages_are_not(pair: Pair) -> None:
    pair.answers()
    for _ in range(40):
        pair.near.ask_on_credit("x")
        pair.near.ask("book-keeping")
    assert pair.near.counts().latencies.count == pair.near.counts().calls_made == 40
    assert 0 < pair.near.counts().latencies.sum_s < LIMIT_S
    assert pair.far.counts().latencies.count == 0


def test_a_call_takes_from_when_it_is_sent_until_its_answer_is_read() -> None:
    clock = VirtualClock()
    hub, other = Hub(name="near", clock=clock), Hub(name="far")
    for one in (hub, other):
        one.start()
    pair = Pair(*link_pair(hub, other))
    for link in (pair.near, pair.far):
        link.open()
    reply = pair.near.call_on_credit("x")
    within(LIMIT_S, lambda: pair.came, "it is there")
    clock.advance(0.3)
    pair.came.popleft().answer()
    reply.result()
    latencies = pair.near.counts().latencies
    assert latencies.buckets[LATENCY_BOUNDS_S.index(0.5)] == latencies.count == 1
    assert latencies.sum_s == pytest.approx(0.3)
    for one in (hub, other):
        one.close()


def test_a_call_whose_time_is_over_is_counted_as_such_and_its_answer_is_not_timed(pair: Pair) -> None:
    with pytest.raises(DeadlineExceeded):
        pair.near.ask_on_credit("late", within_s=0.01)
    late = pair.near.call_on_credit("late too", deadline_s=0.01)
    with pytest.raises(DeadlineExceeded):
        late.result(LIMIT_S)
    within(LIMIT_S, lambda: len(pair.came) == 2, "both came")
    for request in pair.came:
        request.answer()
    pair.agree()
    assert pair.near.counts().calls_timed_out == 2
    assert pair.near.counts().latencies.count == 0


def test_a_call_that_does_not_leave_is_none(pair: Pair) -> None:
    full: list[WindowFullError] = []
    pair.near.call_on_credit("x" * WINDOW_MAX)

    def call_on_the_hub() -> None:
        try:
            while True:
                pair.near.call_on_credit("x" * 1000)
        except WindowFullError as error:
            full.append(error)

    pair.near._hub.call_soon(call_on_the_hub)
    within(LIMIT_S, lambda: full, "no more may wait")
    with pytest.raises(DeadlineExceeded):
        pair.near.ask_on_credit("x", within_s=0.01)
    within(LIMIT_S, lambda: len(pair.came) == pair.near.counts().calls_made, "all calls have arrived")
    assert pair.near.counts().refused == {"window_full": 1}
    assert pair.near.num_bytes_not_begun == 0 and pair.far.num_bytes_not_begun > WINDOW_MAX


def test_a_call_that_waits_for_room_is_seen(pair: Pair) -> None:
    pair.near.call_on_credit("x" * WINDOW_MAX)
    waiting = threading.Thread(target=lambda: pair.near.call_on_credit("y"))
    waiting.start()
    within(LIMIT_S, lambda: pair.near.num_waiting == 1 and pair.came, "it waits")
    assert pair.near.counts().calls_made == 1
    pair.came.popleft().answer()
    waiting.join()
    assert pair.near.num_waiting == 0 and pair.near.counts().calls_made == 2


def test_a_link_that_ends_for_bytes_that_nobody_sends_says_so() -> None:
    hub = Hub(name="near")
    hub.start()
    near_counts, far_counts = socket.socketpair()
    link = Link(hub, SocketWire(near_counts))
    link.open()
    far_counts.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    within(LIMIT_S, lambda: link.ending is not None, "it ends")
    assert link.counts().refused == {"malformed": 1}
    far_counts.close()
    hub.close()

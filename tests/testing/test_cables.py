"""The cable that is played between two hosts: what it delays and loses, its rate, and its end."""

import contextlib
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
from cables import Cable, Direction
from networks import PlayedHost, two_hosts, why_not

PACKET = bytes(1250)  # 10,000 bits


def arrivals(way: Direction, until_s: float) -> list[float]:
    """When packets arrive, to a tenth of a millisecond."""
    found, now_s = [], 0.0
    while now_s < until_s:
        while way.due(now_s) is not None:
            found.append(now_s)
        now_s += 1e-4
    return found


def test_packets_arrive_in_order_after_their_delay() -> None:
    way = Direction(Cable(delay_s=0.01), 0)
    for number in range(3):
        way.sent(bytes([number]), number * 0.001)
    assert way.next_s == pytest.approx(0.01) and way.due(0.0099) is None
    assert [way.due(0.02) for _ in range(4)] == [b"\0", b"\1", b"\2", None] and way.next_s is None


def test_so_many_are_lost_and_the_same_ones_again() -> None:
    def lost(seed: int) -> list[int]:
        way, found = Direction(Cable(loss=0.1), seed), []
        for number in range(10_000):
            way.sent(PACKET, 0.0)
            if way.due(1.0) is None:
                found.append(number)
        return found

    assert 900 < len(lost(1)) < 1100 and lost(1) == lost(1) != lost(2)


def test_packets_wait_for_those_before_them_and_those_that_would_wait_long_are_lost() -> None:
    way = Direction(Cable(gbits=0.01), 0)  # a packet takes a millisecond
    for _ in range(200):
        way.sent(PACKET, 0.0)
    found = arrivals(way, 1.0)
    assert len(found) in (50, 51) and found[0] == pytest.approx(0.001, abs=2e-4)
    assert (found[-1] - found[0]) / (len(found) - 1) == pytest.approx(0.001, rel=0.01)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[PlayedHost, PlayedHost]]:
    if why := why_not(with_cable=True):
        pytest.skip(why)
    before = {child.pid for child in psutil.Process().children()}
    with two_hosts(Cable(delay_s=0.01, loss=0.1)) as hosts:
        yield hosts
    assert {child.pid for child in psutil.Process().children()} == before, "its process is gone"


def test_nothing_comes_through_while_it_is_cut_and_both_ends_stay_up(hosts: tuple[PlayedHost, PlayedHost]) -> None:
    with hosts[0].entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with hosts[1].entered():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((hosts[1].address, 0))
    receiver.settimeout(0.1)
    with sender, receiver:

        def came() -> int:
            """How many of 20 packets."""
            for _ in range(20):
                sender.sendto(b"x", receiver.getsockname())
            number = 0
            with contextlib.suppress(TimeoutError):
                while receiver.recv(1):
                    number += 1
            return number

        hosts[1].cut()
        assert came() == 0
        hosts[1].mend()
        assert came() > 5


def test_two_hosts_see_the_delay_and_the_loss(hosts: tuple[PlayedHost, PlayedHost]) -> None:
    ends = []
    for host in hosts:
        with host.entered():
            ends.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        ends[-1].bind((host.address, 0))
        ends[-1].settimeout(0.5)
    a, b = ends
    times, num_lost = [], 0
    for number in range(100):
        began_s = time.perf_counter()
        a.sendto(number.to_bytes(), b.getsockname())
        b.settimeout(0.1)
        try:
            assert b.recv(10) == number.to_bytes()
            times.append(time.perf_counter() - began_s)
        except TimeoutError:
            num_lost += 1
    for end in ends:
        end.close()
    assert min(times) >= 0.01 and 2 <= num_lost <= 25

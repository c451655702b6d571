"""Two workers open links to each other at once, and the end of a link is the loss of its worker.

Real links and event loops in one process, with a fake group.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest

from fanwise.base.errors import WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.transports.wires import SocketWire
from fanwise.rpc.connections import Connections
from fanwise.rpc.hub_thread import OneShot
from fanwise.rpc.membership.members import Member
from fanwise.rpc.worker_info import WorkerInfo
from fanwise.testing import within

LIMIT_S = 30.0


class Side:
    """One of the two workers: its connections, and the methods of a group."""

    def __init__(self, id: int) -> None:
        self.me = Member(f"w{id}", id, 10 + id, "", f"host{id}", 0)
        self.hub = Hub(name=self.me.name)
        self.hub.start()
        self.fenced, self.knows = None, 1
        self.ending, self.former = OneShot(), dict[int, Member]()
        self.suspected: list[str] = []
        self.other: Side
        self.threads: list[threading.Thread] = []
        self.connections = Connections(
            WorkerInfo(self.me.name, id), self.hub, handle=self.handle, waiting=nullcontext, outside=self.outside
        )
        self.connections.joined(cast(Any, self))

    def outside(self, job: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=job))
        self.threads[-1].start()

    def handle(self, sender: WorkerInfo, request: Request) -> None:
        """Reply with the arguments."""
        request.answer(request.args)

    # -- methods of a group --------------------------------------------------------------------------------------------

    def members(self) -> dict[int, Member]:
        return {side.me.id: side.me for side in (self, self.other)}

    def refusal(self, member: Member, incarnation: int, knows: object) -> None:
        return None

    def suspect(self, member: Member, why: str) -> None:
        self.suspected.append(member.name)

    def request_dial(self, member: Member) -> None:
        self.other.outside(partial(self.other.connections.dial_back, self.me))

    def dial(self, member: Member, *, within_s: float) -> Link:
        if self.other.connections.closed:
            raise WorkerLostError("nobody listens there.")
        ours, theirs = socket.socketpair()
        near, far = Link(self.hub, SocketWire(ours)), Link(self.other.hub, SocketWire(theirs))
        self.other.hub.call_soon(lambda: self.other.connections.accept(far))
        far.open()
        return near

    def join(self) -> None:
        """Wait for the jobs that run outside. They end because the connections are closed."""
        while self.threads:
            self.threads.pop().join(LIMIT_S)


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    one, two = Side(0), Side(1)
    one.other, two.other = two, one
    yield one, two
    for side in (one, two):
        side.connections.close()
    for side in (one, two):
        side.join()  # before the hubs: each dials into the other's
    for side in (one, two):
        side.hub.close()
        side.join()


def talk(side: Side, num_calls: int) -> None:
    to = side.other.me.id
    for number in range(num_calls):
        assert side.connections.to(to).ask("echo", number) == (number,)


@pytest.mark.parametrize("_round", range(8))
def test_workers_that_dial_each_other_at_once_answer_every_call(sides: tuple[Side, Side], _round: int) -> None:
    with ThreadPoolExecutor(2) as threads:
        for talking in [threads.submit(talk, side, 40) for side in sides]:
            talking.result(LIMIT_S)
    for side in sides:
        within(LIMIT_S, lambda side=side: side.connections.num_open == 0, "nothing is open")  # type: ignore[misc]


def test_link_that_ends_without_a_goodbye_is_the_loss_of_its_worker(sides: tuple[Side, Side]) -> None:
    one, two = sides
    talk(one, 1)
    link = one.connections.to(1)
    link.lose("its connection was cut, and nobody listens at its address")
    with pytest.raises(WorkerLostError, match=r"w1 .* was lost: its connection was cut"):
        one.connections.to(1)
    assert one.suspected == ["w1"]
    within(LIMIT_S, lambda: two.suspected == ["w0"], "the other side learns of it")
    with pytest.raises(WorkerLostError):
        two.connections.to(0)

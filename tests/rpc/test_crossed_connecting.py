"""Two workers open links to each other at once, and the end of a link is the loss of its worker.

Real links and event loops in one process, with a fake group.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fanwise.base.errors import DeadlineExceeded, WorkerLostError
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
        near_link, far_link = socket.socketpair()
        near, far = Link(self.hub, SocketWire(near_link)), Link(self.other.hub, SocketWire(far_link))
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


class InterruptedLock:
    """A lock whose acquisition is followed by Ctrl-C."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._lock.acquire(blocking, timeout)
        raise KeyboardInterrupt

    def release(self) -> None:
        self._lock.release()

    def is_free(self) -> bool:
        acquired: list[bool] = []
        thread = threading.Thread(target=lambda: acquired.append(self._lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return acquired[0]


def test_an_interrupt_after_the_lock_of_a_link_was_acquired_releases_it(sides: tuple[Side, Side]) -> None:
    lock = InterruptedLock()
    sides[0].connections._connecting[1] = cast(Any, lock)
    with pytest.raises(KeyboardInterrupt):
        sides[0].connections.to(1)
    assert lock.is_free()


def test_a_peer_that_does_not_answer_the_hello_costs_the_time_of_the_caller_only(
    sides: tuple[Side, Side],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(sides[1].connections, "_on_hello", lambda link, request: None)
    ask = Link.ask

    def ask_and_note(link: Any, method: str, *args: object, within_s: float) -> Any:
        limits.append(within_s)
        return ask(link, method, *args, within_s=within_s)

    monkeypatch.setattr(Link, "ask", ask_and_note)
    with pytest.raises(DeadlineExceeded):
        sides[0].connections.to(1, within_s=0.1)
    assert 0 < len(limits) and max(limits) <= 0.1


def test_links_that_are_dialed_before_this_worker_has_joined_are_accepted_when_it_has(
    sides: tuple[Side, Side],
) -> None:
    one, two = sides
    two.connections._group = None
    failures: list[BaseException] = []
    malformed = SimpleNamespace(args=(), fail=failures.append)
    two.connections._early.append((cast(Any, None), cast(Any, malformed)))
    with ThreadPoolExecutor(1) as threads:
        talking = threads.submit(talk, one, 3)
        within(LIMIT_S, lambda: len(two.connections._early) == 2, "the hello has arrived")
        assert not talking.done()
        two.connections.joined(cast(Any, two))
        talking.result(LIMIT_S)
    assert len(failures) == 1 and not two.connections._early

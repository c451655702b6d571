"""Two workers make links to each other while these are cut at any moment: neither waits for what the other would do.

    both dial, greet, and say which links have ended ("over"); a link is cut after so many writes, drawn from a seed
    calls that were open wait to hear what became of the worker, over a new link only: here it is never out of time

Real connections, links and hubs in one process; the group is played, and both are of different hosts.
"""

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest
from torch.futures import Future

from fanwise.base.errors import FanwiseError, LinkLostError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.transports.wires import Buffer, SocketWire
from fanwise.rpc.connections import connections as module
from fanwise.rpc.connections import link_loss
from fanwise.rpc.connections.connections import LINKS_LOST, Connections
from fanwise.rpc.hub_thread import OneShot
from fanwise.rpc.membership.members import Member
from fanwise.rpc.worker_info import WorkerInfo
from fanwise.testing import within

LIMIT_S = 30.0


class CutWire:
    """Ends after so many writes, as when the connection is reset; whoever reads at the other end learns so."""

    def __init__(self, wire: SocketWire, num_writes: float) -> None:
        self._wire = wire
        self._left = num_writes

    def __getattr__(self, name: str) -> Any:  # Any: whatever a wire has
        return getattr(self._wire, name)

    def write(self, parts: Sequence[Buffer]) -> int:
        self._left -= 1
        if self._left < 0:
            self._wire.hang_up()
            return -1
        return self._wire.write(parts)


class Side:
    """One of the two workers: its connections, and what it asks of its group."""

    def __init__(self, id: int, chance: random.Random) -> None:
        self.me = Member(f"w{id}", id, 10 + id, "", f"host{id}", 0)
        self.hub = Hub(name=self.me.name)
        self.hub.start()
        self.fenced, self.has_left, self.knows = None, False, 1
        self.ending, self.former = OneShot(), dict[int, Member]()
        self.chance = chance
        self.cuts_left = 0
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
        """As an agent does."""
        if request.method == LINKS_LOST:
            done: Future[None] = self.connections.on_peer_lost_links(sender, request.args[0])
            done.add_done_callback(lambda _: request.answer(None))
        else:
            request.answer(request.args)

    # -- as a group ----------------------------------------------------------------------------------------------------

    def members(self) -> dict[int, Member]:
        return {side.me.id: side.me for side in (self, self.other)}

    def refusal(self, member: Member, incarnation: int, knows: object) -> None:
        return None

    def request_dial(self, member: Member) -> None:
        self.other.outside(partial(self.other.connections.dial_back, self.me))

    def dial(self, member: Member, *, within_s: float) -> Link:
        if self.other.connections.closed:
            raise WorkerLostError("nobody listens there.")
        ours, theirs = socket.socketpair()
        near, far = (
            Link(side.hub, cast(Any, side.may_be_cut(end))) for side, end in ((self, ours), (self.other, theirs))
        )
        self.other.hub.call_soon(lambda: self.other.connections.accept(far))
        far.open()
        return near

    def may_be_cut(self, end: socket.socket) -> CutWire:
        self.cuts_left -= 1
        return CutWire(SocketWire(end), self.chance.randrange(6) if self.cuts_left >= 0 else float("inf"))

    def join(self) -> None:
        """Wait for what runs outside; it ends, as the connections are closed."""
        while self.threads:
            self.threads.pop().join(LIMIT_S)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given up for the time that it takes."""
    monkeypatch.setattr(module, "_CONNECT_S", 1e6)
    monkeypatch.setattr(link_loss, "_REMOTE_DECISION_S", 1e6)


def talk(side: Side, num_calls: int, lost: list[str]) -> None:
    """Calls that are made again when their link is cut; `lost` gets what else they raise."""
    to = side.other.me.id
    for number in range(num_calls):
        while True:
            try:
                assert side.connections.to(to).ask("echo", number) == (number,)
                break
            except LinkLostError:
                continue
            except WorkerLostError as error:
                if "cannot be asked" not in error.message:  # else it had just been cut, and the call has not left
                    lost.append(error.message)
                    break
            except FanwiseError as error:
                lost.append(error.message)
                break


@pytest.fixture
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    chance = random.Random(f"{request.param}/cuts")
    one, two = Side(0, chance), Side(1, chance)
    one.other, two.other = two, one
    for side in (one, two):
        side.cuts_left = 12
    yield one, two
    for side in (one, two):
        side.connections.close()
    for side in (one, two):
        side.join()  # before the hubs: each dials into the other's
    for side in (one, two):
        side.hub.close()
        side.join()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sides", range(16), indirect=True)
def test_two_that_connect_while_their_links_are_cut_never_wait_for_each_other(sides: tuple[Side, Side]) -> None:
    lost: list[str] = []
    talking = [threading.Thread(target=talk, args=(side, 40, lost), daemon=True) for side in sides]
    for thread in talking:
        thread.start()
    within(LIMIT_S, lambda: not any(thread.is_alive() for thread in talking), "every call has an end")
    assert lost == [], "both live"
    assert sum(side.cuts_left for side in sides) < 12, "links were cut"
    for side in sides:
        other = side.other.me
        within(LIMIT_S, lambda side=side, other=other: not side.connections._losses_to_report(other), "all is settled")  # type: ignore[misc]
        within(LIMIT_S, lambda side=side: side.connections.num_open == 0, "nothing is open")  # type: ignore[misc]

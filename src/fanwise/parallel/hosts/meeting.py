"""The processes of a run find each other, and make the links between all of them.

    `met`     rank 0 listens where the launcher says <--join-- the others, each with the address of its own listener
              --who is where--> all
    `met_by`  each tells somebody whom all know, as who has started them, who it is, and hears who is where

    then      each dials those of lower ranks <--hello--      ready --> rank 0 --> go

Links between hosts are TLS with the shared secret, those within a host Unix sockets whose big messages go through
shared memory: the same way as a group of `fanwise.rpc` meets (rpc/rendezvous).
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...base.errors import DeadlineExceeded, JoinError
from ...links import Hub, Link, Request
from ...links.process_state import this_host
from ...pool import LaunchedProcess
from ...rpc.membership.members import Member
from ...rpc.rendezvous.addresses import parse
from ...rpc.rendezvous.choosing import meeting_at
from ...rpc.rendezvous.entrance import Meeting
from .mesh import Mesh

# Processes that a launcher starts begin within a few minutes of each other, also where they load from a slow disk.
_COME_S = 300.0
_AGAIN_S = 0.05
_LEAVE_S = 10.0

# How many runs these processes have made together: a fast one may come to the next before others have left.
_runs = 0


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Who a process is. `host`: the same for those of one host. `run`: the number of the run that it has come to."""

    rank: int
    size: int
    run: int
    address: str
    host: str
    pid: int

    @property
    def called(self) -> str:
        """For people."""
        return f"process {self.rank} of {self.size} (pid {self.pid} on {self.host.partition('/')[0]})"


@dataclass(frozen=True, slots=True)
class MeetingResult:
    """The links to all, and the hosts by rank."""

    mesh: Mesh
    hosts: Mapping[int, str]


class Arrivals:
    """Who has come, as one process hears it before all have. `peers`, `links`: of those that are known, by rank."""

    def __init__(self, info: PeerInfo) -> None:
        self.info = info
        self._changed = threading.Condition()
        self.peers = {info.rank: info}
        self.links: dict[int, Link] = {}
        self.mesh: Mesh | None = None
        self._joining: list[Request] = []
        self._ready: list[Request] = []
        self._refused = ""

    def let_in(self, link: Link, rank: int | None = None) -> None:
        """On the hub's thread; `rank`: whom it was dialled to."""
        known = rank

        def handle(request: Request) -> None:
            nonlocal known
            if self.mesh is not None and known is not None and request.method not in ("join", "hello", "ready"):
                self.mesh.take(known, request)
                return
            with self._changed:
                if request.method in ("join", "hello"):
                    known = self._comes(link, request)
                elif request.method == "ready":
                    self._ready.append(request)
                self._changed.notify_all()

        link.handler = handle
        link.open()

    def _comes(self, link: Link, request: Request) -> int | None:
        its: PeerInfo = request.args[0]
        if (its.size, its.run) != (self.info.size, self.info.run) or not 0 <= its.rank < its.size:
            request.fail(
                JoinError(
                    f"{its.called} has come to run {its.run} of {its.size} processes, and {self.info.called} is at "
                    f"run {self.info.run} of {self.info.size}.\nStart all with one launcher and one program."
                )
            )
            return None
        if its.rank in self.links or its.rank == self.info.rank:
            request.fail(JoinError(f"there are two processes of rank {its.rank}; each needs a rank of its own"))
            return None
        self.peers[its.rank], self.links[its.rank] = its, link
        if request.method == "join":
            self._joining.append(request)
        else:
            request.answer(None)
        return its.rank

    def wait_for(self, ranks: range, until_s: float) -> None:
        """Until those have come. Raises JoinError."""
        with self._changed:
            while not set(ranks) <= set(self.links):
                self._sleep(until_s, [rank for rank in ranks if rank not in self.links])

    def tell_who_is_where(self) -> None:
        for request in self._joining:
            request.answer(self.peers)
        self._joining.clear()

    def wait_until_ready(self, until_s: float) -> None:
        with self._changed:
            while len(self._ready) < len(self.links):
                self._sleep(until_s, [])
        for request in self._ready:
            request.answer(None)
        self._ready.clear()

    def _sleep(self, until_s: float, missing: list[int]) -> None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            who = f"of {self.info.size} processes, ranks {', '.join(map(str, missing))} have not come"
            raise JoinError(
                f"{who if missing else 'not all processes have linked up'} within {_COME_S:g} s.\n"
                f"Look at their output; a firewall must let the processes reach each other's ports (FANWISE_PORTS)."
            )
        self._changed.wait(left_s)


# Puts all peers into the arrivals, and perhaps links to some; blocks until it has.
Introduce = Callable[[Hub, Arrivals], None]


@contextmanager
def met(launched: LaunchedProcess, *, goes_on: bool) -> Iterator[MeetingResult]:
    """All processes of the launcher, linked to each other, for one run. Blocks until all have come.

    Raises:
        JoinError: some have not come, or there is something wrong with who has.
        SecretError, AuthenticationError: as `links` does.
    """
    global _runs
    _runs += 1
    where, rank, size = parse(launched.init_method, rank=launched.rank, world_size=launched.world_size)
    assert size is not None, "the launcher tells it"
    meeting = meeting_at(where)
    info = PeerInfo(rank, size, _runs, "", f"{launched.host}/{this_host()}", os.getpid())

    def introduce(hub: Hub, arrivals: Arrivals) -> None:
        until_s = time.monotonic() + _COME_S
        if rank == 0:
            entrance = meeting.try_open(hub, secrets.randbits(63), arrivals.let_in)
            if entrance is None:
                raise JoinError(
                    f"another process listens at {meeting.where.url} already. Give MASTER_PORT a port that is free."
                )
            arrivals.wait_for(range(1, size), until_s)
            arrivals.tell_who_is_where()
            hub.call_soon(entrance.close)
        else:
            first = _first_link(meeting, hub, until_s)
            arrivals.links[0] = first
            arrivals.let_in(first, 0)
            arrivals.peers |= first.ask("join", arrivals.info, within_s=_left_s(until_s))

    with _linked(meeting, info, introduce, goes_on=goes_on) as found:
        yield found


@contextmanager
def met_by(
    tell: Callable[[PeerInfo], Mapping[int, PeerInfo]], info: PeerInfo, meeting: Meeting, *, goes_on: bool
) -> Iterator[MeetingResult]:
    """As `met`, of processes that have somebody whom all can tell who they are.

    Args:
        tell: is given who this process is, with its address; returns all. Blocks until all have come.
        info: of this process, but for the address. meeting: where it listens, and how the others are dialled.
    """

    def introduce(hub: Hub, arrivals: Arrivals) -> None:
        arrivals.peers |= tell(arrivals.info)
        arrivals.info = arrivals.peers[info.rank]

    with _linked(meeting, info, introduce, goes_on=goes_on) as found:
        yield found


@contextmanager
def _linked(meeting: Meeting, info: PeerInfo, introduce: Introduce, *, goes_on: bool) -> Iterator[MeetingResult]:
    hub = Hub(name="hosts")
    hub.start()
    try:
        made: list[Arrivals] = []
        address = meeting.listen(hub, lambda link: made[0].let_in(link))
        arrivals = Arrivals(replace(info, address=address))
        made.append(arrivals)
        introduce(hub, arrivals)
        mesh = _mesh(meeting, hub, arrivals, time.monotonic() + _COME_S, goes_on=goes_on)
        try:
            yield MeetingResult(mesh, {each: its.host for each, its in arrivals.peers.items()})
        finally:
            mesh.leave(_LEAVE_S)
    finally:
        hub.close()


def _mesh(meeting: Meeting, hub: Hub, arrivals: Arrivals, until_s: float, *, goes_on: bool) -> Mesh:
    """Of links to all, who are known."""
    info = arrivals.info
    for rank in range(info.rank):
        if rank not in arrivals.links:
            link = meeting.dial_member(hub, _member(arrivals.peers[rank], info), within_s=_left_s(until_s))
            arrivals.links[rank] = link
            arrivals.let_in(link, rank)
            link.ask("hello", info, within_s=_left_s(until_s))
    arrivals.wait_for(range(info.rank + 1, info.size), until_s)
    mesh = Mesh(
        hub, info.rank, arrivals.links, {rank: its.called for rank, its in arrivals.peers.items()}, goes_on=goes_on
    )
    arrivals.mesh = mesh
    mesh.begin()
    if info.rank == 0:
        arrivals.wait_until_ready(until_s)
    else:
        arrivals.links[0].ask("ready", within_s=_left_s(until_s))
    return mesh


def _first_link(meeting: Meeting, hub: Hub, until_s: float) -> Link:
    """To rank 0, which may begin later than this process."""
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            link = meeting.dial(hub, within_s=min(left_s, 10.0))
        except DeadlineExceeded:
            link = None
        if link is not None:
            return link
        threading.Event().wait(_AGAIN_S)
    raise JoinError(
        f"nobody listens at {meeting.where.url} after {_COME_S:g} s, where rank 0 is to be found.\n"
        f"Look at its output; is MASTER_ADDR an address of its host, and the port open?"
    )


def _member(its: PeerInfo, own: PeerInfo) -> Member:
    """As `Meeting.dial_member` wants it: of this host, if both say so."""
    host = this_host() if its.host == own.host else its.host
    return Member(its.called, its.rank, 0, its.address, host, its.pid)


def _left_s(until_s: float) -> float:
    return max(0.1, until_s - time.monotonic())

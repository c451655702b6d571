"""A group that meets by TLS, as between hosts: here all in one process, over the loopback."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fanwise.base.errors import AuthenticationError, FanwiseError, SecretError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.process_state import this_host
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports.unix import dial
from fanwise.rendezvous.addresses import Address, parse
from fanwise.rendezvous.rendezvous import open_rendezvous
from fanwise.rendezvous.tls import TlsRendezvous
from fanwise.rendezvous.unix import UnixRendezvous
from fanwise.rpc.membership.group import Group
from fanwise.rpc.membership.members import Event, Lost, Member
from fanwise.testing import within

LIMIT_S = 20.0


@pytest.fixture
def where() -> Iterator[Address]:
    """Reserve a loopback port by binding it here, for a listener elsewhere."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield parse(f"tcp://127.0.0.1:{reserved.getsockname()[1]}", rank=0)[0]


@pytest.fixture
def hubs() -> Iterator[list[Hub]]:
    hubs = [Hub(name=f"w{rank}") for rank in range(3)]
    for hub in hubs:
        hub.start()
    yield hubs
    for hub in hubs:
        hub.close()


def join_all(
    hubs: list[Hub], where: Address, secrets: list[str], size: int | None, *, heartbeat_s: float = 30.0
) -> list[Group | Exception]:
    """Return the group of each worker, or its error."""
    got: list[Group | Exception] = [RuntimeError("nothing")] * len(secrets)

    def join(rank: int) -> None:
        meeting = TlsRendezvous(where, secrets[rank])
        address = meeting.listen(hubs[rank], lambda link: None)
        settings = {"name": f"w{rank}", "rank": rank, "address": address, "within_s": LIMIT_S if rank < 2 else 2.0}
        try:
            got[rank] = Group.join(hubs[rank], meeting, world_size=size, heartbeat_s=heartbeat_s, **settings)  # type: ignore[arg-type]
        except FanwiseError as error:
            got[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(len(secrets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_a_static_group_meets_by_tls_and_its_members_reach_each_other(hubs: list[Hub], where: Address) -> None:
    groups = join_all(hubs, where, [new_secret()] * 3, 3)
    assert all(isinstance(group, Group) for group in groups), groups
    joined = [group for group in groups if isinstance(group, Group)]
    assert [member.name for member in joined[2].members().values()] == ["w0", "w1", "w2"]
    joined[2].dial(joined[1].me, within_s=LIMIT_S).close()
    ends = [threading.Thread(target=group.shutdown, kwargs={"graceful": True, "within_s": LIMIT_S}) for group in joined]
    for end in ends:
        end.start()
    for end in ends:
        end.join()


def test_a_stranger_with_another_secret_is_kept_out(hubs: list[Hub], where: Address) -> None:
    ours = new_secret()
    groups = join_all(hubs, where, [ours, ours, new_secret()], None)
    assert isinstance(groups[2], FanwiseError)
    first, second = groups[:2]
    assert isinstance(first, Group) and isinstance(second, Group)
    within(LIMIT_S, lambda: len(first.members()) == 2, "both of ours are there")
    second.shutdown(graceful=False, within_s=LIMIT_S)
    within(LIMIT_S, lambda: len(first.members()) == 1, "one has left")
    first.close()


@contextlib.contextmanager
def standing(hub: Hub) -> Iterator[None]:
    """The hub does nothing meanwhile, as in a process that is stopped or holds the interpreter: its host answers."""
    stands, resume = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        resume.wait(LIMIT_S)

    hub.call_soon(stand)
    assert stands.wait(LIMIT_S)
    try:
        yield
    finally:
        resume.set()


def three_groups(hubs: list[Hub], where: Address) -> tuple[list[Group], dict[str, list[tuple[type[Event], str]]]]:
    """Return three groups and the events that each reports from now on."""
    groups = [
        group for group in join_all(hubs, where, [new_secret()] * 3, 3, heartbeat_s=1.0) if isinstance(group, Group)
    ]
    events: dict[str, list[tuple[type[Event], str]]] = {group.me.name: [] for group in groups}
    for group in groups:
        group.on_event.append(lambda event, me=group.me: events[me.name].append((type(event), event.member.name)))  # type: ignore[misc]
    return groups, events


def test_a_silent_worker_is_lost_and_learns_it_afterwards(hubs: list[Hub], where: Address) -> None:
    groups, events = three_groups(hubs, where)
    with standing(hubs[1]):
        for name in ("w0", "w2"):
            within(LIMIT_S, lambda name=name: events[name] == [(Lost, "w1")], f"{name} knows")  # type: ignore[misc]
        assert [list(group.members()) for group in (groups[0], groups[2])] == [[0, 2], [0, 2]]
    within(LIMIT_S, lambda: groups[1].fenced is not None, "it knows")
    assert "was declared lost by the others: it answered nothing for 1 s" in str(groups[1].fenced)
    for group in groups:
        group.close()


def test_when_rank_0_is_silent_the_group_ends_and_rank_0_has_lost_the_others(hubs: list[Hub], where: Address) -> None:
    groups, events = three_groups(hubs, where)
    with standing(hubs[0]):
        for name, other in (("w1", "w2"), ("w2", "w1")):
            expected = {(Lost, "w0"), (Lost, other)}
            within(LIMIT_S, lambda name=name, expected=expected: set(events[name]) == expected, f"{name} knows")  # type: ignore[misc]
        for group in groups[1:]:
            assert "which coordinates it, was lost: it answered nothing for 1 s" in str(group.fenced)
    within(LIMIT_S, lambda: set(events["w0"]) == {(Lost, "w1"), (Lost, "w2")}, "rank 0 is alone")
    for group in groups:
        group.close()


def links_kept(links: list[Link], link: Link) -> None:
    link.handler = lambda request: request.answer("here")
    links.append(link)


@pytest.fixture
def listening(hubs: list[Hub], where: Address) -> tuple[TlsRendezvous, Member]:
    """Return a rendezvous, and a member that listens on the first hub."""
    meeting = TlsRendezvous(where, new_secret())
    address = meeting.listen(hubs[0], lambda link: links_kept([], link))
    return meeting, Member("w0", 0, 7, address, this_host(), os.getpid())


def pid_reached(meeting: TlsRendezvous, hub: Hub, member: Member) -> int:
    """Return the process ID of the peer as reported by the kernel; 0 over TLS."""
    link = meeting.dial_member(hub, member.address, member.host, within_s=LIMIT_S)
    link.open()
    assert link.ask("where", within_s=LIMIT_S) == "here"
    return link.peer.pid


def test_a_neighbour_is_reached_through_its_unix_socket(
    hubs: list[Hub], listening: tuple[TlsRendezvous, Member]
) -> None:
    meeting, member = listening
    assert pid_reached(meeting, hubs[1], member) == os.getpid()


def test_one_of_another_network_is_reached_by_tls_though_its_socket_is_there(
    hubs: list[Hub], listening: tuple[TlsRendezvous, Member]
) -> None:
    meeting, member = listening
    assert pid_reached(meeting, hubs[1], replace(member, host=f"{member.host}'s neighbour")) == 0


@pytest.mark.parametrize("path", ["", " /nowhere/w-1", " /dev/null"], ids=["none", "gone", "other"])
def test_a_neighbour_whose_socket_cannot_be_reached_is_reached_by_tls(
    hubs: list[Hub], listening: tuple[TlsRendezvous, Member], path: str
) -> None:
    meeting, member = listening
    address = " ".join(member.address.split()[:2]) + path
    assert pid_reached(meeting, hubs[1], replace(member, address=address)) == 0


def test_a_neighbours_socket_takes_only_who_holds_the_secret(
    hubs: list[Hub], where: Address, listening: tuple[TlsRendezvous, Member]
) -> None:
    _, member = listening
    stranger = TlsRendezvous(where, new_secret())
    with pytest.raises(AuthenticationError):
        stranger.dial_member(hubs[1], member.address, member.host, within_s=LIMIT_S)
    with pytest.raises(WorkerLostError, match="did not accept our key"):
        dial(hubs[1], Path(member.address.split(" ", 2)[2]), stranger._key, within_s=LIMIT_S)


def test_another_hosts_address_needs_a_secret() -> None:
    far = Address("tcp://198.51.100.7:29500", "198.51.100.7:29500", "198.51.100.7", 29500, is_here=False)
    with pytest.raises(SecretError, match="there is no secret") as caught:
        open_rendezvous(far, environment={})
    assert "fanwise secret" in str(caught.value) and "FANWISE_SECRET" in str(caught.value)


def test_a_secret_in_the_environment_means_tls_and_none_means_unix_sockets(where: Address) -> None:
    assert isinstance(open_rendezvous(where, environment={"FANWISE_SECRET": new_secret()}), TlsRendezvous)
    with contextlib.suppress(FanwiseError):  # where another user owns the folder
        assert isinstance(open_rendezvous(where, environment={}), UnixRendezvous)

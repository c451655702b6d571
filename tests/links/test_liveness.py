"""Detection of silent hosts: a peer that does not read is alive, and a cut cable ends links in every state."""

import functools
import socket
from collections.abc import Iterator

import pytest
from networks import PlayedHost, two_hosts, why_not
from virtual_clock import VirtualClock

from fanwise.base.errors import WorkerLostError
from fanwise.links.frames import Limits
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.peers import Ending
from fanwise.links.security.certificates import Identity
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports import liveness
from fanwise.links.transports.liveness import PortProbe, TcpState, TcpWatch, tcp_state
from fanwise.links.transports.tcp import TcpListener, dial_tcp, set_options
from fanwise.testing import within

OURS = Identity(new_secret())
LIMIT_S = 30.0
BIG = bytes(32 << 20)
LIMITS = Limits(frame_bytes=1 << 30)


class Pair:
    """Two hubs, and links between them as they are asked for."""

    def __init__(self) -> None:
        self.hubs = Hub(name="a"), Hub(name="b")
        self.arrived: list[Link] = []
        self.listener: TcpListener | None = None

    def listen(self, host: str) -> None:
        self.listener = TcpListener(self.hubs[0], host, 0, OURS, on_link=self._arrive, limits=LIMITS, silence_s=3.0)
        for hub in self.hubs:
            hub.start()

    def _arrive(self, link: Link) -> None:
        link.handler = lambda request: request.answer(len(request.args))
        self.arrived.append(link)

    def dial(self) -> Link:
        """A link that reads nothing until it is opened."""
        assert self.listener is not None, "listen first"
        number = len(self.arrived)
        link = dial_tcp(self.hubs[1], self.listener.host, self.listener.port, OURS, limits=LIMITS, silence_s=3.0)
        link.handler = lambda request: request.answer(len(request.args))
        within(LIMIT_S, lambda: len(self.arrived) > number, "it has arrived")
        return link


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    for hub in pair.hubs:
        hub.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[TcpState | None]:
    """Record the checks of all watches in this test."""
    seen: list[TcpState | None] = []
    tcp_state = liveness.tcp_state

    def look(connection: socket.socket) -> TcpState | None:
        seen.append(tcp_state(connection))
        return seen[-1]

    monkeypatch.setattr(liveness, "tcp_state", look)
    return seen


def test_a_peer_that_does_not_read_for_long_loses_nothing(pair: Pair, looks: list[TcpState | None]) -> None:
    pair.listen("127.0.0.1")
    link = pair.dial()
    replies = [pair.arrived[0].call("echo", BIG) for _ in range(2)]
    within(LIMIT_S, lambda: len(looks) >= 16, "both sides looked for eight seconds")
    assert link.ending is None and pair.arrived[0].ending is None
    link.open()
    assert [reply.result(within_s=LIMIT_S) for reply in replies] == [1, 1]


@pytest.mark.parametrize(
    ("looks", "is_lost"),
    [
        ([TcpState(True, 7)] * 4, True),
        ([TcpState(True, 7)] * 3 + [TcpState(True, 8)] * 3, False),
        ([TcpState(True, number) for number in range(9)], False),
        ([TcpState(False, 7)] * 9, False),
        ([TcpState(False, 7)] * 9 + [TcpState(True, 7), TcpState(False, 8)], False),
    ],
    ids=["silent twice", "silent once", "heard of", "owes nothing", "is about to answer"],
)
def test_lost_is_who_owes_an_answer_at_two_looks_running(
    looks: list[TcpState], is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(looks)
    monkeypatch.setattr(liveness, "tcp_state", lambda connection: left.pop(0))
    clock = VirtualClock()
    hub = Hub(clock=clock)
    lost: list[str] = []
    with socket.socket() as connection:
        TcpWatch(hub, lambda: connection, lose=lost.append, silence_s=3.0).begin()
        for _ in looks:
            hub.turn()
            clock.advance(liveness.CHECK_INTERVAL_S)
        hub.turn()
    assert bool(lost) == is_lost and left == []
    hub.close()


def test_the_probes_of_the_other_side_are_signs_of_life() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as idle:
        idle.connect(listener.getsockname())
        other = listener.accept()[0]
        with other:
            set_options(other, silence_s=3.0)
            before = tcp_state(idle)
            assert before is not None and not before.unanswered

            def reasons() -> bool:
                now = tcp_state(idle)
                return now is not None and now.num_packets >= before.num_packets + 2

            within(LIMIT_S, reasons, "it was asked twice whether it is there")


# -- a cable -----------------------------------------------------------------------------------------------------------


@functools.cache
def missing() -> str:
    return why_not()


@pytest.fixture
def hosts() -> Iterator[tuple[PlayedHost, PlayedHost]]:
    if missing():
        pytest.skip(missing())
    with two_hosts() as hosts:
        yield hosts


@pytest.mark.parametrize("end", [0, 1], ids=["here", "there"])
def test_a_cut_cable_ends_idle_busy_and_full_links_on_both_sides(
    pair: Pair, hosts: tuple[PlayedHost, PlayedHost], end: int
) -> None:
    a, b = hosts
    with a.entered():
        pair.listen(a.address)
    with b.entered():
        idle, busy, full = (pair.dial() for _ in range(3))
    for link in (idle, busy):
        link.open()
        assert link.ask("echo", within_s=LIMIT_S) == 0
    waits = pair.arrived[2].call("echo", BIG)  # nobody reads there
    within(LIMIT_S, lambda: pair.arrived[2]._writer.waits, "no more fits")
    hosts[end].cut()
    pending = busy.call("echo", BIG)
    links = [idle, busy, full, *pair.arrived]
    within(LIMIT_S, lambda: all(link.ending is not None for link in links), "all have ended")
    for link in links:
        assert isinstance(link.ending, Ending) and not link.ending.clean
        assert "nothing came from its host for" in link.ending.reason
    for reply in (pending, waits):
        with pytest.raises(WorkerLostError, match="nothing came from its host"):
            reply.result(within_s=LIMIT_S)


# -- a port ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_lets_in_who_connects_while_its_process_lives_though_it_accepts_nobody(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        probe = PortProbe(host, listener.getsockname()[1])
        within(LIMIT_S, lambda: probe.is_open(0.0), "it is let in")
        assert probe.is_open(0.1), "it was let in a moment ago"
    within(LIMIT_S, lambda: not probe.is_open(1.0), "it is refused")
    probe.close()
    probe.close()


@pytest.mark.parametrize("host", ["nowhere at all", "256.1.1.1"])
def test_what_is_no_address_lets_nobody_in(host: str) -> None:
    assert not PortProbe(host, 1).is_open(0.0)


def test_a_host_that_says_nothing_any_more_is_no_sign_of_life() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probe = PortProbe("127.0.0.1", listener.getsockname()[1])
        within(LIMIT_S, lambda: probe.is_open(0.0), "it is let in")
        probe._address = ("192.0.2.1", 9)  # of the addresses that lead nowhere
        probe.is_open(1.0)
        assert not probe.is_open(10.0)
    probe.close()

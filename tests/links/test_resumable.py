"""A link between hosts survives cut connections, and ends when its peer has ended."""

import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cutting_proxy import cutting_proxy

from fanwise.base.errors import WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.peers import Ending
from fanwise.links.security.certificates import Identity
from fanwise.links.session import ACKNOWLEDGE_EVERY_BYTES, KEPT_BYTES_MAX
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports import resumable
from fanwise.links.transports.tcp import TcpListener, dial_tcp
from fanwise.testing import within

OURS = Identity(new_secret())
LIMIT_S = 60.0


class Server:
    """A listener whose links echo the arguments of calls, and count them."""

    def __init__(self) -> None:
        self.hub = Hub(name="server")
        self.links: list[Link] = []
        self.num_calls: Counter[object] = Counter()
        self.listener = TcpListener(self.hub, "127.0.0.1", 0, OURS, on_link=self._on_link)
        self.hub.start()

    def _on_link(self, link: Link) -> None:
        link.handler = self._handle
        self.links.append(link)

    def _handle(self, request: Request) -> None:
        self.num_calls[request.args[0]] += 1
        request.answer(request.args)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.hub.close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="dialer")
    hub.start()
    yield hub
    hub.close()


def dial(hub: Hub, port: int, **options: str) -> Link:
    link = dial_tcp(hub, "127.0.0.1", port, OURS, within_s=LIMIT_S, **options)  # type: ignore[arg-type]
    link.handler = lambda request: request.answer(request.args)
    link.open()
    return link


def cut(link: Link) -> None:
    """End the connection of a link, as a device between the hosts may do."""
    assert link._resumable is not None
    connection = link._resumable.socket
    assert connection is not None
    connection.shutdown(socket.SHUT_RDWR)


def num_sockets() -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def test_every_call_is_answered_once_while_a_hundred_connections_are_reset(server: Server, hub: Hub) -> None:
    with cutting_proxy(server.listener.port, seed=1, bytes_between=(5_000, 60_000), num_cuts_max=100) as proxy:
        link = dial(hub, proxy.port)
        within(LIMIT_S, lambda: server.links, "the link has arrived")
        far = server.links[0]

        def work(name: str, link: Link) -> int:
            number = 0
            while proxy.num_cuts < 100:
                data = np.full(number * 997 % 50_000, number % 251, np.uint8)
                key, answer = link.ask("echo", f"{name}/{number}", data, within_s=LIMIT_S)
                assert key == f"{name}/{number}" and np.array_equal(answer, data)
                number += 1
            return number

        with ThreadPoolExecutor(4) as threads:
            works = {
                name: threads.submit(work, name, end)
                for name, end in (("a", link), ("b", link), ("c", far), ("d", far))
            }
            numbers = {name: work.result(LIMIT_S) for name, work in works.items()}
        assert link.ending is None and far.ending is None
    assert server.num_calls == {f"{name}/{number}": 1 for name in "ab" for number in range(numbers[name])}


@pytest.mark.parametrize("is_dialer", [True, False])
def test_a_cut_at_either_end_is_repaired_and_leaves_no_socket(server: Server, hub: Hub, is_dialer: bool) -> None:
    link = dial(hub, server.listener.port)
    assert link.ask("echo", 0, within_s=LIMIT_S) == (0,)
    before = num_sockets()
    for number in range(1, 11):
        cut(link if is_dialer else server.links[0])
        assert link.ask("echo", number, within_s=LIMIT_S) == (number,)
    within(LIMIT_S, lambda: num_sockets() <= before + 2, "the sockets of former connections are closed")
    assert len(server.links) == 1 and set(server.num_calls.values()) == {1}


def test_more_than_is_kept_is_sent_over_several_connections(server: Server, hub: Hub) -> None:
    data = np.arange(KEPT_BYTES_MAX, dtype=np.uint32)  # four times as many bytes
    with cutting_proxy(server.listener.port, seed=2, bytes_between=(1 << 20, 8 << 20), num_cuts_max=8) as proxy:
        link = dial(hub, proxy.port)
        _, answer = link.ask("echo", 0, data, within_s=LIMIT_S)
        assert np.array_equal(answer, data) and proxy.num_cuts > 0


def test_an_idle_link_does_not_keep_what_the_peer_has_received(server: Server, hub: Hub) -> None:
    link = dial(hub, server.listener.port)
    link.ask("echo", 0, np.zeros(KEPT_BYTES_MAX // 2, np.uint8), within_s=LIMIT_S)
    assert link._resumable is not None
    kept_link = link._resumable._session._kept
    within(
        LIMIT_S, lambda: sum(len(chunk.data) for chunk in kept_link) < 4 * ACKNOWLEDGE_EVERY_BYTES, "it was released"
    )


def test_a_sender_waits_for_a_peer_that_does_not_read(server: Server, hub: Hub) -> None:
    link = dial(hub, server.listener.port)
    link.ask("echo", 0, within_s=LIMIT_S)
    resume = threading.Event()

    def stand() -> None:
        resume.wait(LIMIT_S)

    server.hub.call_soon(stand)
    reply = link.call("echo", 1, np.zeros(4 * KEPT_BYTES_MAX, np.uint8))
    assert link._resumable is not None
    session, wire = link._resumable._session, link._resumable
    within(LIMIT_S, lambda: not session.has_room or wire.has_unsent, "it waits")
    assert session.num_accepted - session.num_acknowledged <= KEPT_BYTES_MAX
    resume.set()
    assert reply.result(LIMIT_S)[0] == 1


def ending_of(link: Link) -> Ending:
    within(LIMIT_S, lambda: link.ending is not None, "the link ends")
    assert link.ending is not None
    return link.ending


def test_the_dialer_learns_at_once_that_nobody_listens_any_more(server: Server, hub: Hub) -> None:
    link = dial(hub, server.listener.port)
    link.ask("echo", 0, within_s=LIMIT_S)
    server.hub.call_soon(server.listener.close)
    within(LIMIT_S, lambda: server.listener._acceptor._closed, "nobody listens")
    cut(link)
    ending = ending_of(link)
    assert not ending.clean and "nobody listens" in ending.reason
    with pytest.raises(WorkerLostError):
        link.ask("echo", 1, within_s=LIMIT_S)


def test_another_process_at_the_same_port_does_not_continue_a_stream(server: Server, hub: Hub) -> None:
    link = dial(hub, server.listener.port)
    link.ask("echo", 0, within_s=LIMIT_S)
    server.listener._streams.clear()
    cut(link)
    ending = ending_of(link)
    assert "is another one" in ending.reason


def test_the_listener_gives_up_a_dialer_that_does_not_return(
    server: Server, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = dial(hub, server.listener.port)
    link.ask("echo", 0, within_s=LIMIT_S)
    over = threading.Event()
    monkeypatch.setattr(resumable.ResumableWire, "_connect_once", lambda self, connect: over.wait(LIMIT_S))
    cut(link)
    ending = ending_of(server.links[0])
    assert "did not connect again" in ending.reason
    link.close()
    over.set()


def test_the_listener_waits_for_a_dialer_whose_port_is_open(
    server: Server, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume, connect_once = threading.Event(), resumable.ResumableWire._connect_once

    def connect_later(self: resumable.ResumableWire, connect: object) -> None:
        resume.wait(LIMIT_S)
        connect_once(self, connect)  # type: ignore[arg-type]

    monkeypatch.setattr(resumable.ResumableWire, "_connect_once", connect_later)
    monkeypatch.setattr(resumable, "RETURN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as own:
        link = dial(hub, server.listener.port, listening_at=f"127.0.0.1 {own.getsockname()[1]}")
        link.ask("echo", 0, within_s=LIMIT_S)
        far = server.links[0]._resumable
        assert far is not None
        cut(link)
        within(LIMIT_S, lambda: far._probe is not None and far._probe._is_open, "its port is open")
        resume.set()
        assert link.ask("echo", 1, within_s=LIMIT_S) == (1,)


def test_a_goodbye_ends_the_link_and_nobody_connects_again(server: Server, hub: Hub) -> None:
    link = dial(hub, server.listener.port)
    link.ask("echo", 0, within_s=LIMIT_S)
    server.links[0].close("done")
    assert ending_of(link) == Ending(True, "done")
    assert server.listener._streams == {}

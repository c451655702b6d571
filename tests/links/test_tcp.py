"""Links between hosts: TLS in both directions, versions, ports and addresses. See test_listeners.py for the rest."""

import contextlib
import os
import pickle
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from listeners import HOST, IDENTITY, LIMIT_S, EchoServer, is_closed, record, send
from virtual_clock import VirtualClock

from fanwise.base.errors import AuthenticationError, ClosedError, WireError, WorkerLostError
from fanwise.base.version import VERSION
from fanwise.links import frames
from fanwise.links.frames import Limits, encode
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.security.certificates import Identity
from fanwise.links.security.handshake import HELLO_SIZE, PROTOCOL, hello
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports.resumable import new_opening
from fanwise.links.transports.tcp import TcpListener, dial_tcp
from fanwise.testing import within

REQUEST = bytes(encode(frames.REQUEST, 1, pickle.dumps(("echo", (7,))))[0])


@pytest.fixture
def server(serve: Callable[..., EchoServer]) -> EchoServer:
    return serve("tcp")


# -- strangers ---------------------------------------------------------------------------------------------------------


def with_another_secret() -> ssl.SSLContext:
    context = Identity(new_secret()).context("dialer")
    context.verify_mode = ssl.CERT_NONE
    return context


def test_peer_with_another_certificate_is_refused(server: EchoServer) -> None:
    with contextlib.suppress(ssl.SSLError, ConnectionError), server.secured(with_another_secret()) as stranger:
        send(stranger, hello(VERSION) + REQUEST * 3)
        assert is_closed(stranger)
    within(LIMIT_S, lambda: server.is_refused(not_authentic=1), "it is counted")
    assert server.links == [] and server.serves()


def test_dialer_with_another_secret_gets_an_authentication_error(server: EchoServer, hub: Hub) -> None:
    with pytest.raises(AuthenticationError, match=r"127\.0\.0\.1:\d+ does not hold our secret .*\n.*FANWISE_SECRET"):
        dial_tcp(hub, HOST, server.listener.port, Identity(new_secret()))
    within(LIMIT_S, lambda: server.is_refused(not_authentic=1), "it is counted")


def test_stranger_receives_nothing_that_depends_on_the_secret(server: EchoServer) -> None:
    with server.connect() as stranger:
        greeting = stranger.recv(65536)
        send(stranger, bytes(600))
        rest = b""
        with contextlib.suppress(ConnectionResetError):
            while data := stranger.recv(65536):
                rest += data
    assert greeting[0] == 22 and greeting[5] == 1, "a TLS record with a ClientHello"
    assert len(greeting) == 5 + int.from_bytes(greeting[3:5], "big"), "and nothing else"
    assert rest == b"" or (rest[0] == 21 and len(rest) == 7), "at most an alert"
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = with_another_secret().wrap_bio(received, sent, server_side=True)

    def shake_hands(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            received.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            connection.sendall(sent.read())

    with server.connect() as stranger, pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        shake_hands(stranger)
    with pytest.raises(ValueError, match="handshake not done yet"):
        tls.getpeercert()


@contextlib.contextmanager
def man_in_the_middle(port: int, change: Callable[[bytes], bytes]) -> Iterator[tuple[int, bytearray]]:
    """Forward one connection. `change` is applied to the dialer's data. Yields a port, and the data of the dialer."""
    recorded = bytearray()
    ends: list[socket.socket] = []

    def forward(source: socket.socket, target: socket.socket, *, is_dialer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                recorded.extend(data if is_dialer else b"")
                target.sendall(change(data) if is_dialer else data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve_one() -> None:
        with contextlib.suppress(OSError):
            dialer = entrance.accept()[0]
            listener = socket.create_connection((HOST, port))
            ends.extend((dialer, listener))
            back = threading.Thread(target=forward, args=(listener, dialer), kwargs={"is_dialer": False})
            back.start()
            forward(dialer, listener, is_dialer=True)
            back.join()

    with socket.create_server((HOST, 0)) as entrance:
        thread = threading.Thread(target=serve_one)
        thread.start()
        try:
            yield entrance.getsockname()[1], recorded
        finally:
            for end in (entrance, *ends):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            thread.join(20.0)
            for end in ends:
                end.close()


def test_recorded_connection_cannot_be_replayed(server: EchoServer, hub: Hub) -> None:
    with man_in_the_middle(server.listener.port, bytes) as (port, recorded):
        link = dial_tcp(hub, HOST, port, IDENTITY)
        assert link.ask("echo", "hello", within_s=20.0) == ("hello",)
        link.close()
    assert len(recorded) > 500 and b"echo" not in recorded
    with server.connect() as replayer:
        send(replayer, bytes(recorded))
        assert is_closed(replayer)
    assert server.is_refused(not_authentic=1) and len(server.links) == 1


def test_changed_byte_ends_the_link_and_is_counted(server: EchoServer, hub: Hub) -> None:
    is_changing = threading.Event()

    def change(data: bytes) -> bytes:
        return bytes([*data[:-1], data[-1] ^ 1]) if is_changing.is_set() else data

    with man_in_the_middle(server.listener.port, change) as (port, _):
        link = dial_tcp(hub, HOST, port, IDENTITY)
        assert link.ask("echo", 1, within_s=20.0) == (1,)
        is_changing.set()
        with pytest.raises(WorkerLostError):
            link.ask("echo", 2, within_s=20.0)
    within(LIMIT_S, lambda: server.is_refused(malformed=1), "it is counted")
    within(LIMIT_S, lambda: server.endings, "the link has ended")
    assert len(server.endings) == 1 and server.endings[0].startswith("data from the peer failed the checks of TLS")


def block_hub(hub: Hub) -> threading.Event:
    """Keep the hub's thread busy until the event is set."""
    free = threading.Event()
    hub.call_soon(lambda: void(free.wait(20.0)))
    return free


def void(_: object) -> None:
    """Drop the value of an expression."""


def test_handshakes_continue_while_the_thread_of_the_links_is_busy(server: EchoServer) -> None:
    free = block_hub(server.hub)
    try:
        with server.connect() as stranger:
            send(stranger, b"GET / HTTP/1.1\r\n\r\n")
            assert is_closed(stranger)
        assert server.is_refused(not_authentic=1)
    finally:
        free.set()


def test_authenticated_peer_is_closed_if_the_listener_closes_before_its_link_is_made(server: EchoServer) -> None:
    free = block_hub(server.hub)
    try:
        with server.authenticated() as peer:
            within(LIMIT_S, lambda: server.listener._acceptor._authenticated, "its link is about to be made")
            server.hub.call_soon(server.listener.close)
            server.hub._soon.rotate(1)  # so that the listener closes first
            free.set()
            assert is_closed(peer)
    finally:
        free.set()
    assert server.links == []


# -- peers that hold the secret ----------------------------------------------------------------------------------------


def frames_from(peer: socket.socket, count: int) -> list[frames.Frame]:
    """Read the answer to the opening, then `count` frames."""

    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += peer.recv(size - len(data)) or pytest.fail("the connection has ended")
        return data

    read(9)
    reader = frames.FrameReader(Limits())
    received: list[frames.Frame] = []
    while len(received) < count:
        data = read(struct.unpack("<IQ", read(12))[0])
        while data:
            space = reader.space()
            size = min(len(space), len(data))
            space[:size], data = data[:size], data[size:]
            received += reader.filled(size)
    return received


def test_request_in_one_segment_with_the_hello_is_answered(server: EchoServer) -> None:
    with server.secured() as peer:
        peer.sendall(hello(VERSION) + new_opening("").encode() + record(REQUEST))
        assert peer.recv(HELLO_SIZE) == hello(VERSION)
        assert pickle.loads(frames_from(peer, 1)[0].head) == (7,)


def test_hello_may_arrive_byte_by_byte(server: EchoServer) -> None:
    with server.secured() as peer:
        for byte in hello(VERSION) + new_opening("").encode():
            peer.sendall(bytes([byte]))
        assert peer.recv(HELLO_SIZE) == hello(VERSION)
        server.link()


def test_record_is_read_to_its_end_if_no_other_follows(server: EchoServer) -> None:
    requests = [encode(frames.REQUEST, i, pickle.dumps(("echo", (i,))), [memoryview(bytes(3000))]) for i in (1, 2)]
    data = b"".join(part for parts in requests for part in parts)
    table = frames.HEADER.size + 8
    with server.authenticated() as peer:
        peer.sendall(record(data[:table]))  # now each part is received straight into its own memory
        peer.sendall(record(data[table:]))
        assert [pickle.loads(answer.head) for answer in frames_from(peer, 2)] == [(1,), (2,)]


def test_peer_without_a_hello_is_dropped_at_the_time_limit(serve: Callable[..., EchoServer]) -> None:
    clock = VirtualClock()
    server = serve("tcp", clock=clock)
    with server.secured() as silent:
        assert silent.recv(HELLO_SIZE) == hello(VERSION)
        server.listener._acceptor.hub.call_soon(lambda: clock.advance(LIMIT_S))
        assert is_closed(silent)
    assert server.is_refused(half_open=1)


@pytest.mark.parametrize("data", [b"x" * HELLO_SIZE, REQUEST + bytes(HELLO_SIZE)], ids=["letters", "a frame"])
def test_peer_with_another_hello_is_malformed(server: EchoServer, data: bytes) -> None:
    with server.secured() as peer:
        peer.sendall(data)
        assert is_closed(peer)
    assert server.is_refused(malformed=1) and server.links == []


def test_dialer_of_another_version_receives_our_hello_and_is_refused(server: EchoServer) -> None:
    with server.secured() as dialer:
        dialer.sendall(hello("9.9.9", PROTOCOL + 1))
        assert dialer.recv(HELLO_SIZE) == hello(VERSION)
        assert is_closed(dialer)
    assert server.is_refused(other_version=1) and server.links == []


def test_listener_of_another_version_is_reported_with_both_versions(hub: Hub) -> None:
    def serve_one() -> None:
        with IDENTITY.context("listener").wrap_socket(listener.accept()[0]) as secured:
            secured.sendall(hello("9.9.9", PROTOCOL + 1))
            secured.recv(HELLO_SIZE)
            is_closed(secured)

    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve_one)
        thread.start()
        text = (
            f"127.0.0.1:{port} runs fanwise 9.9.9 \\(protocol {PROTOCOL + 1}\\), this process {VERSION} "
            f"\\(protocol {PROTOCOL}\\).\nInstall the same version"
        )
        with pytest.raises(WireError, match=text):
            dial_tcp(hub, HOST, port, IDENTITY)
        thread.join()


# -- ports and addresses -----------------------------------------------------------------------------------------------


def ignore(link: Link) -> None:
    """Drop an arrived link."""


def test_first_free_port_of_a_range_is_used(hub: Hub) -> None:
    first = TcpListener(hub, HOST, 0, IDENTITY, on_link=ignore)
    second = TcpListener(hub, HOST, f"{first.port}-{first.port + 50}", IDENTITY, on_link=ignore)
    assert first.port < second.port <= first.port + 50
    with pytest.raises(OSError, match=f"no port of {first.port}-{first.port} is free at 127.0.0.1"):
        TcpListener(hub, HOST, f"{first.port}-{first.port}", IDENTITY, on_link=ignore)
    first.close()
    assert TcpListener(hub, HOST, first.port, IDENTITY, on_link=ignore).port == first.port


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_listening_on_all_interfaces_is_refused(hub: Hub, host: str) -> None:
    with pytest.raises(ValueError, match="means all interfaces of this machine"):
        TcpListener(hub, host, 0, IDENTITY, on_link=ignore)


def test_links_work_over_ipv6(serve: Callable[..., EchoServer]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = serve("tcp", host="::1")
    assert server.listener.host == "::1" and server.serves()


def test_peers_are_named_by_their_addresses(server: EchoServer, hub: Hub) -> None:
    link = server.dial(hub)
    far = server.link()
    assert (link.peer.pid, link.peer.uid) == (0, -1) == (far.peer.pid, far.peer.uid)
    assert re.fullmatch(r"the process at 127\.0\.0\.1:\d+", str(far.peer))
    link.close()
    with pytest.raises(ClosedError, match=rf"the link to the process at 127\.0\.0\.1:{server.listener.port} has ended"):
        link.call("echo")


def test_keepalive_probes_are_enabled_and_unread_data_has_no_time_limit(server: EchoServer, hub: Hub) -> None:
    def options_of(link: Link) -> list[int]:
        with socket.socket(fileno=os.dup(link._wire.fileno())) as connection:
            names = (socket.TCP_NODELAY, socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT)
            return [connection.getsockopt(socket.IPPROTO_TCP, name) for name in names]

    assert options_of(server.dial(hub, silence_s=7.0)) == [1, 0, 1, 8]
    assert options_of(server.link()) == [1, 0, 1, 6]

"""A listener between hosts: who is not of the cluster is closed and counted, and good peers are served."""

import contextlib
import os
import pickle
import re
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from virtual_clock import VirtualClock

from fanwise.base.errors import (
    AuthenticationError,
    ClosedError,
    DeadlineExceeded,
    WireError,
    WorkerLostError,
)
from fanwise.base.version import VERSION
from fanwise.links import frames
from fanwise.links.codec import dumps
from fanwise.links.frames import Limits, encode
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.security.certificates import Identity
from fanwise.links.security.handshake import HELLO_SIZE, PROTOCOL, hello
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports import acceptor
from fanwise.links.transports.resumable import new_opening
from fanwise.links.transports.tcp import TcpListener, dial_tcp
from fanwise.testing import within

HOST = "127.0.0.1"
SECRET = new_secret()
OURS = Identity(SECRET)


class Server:
    """A listener whose hub runs in a thread, and that echoes."""

    def __init__(
        self,
        *,
        identity: Identity = OURS,
        handshake_s: float = 30.0,
        host: str = HOST,
        clock: VirtualClock | None = None,
    ) -> None:
        self.hub = Hub(name="server", clock=clock)
        self.links: list[Link] = []
        self.endings: list[str] = []
        self.listener = TcpListener(
            self.hub,
            host,
            0,
            identity,
            on_link=self._arrived,
            limits=Limits(frame_bytes=1 << 30, buffers=8),
            handshake_s=handshake_s,
        )
        self.port = self.listener.port
        self.hub.start()

    def _arrived(self, link: Link) -> None:
        self.links.append(link)
        link.handler = lambda request: request.answer(request.args)
        link.on_ended(lambda link, ending: self.endings.append(ending.reason))

    def is_refused(self, **counts: int) -> bool:
        refused = {str(why): count for why, count in self.listener.refused.items()}
        return refused == {why.replace("_", "-"): count for why, count in counts.items()}

    def serves(self, identity: Identity = OURS) -> bool:
        """Whether a good peer gets its answer."""
        hub = Hub(name="good peer")
        try:
            link = dial_tcp(hub, self.listener.host, self.port, identity, within_s=20.0)
            return bool(link.ask("echo", 1, within_s=20.0) == (1,))
        finally:
            hub.close()

    def connect(self) -> socket.socket:
        return socket.create_connection((self.listener.host, self.port), 20.0)

    def secured(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """A connection whose dialer has done its part of the handshake."""
        return context.wrap_socket(self.connect(), server_side=context.protocol == ssl.PROTOCOL_TLS_SERVER)

    def authenticated(self) -> ssl.SSLSocket:
        """Return a raw connection with the secret, after both hellos and the opening of a stream."""
        connection = self.secured(OURS.context("dialer"))
        connection.sendall(hello(VERSION) + new_opening("").encode())
        assert connection.recv(HELLO_SIZE) == hello(VERSION)
        return connection


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(**settings: object) -> Server:
        servers.append(Server(**settings))  # type: ignore[arg-type]  # the test names them right
        return servers[-1]

    yield start
    for server in servers:
        server.hub.close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def is_closed(connection: socket.socket) -> bool:
    """Reads what the other side sent, up to the end that must come: of the connection, not only of what TLS says."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while connection.recv(65536):
            pass
    with contextlib.suppress(ConnectionResetError):
        while socket.socket.recv(connection, 65536):
            pass
    return True


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
        connection.sendall(data)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, int]]:
        return os.mkdir, (str(self.path), 0o700)


# -- strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"fanwise1" + bytes(64),
        bytes(5000),
        b"\x16\x03\x01\x02\x00" + secrets.token_bytes(512),
        b"\x17\x03\x03\x00\x10" + bytes(16),
    ],
    ids=["http", "another protocol of ours", "zeros", "half a greeting in TLS", "data before a greeting"],
)
def test_a_stranger_who_does_not_speak_tls_is_refused(serve: Serve, opening: bytes) -> None:
    server = serve()
    with server.connect() as stranger:
        send(stranger, opening)
        assert is_closed(stranger)
    assert server.is_refused(not_authentic=1) and server.links == []
    assert server.serves()


def test_random_bytes_are_refused(serve: Serve) -> None:
    server = serve()
    for size in (20, 100, 5000):
        with server.connect() as stranger:
            # No version of TLS begins so. By chance it could, and OpenSSL would wait for the length that it reads.
            send(stranger, b"\0\1" + secrets.token_bytes(size))
            assert is_closed(stranger)
    assert server.is_refused(not_authentic=3) and server.serves()


def test_what_came_together_with_the_hello_is_served(serve: Serve) -> None:
    server = serve()
    head, buffers = dumps(("echo", (7,)))
    with server.secured(OURS.context("dialer")) as peer:
        frame = b"".join(encode(frames.REQUEST, 1, head, buffers))
        peer.sendall(hello(VERSION) + new_opening("").encode() + record(frame))
        assert peer.recv(HELLO_SIZE) == hello(VERSION)
        assert pickle.loads(frames_from(peer, 1)[0].head) == (7,)


def record(data: bytes) -> bytes:
    """A record of a stream."""
    return struct.pack("<IQ", len(data), 0) + data


def frames_from(peer: ssl.SSLSocket, number: int) -> list[frames.Frame]:
    """Read the answer to the opening, then so many frames."""

    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += peer.recv(size - len(data)) or pytest.fail("the connection has ended")
        return data

    read(9)
    reader = frames.FrameReader(Limits())
    answers: list[frames.Frame] = []
    while len(answers) < number:
        data = read(struct.unpack("<IQ", read(12))[0])
        while data:
            space = reader.space()
            size = min(len(space), len(data))
            space[:size], data = data[:size], data[size:]
            answers += reader.filled(size)
    return answers


def with_another_secret() -> ssl.SSLContext:
    context = Identity(new_secret()).context("dialer")
    context.verify_mode = ssl.CERT_NONE
    return context


def with_old_tls() -> ssl.SSLContext:
    context = Identity(SECRET).context("dialer")  # of the cluster, and yet
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_a_stranger_is_shown_nothing_that_comes_from_the_secret(serve: Serve) -> None:
    server = serve()
    shown = []
    for send_first in (b"", client_hello(), bytes(600)):
        with server.connect() as stranger:
            greeting = stranger.recv(65536)
            send(stranger, send_first)
            shown.append((greeting, rest_of(stranger) if send_first else b""))
    for greeting, rest in shown:
        assert greeting[0] == 22 and greeting[5] == 1, "a record of TLS with a client's hello: key and chance, no more"
        assert len(greeting) == 5 + int.from_bytes(greeting[3:5], "big")
        assert rest == b"" or (rest[0] == 21 and len(rest) == 7), "an alert, and no more"
    got, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = with_another_secret().wrap_bio(got, sent, server_side=True)
    with server.connect() as stranger:  # it gets as far as a certificate of its own, and is told that this is none
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            shake_hands(tls, got, sent, stranger)
        with pytest.raises(ValueError, match="handshake not done yet"):
            tls.getpeercert()


def shake_hands(tls: ssl.SSLObject, got: ssl.MemoryBIO, sent: ssl.MemoryBIO, connection: socket.socket) -> None:
    while data := connection.recv(65536):
        got.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        connection.sendall(sent.read())


def client_hello() -> bytes:
    got, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(got, sent, server_hostname="here").do_handshake()
    return sent.read()


def rest_of(connection: socket.socket) -> bytes:
    rest = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            rest += data
    return rest


def test_a_stranger_who_is_a_client_of_tls_is_refused(serve: Serve) -> None:
    server = serve()
    with server.connect() as stranger, pytest.raises((ssl.SSLError, ConnectionError)):
        ssl._create_unverified_context().wrap_socket(stranger)
    within(30.0, lambda: server.is_refused(not_authentic=1), "it is counted")
    assert server.serves()


def test_a_peer_with_another_certificate_is_refused_and_its_pickles_are_not_opened(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    frame = bytes(encode(frames.REQUEST, 1, pickle.dumps(("method", (Trap(tmp_path / "sprung"),))))[0])
    with server.connect() as connection:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            stranger = with_another_secret().wrap_socket(connection, server_side=True)
            send(stranger, hello(VERSION) + frame * 3)
            assert is_closed(stranger)
    within(30.0, lambda: server.is_refused(not_authentic=1), "it is counted")
    assert server.is_refused(not_authentic=1) and server.links == []
    assert server.serves() and not (tmp_path / "sprung").exists()
    with server.authenticated() as peer:
        peer.sendall(record(frame))
        within(30.0, (tmp_path / "sprung").exists, "the same bytes of a peer of the cluster do spring it")


def test_an_older_tls_is_refused_even_with_the_right_certificate(serve: Serve) -> None:
    server = serve()
    with pytest.raises(ssl.SSLError, match="PROTOCOL"), server.connect() as connection:
        with_old_tls().wrap_socket(connection, server_side=True)
    within(30.0, lambda: server.is_refused(not_authentic=1), "it is counted")
    assert server.serves()


@contextlib.contextmanager
def between(port: int, change: Callable[[bytes], bytes]) -> Iterator[tuple[int, bytearray]]:
    """A man in the middle for one connection: its port, and all that the dialer sent. `change` is done to that."""
    recorded = bytearray()
    ends: list[socket.socket] = []

    def carry(source: socket.socket, target: socket.socket, *, recording: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                recorded.extend(data if recording else b"")
                target.sendall(change(data) if recording else data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(entrance: socket.socket) -> None:
        with contextlib.suppress(OSError):
            dialer = entrance.accept()[0]
            listener = socket.create_connection((HOST, port))
            ends.extend((dialer, listener))
            back = threading.Thread(target=carry, args=(listener, dialer), kwargs={"recording": False})
            back.start()
            carry(dialer, listener, recording=True)
            back.join()

    with socket.create_server((HOST, 0)) as entrance:
        thread = threading.Thread(target=serve, args=(entrance,))
        thread.start()
        try:
            yield entrance.getsockname()[1], recorded
        finally:
            with contextlib.suppress(OSError):
                entrance.shutdown(socket.SHUT_RDWR)
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            thread.join(20.0)
            for end in ends:
                end.close()


def test_a_recording_of_a_peer_cannot_be_used_again(serve: Serve, hub: Hub) -> None:
    server = serve()
    with between(server.port, bytes) as (port, recorded):
        link = dial_tcp(hub, HOST, port, OURS)
        assert link.ask("echo", "hello", within_s=20.0) == ("hello",)
        link.close()
    assert len(recorded) > 500 and b"echo" not in recorded
    with server.connect() as replayer:
        send(replayer, bytes(recorded))
        assert is_closed(replayer)
    assert server.is_refused(not_authentic=1) and len(server.links) == 1


def test_a_changed_byte_on_the_way_ends_the_link_and_is_counted(serve: Serve, hub: Hub) -> None:
    server = serve()
    spoilt = threading.Event()

    def change(data: bytes) -> bytes:
        return bytes([*data[:-1], data[-1] ^ 1]) if spoilt.is_set() else data

    with between(server.port, change) as (port, _):
        link = dial_tcp(hub, HOST, port, OURS)
        assert link.ask("echo", 1, within_s=20.0) == (1,)
        spoilt.set()
        with pytest.raises(WorkerLostError):
            link.ask("echo", 2, within_s=20.0)
    within(30.0, lambda: server.is_refused(malformed=1), "it is counted")
    within(30.0, lambda: server.endings, "the ending is told")
    assert len(server.endings) == 1 and server.endings[0].startswith("data from the peer failed the checks of TLS")
    assert server.serves()


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
def test_half_a_greeting_and_then_silence_is_dropped_after_its_time(serve: Serve, begin: bytes) -> None:
    server = serve(handshake_s=0.05)
    with server.connect() as silent:
        silent.sendall(begin)
        assert is_closed(silent)
    assert server.is_refused(half_open=1)


def test_a_peer_that_says_no_hello_is_dropped_after_its_time(serve: Serve) -> None:
    clock = VirtualClock()
    server = serve(clock=clock)
    with server.secured(OURS.context("dialer")) as silent:
        assert silent.recv(HELLO_SIZE) == hello(VERSION), "it was accepted as one of ours"
        server.listener._acceptor.hub.call_soon(lambda: clock.advance(30.0))
        assert is_closed(silent)
    assert server.is_refused(half_open=1)


def test_who_connects_and_goes_away_is_counted_as_half_open(serve: Serve) -> None:
    server = serve()
    for begin in (b"", b"\x16\x03\x01"):
        with server.connect() as gone:
            gone.sendall(begin)
    with server.secured(OURS.context("dialer")) as gone:
        gone.sendall(hello(VERSION)[:5])
    within(30.0, lambda: server.is_refused(half_open=3), "all are counted")
    assert server.serves()


def waited(free: threading.Event) -> None:
    free.wait(20.0)


def test_strangers_are_refused_while_the_thread_of_the_links_is_busy(serve: Serve) -> None:
    server, free = serve(), threading.Event()
    server.hub.call_soon(lambda: waited(free))
    try:
        with server.connect() as stranger:
            send(stranger, b"GET / HTTP/1.1\r\n\r\n")
            assert is_closed(stranger)
        assert server.is_refused(not_authentic=1)
    finally:
        free.set()
    assert server.serves()


def test_one_address_has_a_part_of_the_places(serve: Serve) -> None:
    server = serve()
    with contextlib.ExitStack() as crowd:
        for _ in range(acceptor.MAX_PENDING_PER_ADDRESS + 20):
            crowd.enter_context(server.connect())
        within(10.0, lambda: server.is_refused(half_open=20), "the oldest of this address are dropped")
        assert len(server.listener._acceptor.pending) == acceptor.MAX_PENDING_PER_ADDRESS
        assert server.serves()


def test_who_has_proved_itself_when_the_listener_closes_is_turned_away(serve: Serve) -> None:
    server, free = serve(), threading.Event()
    server.hub.call_soon(lambda: waited(free))
    try:
        with server.authenticated() as peer:
            within(30.0, lambda: server.listener._acceptor._authenticated, "it waits to be let in")
            server.hub.call_soon(server.listener.close)
            server.listener._acceptor._link_hub._soon.rotate(1)  # the closing comes before it
            free.set()
            assert is_closed(peer)
    finally:
        free.set()
    assert server.links == []


def test_a_crowd_that_says_nothing_does_not_keep_good_peers_out(serve: Serve) -> None:
    server = serve()
    with contextlib.ExitStack() as crowd:
        for _ in range(2 * acceptor.MAX_PENDING):
            crowd.enter_context(server.connect())
        assert server.serves()
        dropped = server.listener.refused
        within(10.0, lambda: dropped["half-open"] >= acceptor.MAX_PENDING, "the oldest are dropped")
        assert len(server.listener._acceptor.pending) <= acceptor.MAX_PENDING and server.serves()
    within(10.0, lambda: server.is_refused(half_open=2 * acceptor.MAX_PENDING), "all are counted")


def test_a_dialer_may_come_byte_by_byte(serve: Serve) -> None:
    server = serve()
    sent, got = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = OURS.context("dialer").wrap_bio(got, sent, server_side=True)
    with server.connect() as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def until_done(step: Callable[[], object]) -> object:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    trickle()
                    got.write(slow.recv(65536))

        def trickle() -> None:
            for byte in sent.read():
                slow.sendall(bytes([byte]))

        until_done(tls.do_handshake)
        tls.write(hello(VERSION) + new_opening("").encode())
        trickle()
        assert until_done(lambda: tls.read(HELLO_SIZE)) == hello(VERSION)
        within(30.0, lambda: server.links, "it is welcome")


# -- peers of the cluster that do not fit ------------------------------------------------------------------------------


def test_a_dialer_of_another_version_is_told_ours_and_refused(serve: Serve) -> None:
    server = serve()
    with server.secured(OURS.context("dialer")) as other:
        other.sendall(hello("9.9.9", PROTOCOL + 1))
        assert other.recv(HELLO_SIZE) == hello(VERSION)
        assert is_closed(other)
    assert server.is_refused(other_version=1) and server.links == []
    assert server.serves()


@pytest.mark.parametrize(
    "says",
    [b"x" * HELLO_SIZE, bytes(encode(frames.REQUEST, 1, pickle.dumps(("echo", ())))[0]) + bytes(HELLO_SIZE)],
    ids=["letters", "a frame"],
)
def test_who_holds_the_secret_and_says_no_hello_is_malformed(serve: Serve, says: bytes) -> None:
    server = serve()
    with server.secured(OURS.context("dialer")) as peer:
        peer.sendall(says)
        assert is_closed(peer)
    assert server.is_refused(malformed=1) and server.links == []


def test_garbage_after_the_greeting_closes_the_link_and_is_counted(serve: Serve) -> None:
    server = serve()
    with server.authenticated() as peer:
        peer.sendall(record(b"\0" * 100))
        assert is_closed(peer)
    assert server.is_refused(malformed=1)
    within(30.0, lambda: server.endings, "the ending is told")
    assert len(server.endings) == 1 and server.endings[0].startswith("not a frame")
    assert server.serves()


def test_what_came_in_one_record_is_read_to_its_end_when_nothing_follows(serve: Serve) -> None:
    server = serve()
    requests = [encode(frames.REQUEST, i, pickle.dumps(("echo", (i,))), [memoryview(bytes(3000))]) for i in (1, 2)]
    data = b"".join(part for parts in requests for part in parts)
    table = frames.HEADER.size + 8
    with server.authenticated() as peer:
        peer.sendall(record(data[:table]))  # now each part is received straight into memory of its own
        peer.sendall(record(data[table:]))
        assert [pickle.loads(answer.head) for answer in frames_from(peer, 2)] == [(1,), (2,)]


@contextlib.contextmanager
def impostor(serve_one: Callable[[socket.socket], object]) -> Iterator[int]:
    """Somebody else at a port: `serve_one(connection)` is run for the first who comes."""
    over = threading.Event()

    def serve(entrance: socket.socket) -> None:
        connection = entrance.accept()[0]
        with contextlib.suppress(OSError):
            serve_one(connection)
            over.wait(20.0)
        connection.close()

    with socket.create_server((HOST, 0)) as entrance:
        thread = threading.Thread(target=serve, args=(entrance,))
        thread.start()
        yield entrance.getsockname()[1]
        over.set()
        thread.join()


def test_a_listener_of_another_version_is_named_with_both_versions(hub: Hub) -> None:
    def serve_one(connection: socket.socket) -> None:
        with OURS.context("listener").wrap_socket(connection) as secured:
            secured.sendall(hello("9.9.9", PROTOCOL + 1))
            secured.recv(HELLO_SIZE)

    with impostor(serve_one) as port:
        theirs = f"127.0.0.1:{port} runs fanwise 9.9.9 \\(protocol {PROTOCOL + 1}\\)"
        ours = f"this process {VERSION} \\(protocol {PROTOCOL}\\)"
        with pytest.raises(WireError, match=f"{theirs}, {ours}.\nInstall the same version"):
            dial_tcp(hub, HOST, port, OURS)


# -- dialing ----------------------------------------------------------------------------------------------------------


def test_a_dialer_with_another_secret_learns_so_and_is_counted(serve: Serve, hub: Hub) -> None:
    server = serve()
    with pytest.raises(AuthenticationError, match=r"127\.0\.0\.1:\d+ does not hold our secret .*\n.*FANWISE_SECRET"):
        dial_tcp(hub, HOST, server.port, Identity(new_secret()))
    within(30.0, lambda: server.is_refused(not_authentic=1), "it is counted")


@pytest.mark.parametrize(
    ("serve_one", "error", "text"),
    [
        (lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), AuthenticationError, "does not speak our protocol"),
        (lambda c: c.shutdown(socket.SHUT_RDWR), WorkerLostError, "closed the connection|nobody listens"),
    ],
    ids=["http", "hangs up"],
)
def test_something_else_at_the_port_is_told_apart(
    hub: Hub, serve_one: Callable[[socket.socket], object], error: type[Exception], text: str
) -> None:
    with impostor(serve_one) as port, pytest.raises(error, match=text):
        dial_tcp(hub, HOST, port, OURS)


def test_a_listener_that_says_nothing_is_waited_for_as_long_as_was_said(hub: Hub) -> None:
    with impostor(lambda connection: None) as port:
        with pytest.raises(DeadlineExceeded, match=rf"127\.0\.0\.1:{port} did not answer within 0\.05 s"):
            dial_tcp(hub, HOST, port, OURS, within_s=0.05)


def test_dialing_where_nobody_listens_says_so(hub: Hub) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(WorkerLostError, match=rf"nobody listens at 127\.0\.0\.1:{port}: .*refused"):
        dial_tcp(hub, HOST, port, OURS)


# -- where it listens --------------------------------------------------------------------------------------------------


def ignore(link: Link) -> None:
    """What to do with links that no test waits for."""


def test_the_first_free_port_of_a_range_is_taken(hub: Hub) -> None:
    first = TcpListener(hub, HOST, 0, OURS, on_link=ignore)
    second = TcpListener(hub, HOST, f"{first.port}-{first.port + 50}", OURS, on_link=ignore)
    assert first.port < second.port <= first.port + 50
    with pytest.raises(OSError, match=f"no port of {first.port}-{first.port} is free at 127.0.0.1"):
        TcpListener(hub, HOST, f"{first.port}-{first.port}", OURS, on_link=ignore)
    first.close()
    again = TcpListener(hub, HOST, first.port, OURS, on_link=ignore)
    assert again.port == first.port


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_all_interfaces_are_refused(hub: Hub, host: str) -> None:
    with pytest.raises(ValueError, match="means all interfaces of this machine"):
        TcpListener(hub, host, 0, OURS, on_link=ignore)


def test_an_address_of_another_machine_is_an_error_and_leaves_nothing(hub: Hub) -> None:
    with pytest.raises(OSError, match="assign"):
        TcpListener(hub, "192.0.2.1", 0, OURS, on_link=ignore)


def test_links_work_over_ipv6(serve: Serve) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = serve(host="::1")
    assert server.listener.host == "::1" and server.serves()
    with server.connect() as stranger:
        send(stranger, bytes(100))
        assert is_closed(stranger)
    assert server.is_refused(not_authentic=1)


def test_who_is_at_the_other_end_is_not_known(serve: Serve, hub: Hub) -> None:
    server = serve()
    link = dial_tcp(hub, HOST, server.port, OURS)
    within(30.0, lambda: server.links, "it has arrived")
    assert (link.peer.pid, link.peer.uid) == (0, -1) == (server.links[0].peer.pid, server.links[0].peer.uid)


def test_messages_name_the_peer_by_its_address(serve: Serve, hub: Hub) -> None:
    server = serve()
    link = dial_tcp(hub, HOST, server.port, OURS)
    within(30.0, lambda: server.links, "it has arrived")
    link.close()
    with pytest.raises(ClosedError, match=rf"the link to the process at 127\.0\.0\.1:{server.port} has ended"):
        link.call("echo")
    assert re.fullmatch(r"the process at 127\.0\.0\.1:\d+", str(server.links[0].peer))


def test_idle_peers_are_asked_for_signs_of_life_and_full_ones_have_no_limit(serve: Serve, hub: Hub) -> None:
    server = serve()
    link = dial_tcp(hub, HOST, server.port, OURS, silence_s=7.0)
    within(30.0, lambda: server.links, "it has arrived")

    def options_of(link: Link) -> list[int]:
        connection = socket.socket(fileno=os.dup(link._wire.fileno()))
        with connection:
            names = (socket.TCP_NODELAY, socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT)
            return [connection.getsockopt(socket.IPPROTO_TCP, name) for name in names]

    assert options_of(link) == [1, 0, 1, 8]
    assert options_of(server.links[0]) == [1, 0, 1, 6]


# -- the listener's own life -------------------------------------------------------------------------------------------


def test_a_closed_listener_accepts_nobody_and_its_links_stay(serve: Serve, hub: Hub) -> None:
    server = serve()
    link = dial_tcp(hub, HOST, server.port, OURS)
    within(30.0, lambda: server.links, "it was welcomed")
    with server.connect() as half_open:
        within(30.0, lambda: server.listener._acceptor.pending, "it is being greeted")
        server.hub.call_soon(server.listener.close)
        assert is_closed(half_open)
    assert server.is_refused(half_open=1)
    with pytest.raises(WorkerLostError, match="nobody listens"):
        dial_tcp(hub, HOST, server.port, OURS)
    assert link.ask("echo", 2, within_s=20.0) == (2,)


def test_a_link_that_is_turned_away_on_arrival_ends_for_its_dialer(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    server = Hub(name="server")
    arrivals: list[Link] = []

    def on_link(link: Link) -> None:
        arrivals.append(link)
        if len(arrivals) == 1:
            link.close("not today")
        else:
            raise RuntimeError("this traceback in the log belongs to a test")

    listener = TcpListener(server, HOST, 0, OURS, on_link=on_link)
    server.start()
    for reason in ("not today", "it could not be welcomed"):
        link = dial_tcp(hub, HOST, listener.port, OURS)
        with pytest.raises(ClosedError, match=reason):
            link.ask("hello", within_s=20.0)
    server.close()
    assert [record.getMessage()[:25] for record in caplog.records] == ["server: a callback failed"]


def in_a_fork(work: Callable[[], object]) -> str:
    """What `work` did in a fork of this process: the name of what it raised, or what it returned."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome = str(work())
        except BaseException as error:
            outcome = type(error).__name__
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def sockets_open() -> int:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def test_in_a_fork_links_and_listeners_are_inert(serve: Serve, hub: Hub) -> None:
    server = serve()
    before = sockets_open()
    link = dial_tcp(hub, HOST, server.port, OURS)
    assert link.ask("echo", 1, within_s=20.0) == (1,)
    assert sockets_open() == before + 2
    assert in_a_fork(lambda: link.ask("echo", 2)) == "ClosedError"
    assert in_a_fork(lambda: dial_tcp(hub, HOST, server.port, OURS)) == "ClosedError"
    assert in_a_fork(sockets_open) == str(before - 1), "only the listener's and the link's are closed"

    def close_all() -> None:
        link.close()
        server.listener.close()

    assert in_a_fork(close_all) == "None"
    assert link.ask("echo", 3, within_s=20.0) == (3,) and server.serves()


def test_parts_of_every_size_arrive_as_they_were_sent(serve: Serve, hub: Hub) -> None:
    server = serve()
    link = dial_tcp(hub, HOST, server.port, OURS)
    sizes: Sequence[int] = (0, 1, 4095, 4096, 16383, 16384, 16385, 40000, 131072, 1 << 20)
    values = [bytearray(secrets.token_bytes(size)) for size in sizes]
    for count in range(1, 8):
        assert link.ask("echo", *values[-count:], within_s=20.0) == tuple(values[-count:])
        assert link.ask("echo", *values[:count], within_s=20.0) == tuple(values[:count])

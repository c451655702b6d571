"""Listeners of both transports: strangers are closed and counted, and authenticated peers are served."""

import contextlib
import os
import pickle
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from listeners import HOST, IDENTITY, LIMIT_S, EchoServer, Transport, is_closed, send

from fanwise.base.errors import AuthenticationError, ClosedError, DeadlineExceeded, WorkerLostError
from fanwise.links import frames
from fanwise.links.frames import HEADER, MAGIC, Limits, encode
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.transports import acceptor
from fanwise.links.transports.tcp import dial_tcp
from fanwise.links.transports.unix import dial, new_key
from fanwise.testing import within

Serve = Callable[..., EchoServer]

# Beginnings of a handshake.
INCOMPLETE: dict[Transport, tuple[bytes, ...]] = {
    "unix": (b"", b"fan", b"fanwise1" + bytes(40)),
    "tcp": (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"),
}


@pytest.fixture(params=["unix", "tcp"])
def transport(request: pytest.FixtureRequest) -> Transport:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def server(serve: Serve, transport: Transport) -> EchoServer:
    return serve(transport)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, int]]:
        return os.mkdir, (str(self.path), 0o700)


# -- strangers ---------------------------------------------------------------------------------------------------------

STRANGERS = [
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"fanwise1" + bytes(64),
    bytes(5000),
    b"\x16\x03\x01\x02\x00" + secrets.token_bytes(512),
    b"\x17\x03\x03\x00\x10" + bytes(16),
    # No version of TLS begins like this. OpenSSL would wait for the rest of a record that begins like TLS.
    *(b"\0\1" + secrets.token_bytes(size) for size in (20, 100, 5000)),
]


def test_strangers_are_refused_and_peers_are_served(server: EchoServer) -> None:
    for opening in STRANGERS:
        with server.connect() as stranger:
            send(stranger, opening)
            assert is_closed(stranger)
    assert server.is_refused(not_authentic=len(STRANGERS)) and server.links == []
    assert server.serves() and len(server.links) == 1


def test_pickle_of_a_stranger_is_not_loaded(server: EchoServer, tmp_path: Path) -> None:
    frame = bytes(encode(frames.REQUEST, 1, pickle.dumps(("method", (Trap(tmp_path / "sprung"),))))[0])
    nonce = secrets.token_bytes(32)
    for opening in (b"", b"fanwise1", b"fanwise1" + nonce, b"fanwise1" + nonce + bytes(32)):
        with server.connect() as stranger:
            send(stranger, opening + frame * 3)
            assert is_closed(stranger)
    assert server.is_refused(not_authentic=4) and server.serves()
    assert not (tmp_path / "sprung").exists()
    with server.authenticated() as peer:
        peer.sendall(server.encoded(frame))
        within(LIMIT_S, (tmp_path / "sprung").exists, "the same frame of an authenticated peer is loaded")


def test_incomplete_handshake_is_dropped_at_the_time_limit(serve: Serve, transport: Transport) -> None:
    server = serve(transport, handshake_s=0.05)
    for begin in INCOMPLETE[transport]:
        with server.connect() as silent:
            silent.sendall(begin)
            assert is_closed(silent)
    assert server.is_refused(half_open=3)


def test_disconnect_during_the_handshake_is_counted_as_half_open(server: EchoServer) -> None:
    for begin in INCOMPLETE[server.transport]:
        with server.connect() as connection:
            connection.sendall(begin)
    within(LIMIT_S, lambda: server.is_refused(half_open=3), "all are counted")
    assert server.serves()


def test_many_silent_connections_do_not_keep_peers_out(server: EchoServer) -> None:
    size = 2 * acceptor.MAX_PENDING
    most = acceptor.MAX_PENDING if server.transport == "unix" else acceptor.MAX_PENDING_PER_ADDRESS
    with contextlib.ExitStack() as crowd:
        for _ in range(size):
            crowd.enter_context(server.connect())
        assert server.serves()
        within(
            10.0,
            lambda: server.listener.refused["half-open"] >= size - most,
            "the oldest are dropped before their limit",
        )
        assert len(server.listener._acceptor.pending) <= most and server.serves()
    within(LIMIT_S, lambda: server.is_refused(half_open=size), "all are counted")


# -- authenticated peers that send garbage -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0" * 100, "not a frame"),
        (HEADER.pack(MAGIC, 1, 0, 0, 1, 2**60, 2**60), f"a frame of {2**60} bytes was announced; this link takes 1000"),
        (HEADER.pack(MAGIC, 1, 0, 9, 1, 0, 500), "a frame of 9 buffers was announced; this link takes 8"),
        (bytes(encode(frames.REQUEST, 1, b"\x80\x05\xff")[0]), "a message of 3 bytes cannot be read"),
        (bytes(encode(frames.NOTICE, 0, b"\x80\x05\xff")[0]), "a message of 3 bytes cannot be read"),
        (bytes(encode(frames.REQUEST, 1, pickle.dumps(("m", ()))[:-3])[0]), "a message of 16 bytes cannot be read"),
    ],
    ids=["no frame", "too big", "too many buffers", "no request", "no notice", "half a pickle"],
)
def test_garbage_after_the_handshake_ends_the_link_and_is_counted(
    serve: Serve, transport: Transport, data: bytes, reason: str
) -> None:
    server = serve(transport, limits=Limits(frame_bytes=1000, buffers=8))
    with server.authenticated() as peer:
        peer.sendall(server.encoded(data))
        assert is_closed(peer)
    assert server.is_refused(malformed=1)
    within(LIMIT_S, lambda: server.endings, "the link has ended")
    assert len(server.endings) == 1 and server.endings[0].startswith(reason)
    assert server.links[0].ending is not None and not server.links[0].ending.clean
    assert server.serves()


# -- dialing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def impostor(transport: Transport, folder: Path, data: bytes) -> Iterator[Callable[..., Link]]:
    """Listen with another program that sends `data`. Yields a function that dials it."""
    over = threading.Event()

    def serve_one() -> None:
        with listener.accept()[0] as connection:
            send(connection, data)
            over.wait(20.0)

    with socket.socket(socket.AF_UNIX if transport == "unix" else socket.AF_INET) as listener:
        listener.bind(str(folder / "hub") if transport == "unix" else (HOST, 0))
        listener.listen()
        thread = threading.Thread(target=serve_one)
        thread.start()
        if transport == "unix":
            yield lambda hub, **options: dial(hub, folder / "hub", new_key(), **options)
        else:
            yield lambda hub, **options: dial_tcp(hub, HOST, listener.getsockname()[1], IDENTITY, **options)
        over.set()
        thread.join()


def test_another_protocol_at_the_address_is_an_authentication_error(
    transport: Transport, hub: Hub, tmp_path: Path
) -> None:
    with impostor(transport, tmp_path, b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40)) as dial_it:
        with pytest.raises(AuthenticationError, match="does not speak our protocol"):
            dial_it(hub)


def test_silent_listener_is_given_up_at_the_time_limit(transport: Transport, hub: Hub, tmp_path: Path) -> None:
    with impostor(transport, tmp_path, b"") as dial_it:
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.05 s"):
            dial_it(hub, within_s=0.05)


def test_dialing_without_a_listener_is_a_lost_worker(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match=r"nobody listens at .*/hub: .*No such file.*Its process may have ended"):
        dial(hub, tmp_path / "hub", new_key())
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(WorkerLostError, match=rf"nobody listens at 127\.0\.0\.1:{port}: .*refused"):
        dial_tcp(hub, HOST, port, IDENTITY)


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closed_listener_accepts_no_one_and_its_links_stay(server: EchoServer, hub: Hub) -> None:
    link = server.dial(hub)
    server.link()
    with server.connect() as half_open:
        within(LIMIT_S, lambda: server.listener._acceptor.pending, "the handshake has begun")
        server.hub.call_soon(server.listener.close)
        assert is_closed(half_open)
    assert server.is_refused(half_open=1)
    with pytest.raises(WorkerLostError, match="nobody listens"):
        server.dial(hub)
    assert link.ask("echo", 2, within_s=20.0) == (2,)


def test_link_that_its_owner_closes_on_arrival_ends_for_the_dialer(
    server: EchoServer, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    def on_link(link: Link) -> None:
        arrivals.append(link)
        if len(arrivals) == 1:
            link.close("not today")
        else:
            raise RuntimeError("this traceback in the log belongs to a test")

    arrivals: list[Link] = []
    server.on_link = on_link
    for reason in ("not today", "it could not be welcomed"):
        with pytest.raises(ClosedError, match=reason):
            server.dial(hub).ask("hello", within_s=20.0)
    within(LIMIT_S, lambda: caplog.records, "the failure is logged")
    assert [record.getMessage()[:25] for record in caplog.records] == ["server: a callback failed"]

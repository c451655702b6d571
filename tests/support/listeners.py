"""Listeners of both transports that answer "echo" calls, and raw connections to them."""

import contextlib
import secrets
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from virtual_clock import VirtualClock

from fanwise.base.version import VERSION
from fanwise.links.frames import Limits
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.security.certificates import Identity
from fanwise.links.security.handshake import HELLO_SIZE, DialerHandshake, hello
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports.resumable import new_opening
from fanwise.links.transports.tcp import TcpListener, dial_tcp
from fanwise.links.transports.unix import UnixListener, dial, new_key
from fanwise.testing import within

Transport = Literal["unix", "tcp"]

HOST = "127.0.0.1"
LIMIT_S = 30.0
SECRET = new_secret()
IDENTITY = Identity(SECRET)


class EchoServer:
    """A listener whose hub runs in a thread.

    Attributes:
        on_link: called with each link; by default it keeps the link.
        handler: called for each request. By default it answers "echo" with the arguments and keeps other requests.
        requests: kept requests.
        endings: reasons of the links that have ended.
    """

    def __init__(
        self,
        transport: Transport,
        folder: Path,
        *,
        host: str = HOST,
        handshake_s: float = LIMIT_S,
        limits: Limits = Limits(),
        clock: VirtualClock | None = None,
    ) -> None:
        self.transport = transport
        self.hub = Hub(name="server", clock=clock)
        self.on_link: Callable[[Link], None] = self._on_link
        self.handler: Callable[[Request], None] = self._answer
        self.links: list[Link] = []
        self.requests: list[Request] = []
        self.endings: list[str] = []
        self.path, self.key = folder / "hub", new_key()
        options: Any = {"on_link": lambda link: self.on_link(link), "limits": limits, "handshake_s": handshake_s}
        self.listener: Any  # of either transport
        if transport == "unix":
            self.listener = UnixListener(self.hub, self.path, self.key, **options)
        else:
            self.listener = TcpListener(self.hub, host, 0, IDENTITY, **options)
        self.hub.start()

    def _on_link(self, link: Link) -> None:
        self.links.append(link)
        link.handler = lambda request: self.handler(request)
        link.on_ended(lambda link, ending: self.endings.append(ending.reason))

    def _answer(self, request: Request) -> None:
        if request.method == "echo":
            request.answer(request.args)
        else:
            self.requests.append(request)

    def link(self, number: int = 1) -> Link:
        """Return the link that arrived as number `number`."""
        within(LIMIT_S, lambda: len(self.links) >= number, "the link has arrived")
        return self.links[number - 1]

    def received(self, method: str) -> list[Request]:
        return [request for request in list(self.requests) if request.method == method]

    def is_refused(self, **counts: int) -> bool:
        refused = {str(reason): count for reason, count in self.listener.refused.items()}
        return refused == {reason.replace("_", "-"): count for reason, count in counts.items()}

    def dial(self, hub: Hub, **options: Any) -> Link:
        if self.transport == "unix":
            return dial(hub, self.path, self.key, **options)
        return dial_tcp(hub, self.listener.host, self.listener.port, IDENTITY, **options)

    def serves(self) -> bool:
        """Return True if an authenticated peer gets its answer."""
        hub = Hub(name="good peer")
        try:
            return bool(self.dial(hub, within_s=20.0).ask("echo", 1, within_s=20.0) == (1,))
        finally:
            hub.close()

    def connect(self) -> socket.socket:
        if self.transport == "tcp":
            return socket.create_connection((self.listener.host, self.listener.port), 20.0)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(20.0)
        connection.connect(str(self.path))
        return connection

    def secured(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        """Return a connection after the TLS handshake of the dialer, by default with the secret."""
        return (context or IDENTITY.context("dialer")).wrap_socket(self.connect(), server_side=True)

    def authenticated(self) -> socket.socket:
        """Return a raw connection after a complete handshake."""
        if self.transport == "tcp":
            secured = self.secured()
            secured.sendall(hello(VERSION) + new_opening("").encode())
            assert secured.recv(HELLO_SIZE) == hello(VERSION)
            return secured
        connection = self.connect()
        handshake = DialerHandshake(self.key, secrets.token_bytes(32))
        while not handshake.done:
            connection.sendall(handshake.receive(connection.recv(handshake.wants)))
        return connection

    def encoded(self, data: bytes) -> bytes:
        """Return the bytes that an authenticated connection carries for `data`."""
        return record(data) if self.transport == "tcp" else data


def record(data: bytes) -> bytes:
    """Return a record of a resumable stream."""
    return struct.pack("<IQ", len(data), 0) + data


def send(connection: socket.socket, data: bytes) -> None:
    """Send to a peer that may hang up."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
        connection.sendall(data)


def is_closed(connection: socket.socket) -> bool:
    """Block until the peer has closed the connection itself, not only its TLS session."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while connection.recv(65536):
            pass
    with contextlib.suppress(ConnectionResetError):
        while socket.socket.recv(connection, 65536):
            pass
    return True

"""Links between hosts: listen on one TCP port and dial it, over TLS 1.3 with the certificate of the shared secret.

    dialer                                                         listener
      | ---- TCP ------------------------------------------------->  |  counted, and closed after 5 s
      | <=== TLS 1.3, both with the certificate of the secret ====>  |  (`certificates`; the dialer presents it first)
      | <--- hello ----------------------- hello ----------------->  |  (`hello`)
      | <--- frames ---------------------- frames ---------------->  |  (`tls`, `link`)

Connections that do not authenticate are closed and counted in `listener.refused` (`acceptor`): no byte of them reaches
a pickle, and they raise nothing in this process.
Loads `ssl` and `cryptography`: import this module where a link between hosts is made, not at the head of a file.
"""

import contextlib
import errno
import ipaddress
import logging
import os
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...base.errors import AuthenticationError, DeadlineExceeded, WireError, WorkerLostError
from ..frames import Limits
from ..hub import READ, WRITE, Hub
from ..link import Link
from ..peers import Peer
from ..security.certificates import Identity, Side, is_server
from ..security.handshake import ProtocolMismatch
from .acceptor import Acceptor, Refusal, Refused
from .liveness import TcpWatch
from .resumable import Opening, OpeningReader, ResumableWire, new_opening, open_stream, send_answer
from .tls import Handshake, TlsWire
from .wires import timeout_ms

_log = logging.getLogger(__name__)

# A step of a handshake computes for up to a millisecond, during which no other handshake proceeds.
_ACCEPTED_A_TURN = 16
SILENCE_S = 5.0
_LEFTOVER_BYTES = 1 << 16
_PROBE_EVERY_S = 1

Address = tuple[str, int]

# Errors of OpenSSL if the certificate of either side was not accepted.
_OTHER_SECRET = ("ALERT_UNKNOWN_CA", "ALERT_DECRYPT_ERROR", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
_REFUSED = "a connection of %s was refused as %s: %s. Do both sides hold the same secret, and one version of fanwise?"


class TcpListener:
    """Accepts links at `host`, one of this machine's own addresses, and the first free port of `port`.

    `on_link(link)` runs on the hub's thread and must set `link.handler`.

    Args:
        port: a number, 0 for any free one, or a range like "29600-29700".
        identity: of this process; dialers must have one of the same secret.
        handshake_s: time limit of a handshake.
        silence_s: a link is lost if the peer's host owes a response and sends nothing for this time (`liveness`). A
            process that does not read is not silent: its host acknowledges for it.
        all_interfaces: accept an address that means all interfaces, such as 0.0.0.0.

    Raises `ValueError` for such an address otherwise, `OSError` if no port is free or the address does not
    belong to this machine.

    Attributes:
        host, port: the address of the listener.
        refused: numbers of closed connections by reason.
    """

    def __init__(
        self,
        hub: Hub,
        host: str,
        port: int | str,
        identity: Identity,
        *,
        on_link: Callable[[Link], None],
        limits: Limits = Limits(),
        handshake_s: float = 5.0,
        silence_s: float = SILENCE_S,
        all_interfaces: bool = False,
    ) -> None:
        identity.context("listener")  # created now, because a handshake should not wait for it
        listening = open_listener(host, ports_of(port), all_interfaces=all_interfaces)
        self.host, self.port = address_of(listening.getsockname())
        self._hub = hub
        self._identity = identity
        self._limits = limits
        self._silence_s = silence_s
        self._streams: dict[bytes, ResumableWire] = {}
        self._acceptor = Acceptor(
            hub,
            listening,
            self._begin,
            where=text_of((self.host, self.port)),
            on_link=on_link,
            handshake_s=handshake_s,
            accepted_a_turn=_ACCEPTED_A_TURN,
            handshake_hub=_handshake_hub(hub),
            address_of=_network_of,
        )
        self.refused = self._acceptor.refused
        hub.close_in_fork(self)

    def _begin(self, connection: socket.socket, address: tuple[object, ...]) -> "_TcpHandshake":
        try:
            set_options(connection, self._silence_s)
            handshake = _handshake(connection, self._identity, "listener", text_of(address_of(address)))
        except OSError as error:  # closed by the peer
            raise Refused("half-open") from error
        return _TcpHandshake(handshake, self.refused, self._link)

    def _link(self, wire: TlsWire, opening: Opening, peer: str) -> Link | None:
        """Return a link for a new stream; None for a connection of an old one."""
        stream = self._streams.get(opening.stream_id)
        if stream is not None and opening.number > 0:
            stream.resume(wire, opening)
            return None
        if stream is not None or opening.number > 0:
            send_answer(wire, None)
            wire.close()
            return None
        send_answer(wire, 0)
        stream = self._streams[opening.stream_id] = ResumableWire(self._hub, wire, opening)
        link = _link(self._hub, stream, peer, self._limits, self._silence_s)
        link.on_ended(lambda link, ending: self._forget(opening.stream_id))
        return link

    def _forget(self, stream_id: bytes) -> None:
        self._streams.pop(stream_id, None)

    def close(self) -> None:
        """Stop accepting; links stay. Call it on the hub's thread, or when the hub is stopped. No effect in a fork."""
        self._acceptor.close()

    def close_fork(self) -> None:
        """Close the copies of the descriptors in a forked child."""
        self._acceptor.close_fork()


def _handshake_hub(hub: Hub) -> Hub:
    """Return a hub for handshakes, so that strangers who make this process compute cannot delay calls."""
    handshake_hub = Hub(clock=hub.clock, name="handshakes")
    handshake_hub.start()
    return handshake_hub


def _network_of(address: tuple[Any, ...]) -> str:  # Any: as the kernel has it
    """Return the address that limits apply to. One host has a whole /64 network of IPv6 addresses."""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return str(host) if host.version == 4 else str(ipaddress.ip_network(f"{host}/64", strict=False))


class _TcpHandshake:
    """The handshake of an accepted connection. See `acceptor.PendingHandshake`."""

    def __init__(
        self,
        handshake: Handshake,
        refused: Counter[Refusal],
        link: Callable[[TlsWire, Opening, str], Link | None],
    ) -> None:
        self._handshake = handshake
        self._connection = handshake.connection
        self._refused = refused
        self._link = link
        self._wire: TlsWire | None = None
        self._opening_reader = OpeningReader()
        self._opening: Opening | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def step(self) -> int:
        try:
            if self._wire is None:
                self._wire = self._handshake.step()
            self._opening = self._opening_reader.read(self._wire)
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        except (OSError, WireError) as error:
            reason = _refusal(error)
            # A peer with another secret is often misconfigured. Only the first of a kind warns: strangers must not
            # fill logs.
            is_first = reason in ("not-authentic", "other-version") and not self._refused[reason]
            _log.log(logging.WARNING if is_first else logging.INFO, _REFUSED, self._handshake.peer, reason, error)
            raise Refused(reason) from error
        return READ if self._opening is None else 0

    def link(self) -> Link | None:
        assert self._wire is not None and self._opening is not None, "the last step is done"
        return self._link(self._wire, self._opening, self._handshake.peer)

    def reject(self) -> None:
        # If data is unread when a socket closes, the kernel discards sent data: the TLS alert for the dialer.
        with contextlib.suppress(OSError):
            socket.socket.recv(self._connection, _LEFTOVER_BYTES)
        self._connection.close()

    def close_fork(self) -> None:
        self._connection.close()


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, ProtocolMismatch):
        return "other-version"
    if isinstance(error, WireError):
        return "malformed"
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "not-authentic"
    return "half-open"


def dial_tcp(
    hub: Hub,
    host: str,
    port: int,
    identity: Identity,
    *,
    within_s: float = 10.0,
    limits: Limits = Limits(),
    silence_s: float = SILENCE_S,
    listening_at: str = "",
) -> Link:
    """Connect to the listener at `host` and `port`; both sides prove the secret. Then set `handler` and call `open()`.

    Blocks. Tries all addresses of `host` in turn, each for its share of the time. `within_s` does not limit the
    system's look-up of the name. `silence_s` is as for the listener. `listening_at` is "host port" of a port where this
    process listens, if any: after a cut the listener probes it to find out whether the process still runs.

    Raises `AuthenticationError` if one side does not accept the other's certificate, `WireError` if the listener has
    another version, `WorkerLostError` if nobody listens, the host does not respond or the listener closes the
    connection, `DeadlineExceeded` if the listener does not respond within `within_s` seconds.
    """
    hub.check_usable()
    until_s = time.monotonic() + within_s
    address = text_of((host, port))

    def connect(within_s: float) -> TlsWire:
        until_s = time.monotonic() + within_s
        connection = _connect(host, port, until_s)
        try:
            set_options(connection, silence_s)
            handshake = _handshake(connection, identity, "dialer", f"the listener at {address}")
        except BaseException:
            connection.close()
            raise
        try:
            return _complete(handshake, until_s)
        except BaseException:
            handshake.connection.close()
            raise

    opening = new_opening(listening_at)
    try:
        wire = connect(within_s)
        try:
            open_stream(wire, opening, until_s)
            return _link(hub, ResumableWire(hub, wire, opening, connect=connect), address, limits, silence_s)
        except BaseException:
            wire.close()
            raise
    except TimeoutError as error:
        raise DeadlineExceeded(f"the listener at {address} did not answer within {within_s} s.") from error
    except ssl.SSLError as error:
        raise _dial_error(error, address) from error
    except OSError as error:
        raise WorkerLostError(f"nobody listens at {address}: {error}. It may have ended, or not begun yet.") from error


def _link(hub: Hub, wire: ResumableWire, peer: str, limits: Limits, silence_s: float) -> Link:
    link = Link(hub, wire, peer=Peer(address=peer), limits=limits)
    watch = TcpWatch(hub, lambda: wire.socket, lose=link.lose, silence_s=silence_s)
    watch.begin()
    link.on_ended(lambda link, ending: watch.end())
    return link


def _handshake(connection: socket.socket, identity: Identity, side: Side, peer: str) -> Handshake:
    connection.setblocking(False)
    secured = identity.context(side).wrap_socket(connection, server_side=is_server(side), do_handshake_on_connect=False)
    return Handshake(secured, peer)


def _connect(host: str, port: int, until_s: float) -> socket.socket:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(infos):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(0.001, until_s - time.monotonic()) / (len(infos) - number))
            connection.connect(address)
            return connection
        except BaseException as error:
            connection.close()
            if number == len(infos) - 1 and isinstance(error, TimeoutError):
                raise OSError(errno.EHOSTUNREACH, "its host does not answer") from error
            if number == len(infos) - 1 or not isinstance(error, OSError):
                raise
    raise OSError(errno.EADDRNOTAVAIL, "it has no address")


def _complete(handshake: Handshake, until_s: float) -> TlsWire:
    """Block until the handshake is complete. Raises `TimeoutError`, and what `Handshake.step` raises."""
    while True:
        try:
            return handshake.step()
        except ssl.SSLWantReadError:
            event = select.POLLIN
        except ssl.SSLWantWriteError:
            event = select.POLLOUT
        except (ConnectionError, ssl.SSLEOFError) as error:
            if not handshake.is_authenticated:
                raise
            raise WorkerLostError(f"{handshake.peer} closed the connection: it did not accept us.") from error
        poll = select.poll()
        poll.register(handshake.connection, event)
        if not poll.poll(timeout_ms(until_s - time.monotonic())):
            raise TimeoutError


def _dial_error(error: ssl.SSLError, address: str) -> AuthenticationError | WorkerLostError:
    """Return the error for a failed TLS handshake."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLEOFError):
        return WorkerLostError(f"the listener at {address} closed the connection during the handshake.")
    if isinstance(error, ssl.SSLCertVerificationError) or any(text in reason for text in _OTHER_SECRET):
        return AuthenticationError(
            f"the listener at {address} does not hold our secret ({getattr(error, 'verify_message', reason)}).\n"
            f"Give all processes of the cluster the same FANWISE_SECRET or FANWISE_SECRET_FILE."
        )
    return AuthenticationError(f"the listener at {address} does not speak our protocol, TLS 1.3 ({reason}).")


# -- sockets -----------------------------------------------------------------------------------------------------------


def ports_of(spec: int | str) -> range:
    """Parse `29600`, `"29600"`, `"29600-29700"` (both ends included) or `0` (any free port)."""
    first, dash, last = str(spec).partition("-")
    try:
        ports = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < (1 if dash else 0) or ports[-1] > 65535:
        raise ValueError(f"not a port: {spec!r}. Write a number below 65536, 0 for any, or a range like '29600-29700'.")
    return ports


def open_listener(host: str, ports: range, *, all_interfaces: bool = False) -> socket.socket:
    """Return a non-blocking listening socket. Raises as `TcpListener`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, ports[0], type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OSError(error.errno, f"{host!r} is no address of this machine: {error.strerror}") from error
    is_unspecified = not host or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_unspecified
    if is_unspecified and not all_interfaces:
        raise ValueError(
            f"{host!r} means all interfaces of this machine. Name the one that the other hosts reach, by its address; "
            f"'127.0.0.1' is for this host alone."
        )
    for port in ports:
        listener = socket.socket(family, kind, protocol)
        try:
            _bind(listener, (address[0], port, *address[2:]))
            return listener
        except BaseException as error:
            listener.close()
            if not (isinstance(error, OSError) and error.errno == errno.EADDRINUSE):
                raise
    raise OSError(errno.EADDRINUSE, f"no port of {ports[0]}-{ports[-1]} is free at {host}")


def _bind(listener: socket.socket, address: tuple[object, ...]) -> None:
    if os.name == "posix":  # on other systems it would allow two listeners at one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    listener.listen(socket.SOMAXCONN)
    listener.setblocking(False)


def address_of(address: tuple[object, ...]) -> Address:
    host, port = address[:2]
    assert isinstance(host, str) and isinstance(port, int), "as in every address of TCP"
    return host, port


def text_of(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def set_options(connection: socket.socket, silence_s: float) -> None:
    """Send small packets at once, and let the kernel probe an idle peer every second, for `TcpWatch`.

    Without `TcpWatch`, the kernel ends the connection of an idle peer a little later than `silence_s`.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": _PROBE_EVERY_S,
        "TCP_KEEPALIVE": _PROBE_EVERY_S,  # the name on macOS
        "TCP_KEEPINTVL": _PROBE_EVERY_S,
        "TCP_KEEPCNT": max(1, round(silence_s / _PROBE_EVERY_S) + 1),
    }
    for name, value in wanted.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""Links between hosts: listening on one TCP port, dialling it, and who may.

    dialler                                                        listener
      | ---- TCP ------------------------------------------------->  |  counted, and closed after 5 s
      | <=== TLS 1.3: each shows a certificate of the secret, ===>   |  (`certificates`)
      |      the dialler first                                       |
      | <=== hello, drawn bytes ========== hello, drawn bytes ====>  |  (`hello`, `record_keys`)
      | <--- sealed records -------------- sealed records -------->  |  (`sealed`: the frames of `link`)

Strangers, plain text, other secrets, recordings, and whoever connects and then says nothing are closed and counted in
`listener.refused` (`acceptor`); they never reach a pickle and never raise in this process.
Loads `ssl` and `cryptography`: import this where a link between hosts is made, not at the head of a file.
"""

import contextlib
import errno
import ipaddress
import logging
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from ...base.errors import AuthenticationError, DeadlineExceeded, WireError, WorkerLostError
from ...base.version import VERSION
from ..frames import Limits
from ..hub import READ, WRITE, Hub
from ..link import Link
from ..peers import Peer
from ..security.certificates import Identity, Side, is_server
from ..security.hello import HELLO_SIZE, OtherProtocol, check_hello, hello
from ..security.record_keys import SHARE_SIZE, new_share, record_keys
from .acceptor import Acceptor, Refusal, Refused
from .resumable import Opening, OpeningReader, ResumableWire, new_opening, open_stream, send_answer
from .sealed import SealedWire
from .tcp_sockets import address_of, open_listener, ports_of, set_options, text_of
from .tcp_watch import TcpWatch
from .tls import TlsStream
from .wires import timeout_ms

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# A step of a greeting takes up to a millisecond of arithmetic, during which no other greeting goes on.
_ACCEPTED_A_TURN = 16
SILENCE_S = 5.0
_LEFTOVERS_BYTES = 1 << 16

_REFUSED = "a connection of %s was refused as %s: %s. Do both sides hold the same secret, and one version of fanwise?"
_CLOCK_FAULTS = {9: "is not valid yet", 10: "is no longer valid"}  # of X509_V_ERR_...
_OTHER_CLOCK = ("ALERT_CERTIFICATE_EXPIRED", "ALERT_BAD_CERTIFICATE")  # what a listener says of those


class TcpListener:
    """Accepts links at `host`, one of this machine's own addresses, and the first free port of `port`.

    `on_link(link)` runs on the hub's thread and must set `link.handler`.

    Args:
        port: a number, 0 for any free one, or a range like "29600-29700".
        identity: of this process; diallers must have one of the same secret.
        handshake_s: how long a dialler may take to prove itself.
        silence_s: after so long without a sign of the peer's host, while it owes one, a link is lost (`tcp_watch`). A
            process that reads nothing is not silent: its host answers for it.

    Raises `ValueError` for an address that means all interfaces, `OSError` when no port is free or the address is not
    this machine's.

    Attributes:
        host, port: where it listens.
        refused: how many connections were closed, by reason.
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
    ) -> None:
        identity.context("listener")  # made now, not while somebody waits for it
        listening = open_listener(host, ports_of(port))
        self.host, self.port = address_of(listening.getsockname())
        self._hub = hub
        self._identity = identity
        self._limits = limits
        self._silence_s = silence_s
        self._streams: dict[bytes, ResumableWire] = {}
        self._acceptor = Acceptor(
            hub,
            listening,
            self._greet,
            where=text_of((self.host, self.port)),
            on_link=on_link,
            handshake_s=handshake_s,
            accepted_a_turn=_ACCEPTED_A_TURN,
            reception=_reception(hub),
            from_where=_network_of,
        )
        self.refused = self._acceptor.refused
        hub.close_in_fork(self)

    def _greet(self, connection: socket.socket, address: tuple[object, ...]) -> "_Greeting":
        try:
            set_options(connection, self._silence_s)
            stream = _secured(connection, self._identity, "listener")
        except OSError as error:  # gone already
            raise Refused("half-open") from error
        peer = text_of(address_of(address))
        return _Greeting(_Introduction(stream, "listener", peer), self.refused, self._linked)

    def _linked(self, wire: SealedWire, opening: Opening, peer: str) -> Link | None:
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
        link = _linked(self._hub, stream, peer, self._limits, self._silence_s)
        link.on_ended(lambda link, ending: self._forget(opening.stream_id))
        return link

    def _forget(self, stream_id: bytes) -> None:
        self._streams.pop(stream_id, None)

    def close(self) -> None:
        """Accept nothing more; the links stay. From the hub's thread, or when the hub stands. In a fork: nothing."""
        self._acceptor.close()

    def close_fork(self) -> None:
        """In a forked child: close the copies of the descriptors."""
        self._acceptor.close_fork()


def _reception(hub: Hub) -> Hub:
    """A hub for greetings only: who can reach the port can have this process do arithmetic, and calls must not wait."""
    reception = Hub(clock=hub.clock, name="greetings")
    reception.start()
    return reception


def _network_of(address: tuple[Any, ...]) -> str:  # Any: as the kernel has it
    """What counts as one address: of IPv6 the first 64 bits, as one host has all of the others."""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return str(host) if host.version == 4 else str(ipaddress.ip_network(f"{host}/64", strict=False))


class _Introduction:
    """What both sides say in TLS: what they speak, and what each adds to the keys. `peer`: for people."""

    def __init__(self, stream: TlsStream, side: Side, peer: str) -> None:
        self.stream = stream
        self.peer = peer
        self._side = side
        self._share = new_share()
        self.is_proved = False
        self._got = b""

    def go_on(self) -> SealedWire:
        """The wire, when all is said. Raises as `ssl.SSLObject` does while it must wait, and when it has failed."""
        if not self.is_proved:
            self.stream.do_handshake()
            self.is_proved = True
            self.stream.send(hello(VERSION) + self._share)
        self.stream.flush()
        self._receive(HELLO_SIZE)
        check_hello(self._got[:HELLO_SIZE], self.peer, VERSION)
        self._receive(HELLO_SIZE + SHARE_SIZE)
        seals, opens = record_keys(self._side, self._share, self._got[HELLO_SIZE:])
        return SealedWire(self.stream.socket, seals, opens, self.stream.left_over())

    def _receive(self, size: int) -> None:
        while len(self._got) < size:
            data = self.stream.recv(size - len(self._got))
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "it was closed")
            self._got += data


class _Greeting:
    """A connection that has not proved itself yet. See `acceptor.Greeting`."""

    def __init__(
        self,
        introduction: _Introduction,
        refused: Counter[Refusal],
        linked: Callable[[SealedWire, Opening, str], Link | None],
    ) -> None:
        self._introduction = introduction
        self._stream = introduction.stream
        self._refused = refused
        self._linked = linked
        self._wire: SealedWire | None = None
        self._opening_reader = OpeningReader()
        self._opening: Opening | None = None

    def fileno(self) -> int:
        return self._stream.fileno()

    def step(self) -> int:
        try:
            if self._wire is None:
                self._wire = self._introduction.go_on()
            self._opening = self._opening_reader.read(self._wire)
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        except (OSError, WireError) as error:
            why = _why(error)
            # Who holds another secret is often one of ours, set up wrong. Once each kind: strangers must not fill logs.
            first = why in ("not-authentic", "other-version") and not self._refused[why]
            _log.log(logging.WARNING if first else logging.INFO, _REFUSED, self._introduction.peer, why, error)
            raise Refused(why) from error
        return READ if self._opening is None else 0

    def link(self) -> Link | None:
        assert self._wire is not None and self._opening is not None, "the last step is done"
        return self._linked(self._wire, self._opening, self._introduction.peer)

    def turn_away(self) -> None:
        # What is unread when a socket closes makes the kernel throw away what was sent: the reason, for the dialler.
        with contextlib.suppress(OSError):
            self._stream.socket.recv(_LEFTOVERS_BYTES)
        self._stream.close()

    def close_fork(self) -> None:
        self._stream.close()


def _why(error: Exception) -> Refusal:
    if isinstance(error, OtherProtocol):
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
    """Connect to the listener at `host` and `port`, blocking, and prove each other's secret. Then set `handler` and
    call `open()`.

    All addresses that `host` has are tried in turn, each for its share of the time. The system's look-up of the name
    is not part of `within_s`. `silence_s` is as for the listener. `listening_at` is "host port" of a port where this
    process listens, if any: after a cut the listener probes it to find out whether the process still runs.

    Raises `AuthenticationError` when one side does not accept the other's certificate, `WireError` when the listener is
    of another version, `WorkerLostError` when nobody listens, the host does not answer or the listener closes the
    connection, `DeadlineExceeded` when it is there and does not answer within `within_s` seconds.
    """
    hub.check_usable()
    until_s = time.monotonic() + within_s
    where = text_of((host, port))

    def connect(within_s: float) -> SealedWire:
        until_s = time.monotonic() + within_s
        connection = _connect(host, port, until_s)
        try:
            set_options(connection, silence_s)
            return _greet_listener(_secured(connection, identity, "dialler"), where, until_s)
        except BaseException:
            connection.close()
            raise

    opening = new_opening(listening_at)
    try:
        wire = connect(within_s)
        try:
            open_stream(wire, opening, until_s)
            return _linked(hub, ResumableWire(hub, wire, opening, connect=connect), where, limits, silence_s)
        except BaseException:
            wire.close()
            raise
    except TimeoutError as error:
        raise DeadlineExceeded(f"the listener at {where} did not answer within {within_s} s.") from error
    except ssl.SSLError as error:
        raise _told(error, where) from error
    except OSError as error:
        raise WorkerLostError(f"nobody listens at {where}: {error}. It may have ended, or not begun yet.") from error


def _linked(hub: Hub, wire: ResumableWire, peer: str, limits: Limits, silence_s: float) -> Link:
    """The link over a connection that has been greeted. Its host is watched."""
    link = Link(hub, wire, peer=Peer(address=peer), limits=limits)
    TcpWatch(hub, link, wire, silence_s=silence_s).begin()
    return link


def _connect(host: str, port: int, until_s: float) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left_s(until_s) / (len(found) - number))
            connection.connect(address)
            return connection
        except BaseException as error:
            connection.close()
            if number == len(found) - 1 and isinstance(error, TimeoutError):
                raise OSError(errno.EHOSTUNREACH, "its host does not answer") from error
            if number == len(found) - 1 or not isinstance(error, OSError):
                raise
    raise OSError(errno.EADDRNOTAVAIL, "it has no address")


def _greet_listener(stream: TlsStream, where: str, until_s: float) -> SealedWire:
    introduction = _Introduction(stream, "dialler", f"the listener at {where}")
    try:
        return _until_done(stream, introduction.go_on, until_s)
    except (ConnectionError, ssl.SSLEOFError) as error:
        if not introduction.is_proved:
            raise
        raise WorkerLostError(f"the listener at {where} closed the connection: it did not accept us.") from error


def _until_done(stream: TlsStream, step: Callable[[], _T], until_s: float) -> _T:
    """What `step` returns, when the socket has had what it wants. Blocks; raises TimeoutError."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            event = select.POLLIN
        except ssl.SSLWantWriteError:
            event = select.POLLOUT
        poll = select.poll()
        poll.register(stream, event)
        if not poll.poll(timeout_ms(until_s - time.monotonic())):
            raise TimeoutError


def _told(error: ssl.SSLError, where: str) -> AuthenticationError | WorkerLostError:
    """What a failed handshake means, as far as this side can know."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLEOFError):
        return WorkerLostError(f"the listener at {where} closed the connection during the handshake.")
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _CLOCK_FAULTS:
        return AuthenticationError(
            f"the certificate of the listener at {where} {_CLOCK_FAULTS[error.verify_code]}.\n"
            f"The clocks of the two hosts differ by more than a day: compare `date -u` on both."
        )
    if isinstance(error, ssl.SSLCertVerificationError) or "ALERT_UNKNOWN_CA" in reason:
        return AuthenticationError(
            f"the listener at {where} does not hold our secret ({getattr(error, 'verify_message', reason)}).\n"
            f"Give all processes of the cluster the same FANWISE_SECRET or FANWISE_SECRET_FILE."
        )
    if any(text in reason for text in _OTHER_CLOCK):
        return AuthenticationError(
            f"the listener at {where} did not accept our certificate ({reason}).\n"
            f"The clocks of the two hosts differ by more than a day: compare `date -u` on both."
        )
    return AuthenticationError(f"the listener at {where} does not speak our protocol, TLS 1.3 ({reason}).")


def _secured(connection: socket.socket, identity: Identity, side: Side) -> TlsStream:
    """The connection in TLS, before its handshake. `connection` is the stream's from now on."""
    return TlsStream(connection, identity.context(side), server_side=is_server(side))


def _left_s(until_s: float) -> float:
    return max(0.001, until_s - time.monotonic())

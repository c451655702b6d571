"""Links over Unix sockets on one host: listening, dialling, and who may.

The socket lies in a folder that only this user may enter; the kernel tells the user id of whoever connects; then both
sides prove that they hold the key (`handshake`). Only after that is a frame read. A stranger, garbage, and whoever
connects and then says nothing are closed and counted in `listener.refused` (`acceptor`); they never reach a pickle and
never raise in this process.
"""

import contextlib
import os
import secrets
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ...base.errors import AuthenticationError, DeadlineExceeded, WorkerLostError
from ..frames import Limits
from ..hub import READ, Hub
from ..link import Link
from ..peers import Peer
from ..security.handshake import NONCE_SIZE, DiallerHandshake, ListenerHandshake
from ..shared_memory.sharing import Sharing
from .acceptor import Acceptor, Refused
from .wires import MemoryWire, SocketWire

KEY_SIZE = 32
_PATH_SIZE_MAX = 100  # the kernel takes 107 bytes
_NAME_SIZE_MAX = 24  # of a socket in a private folder; the longest is mps1/control_privileged
_ACCEPTED_A_TURN = 64
_SEND_BUFFER_BYTES = 1 << 20


def new_key() -> bytes:
    """A fresh random key for one pool."""
    return secrets.token_bytes(KEY_SIZE)


def private_folder() -> Path:
    """A new folder for sockets that only this user may enter; the caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix="fanwise-"))
    if len(os.fsencode(folder)) > _PATH_SIZE_MAX - _NAME_SIZE_MAX:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="fanwise-", dir="/tmp"))
    return folder


def _peer_of(connection: socket.socket) -> Peer:
    if not hasattr(socket, "SO_PEERCRED"):
        return Peer()
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
    return Peer(pid, uid)


def _link(hub: Hub, connection: socket.socket, peer: Peer, limits: Limits) -> Link:
    # The default buffer makes a big array a third slower: the two processes wake each other too often.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    wire = SocketWire(connection)
    return Link(hub, wire, peer=peer, limits=limits, sharing=Sharing(hub, wire, limits))


class UnixListener:
    """Accepts links at `path`. `on_link(link)` runs on the hub's thread and must set `link.handler`.

    Attributes:
        refused: how many connections were closed, by reason.
    """

    def __init__(
        self,
        hub: Hub,
        path: Path,
        key: bytes,
        *,
        on_link: Callable[[Link], None],
        limits: Limits = Limits(),
        handshake_s: float = 5.0,
    ) -> None:
        self.path = path
        self._hub = hub
        self._key = key
        self._limits = limits
        self._acceptor = Acceptor(
            hub,
            _listening_at(path),
            self._greet,
            where=str(path),
            on_link=on_link,
            handshake_s=handshake_s,
            accepted_a_turn=_ACCEPTED_A_TURN,
        )
        self.refused = self._acceptor.refused
        hub.close_in_fork(self)

    def _greet(self, connection: socket.socket, _address: object) -> "_Greeting":
        peer = _peer_of(connection)
        if peer.uid not in (-1, os.getuid()):
            raise Refused("other-user")
        return _Greeting(self._hub, connection, peer, self._key, self._limits)

    def close(self) -> None:
        """Accept nothing more; the links stay. From the hub's thread, or when the hub stands. In a fork: nothing."""
        if self._acceptor.close():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def close_fork(self) -> None:
        """In a forked child: close the copies of the descriptors."""
        self._acceptor.close_fork()


def _listening_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(path))
        os.chmod(path, 0o600)
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


class _Greeting:
    """A connection that has not proved itself yet. See `acceptor.Greeting`."""

    def __init__(self, hub: Hub, connection: socket.socket, peer: Peer, key: bytes, limits: Limits) -> None:
        self._hub = hub
        self._connection = connection
        self._peer = peer
        self._limits = limits
        self._handshake = ListenerHandshake(key, secrets.token_bytes(NONCE_SIZE))
        self._send(self._handshake.first())

    def fileno(self) -> int:
        return self._connection.fileno()

    def _send(self, data: bytes) -> None:
        # A fresh socket's buffer takes these few bytes whole; if not, the peer is not one of ours.
        with contextlib.suppress(OSError):
            self._connection.send(data)

    def step(self) -> int:
        try:
            data = self._connection.recv(self._handshake.wants)
        except BlockingIOError:
            return READ
        except OSError as error:
            raise Refused("half-open") from error
        if not data:
            raise Refused("half-open")
        try:
            answer = self._handshake.receive(data)
        except AuthenticationError as error:
            raise Refused("not-authentic") from error
        if answer:
            self._send(answer)
        return 0 if self._handshake.done else READ

    def link(self) -> Link:
        return _link(self._hub, self._connection, self._peer, self._limits)

    def turn_away(self) -> None:
        self._connection.close()

    def close_fork(self) -> None:
        self._connection.close()


def dial(hub: Hub, path: Path, key: bytes, *, within_s: float = 10.0, limits: Limits = Limits()) -> Link:
    """Connect to the listener at `path`, blocking, and prove each other's key. Then set `handler` and call `open()`.

    Raises `AuthenticationError` when the listener does not hold the key, `WorkerLostError` when nobody listens or the
    listener closes the connection, `DeadlineExceeded` when it does not answer within `within_s` seconds.
    """
    hub.check_usable()
    until_s = time.monotonic() + within_s
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(connection, path, within_s)
        _shake_hands(connection, path, key, until_s)
        return _link(hub, connection, _peer_of(connection), limits)
    except TimeoutError as error:
        connection.close()
        raise DeadlineExceeded(f"the listener at {path} did not answer within {within_s} s.") from error
    except BaseException:
        connection.close()
        raise


def _connect(connection: socket.socket, path: Path, within_s: float) -> None:
    # Python's own timeout makes the socket non-blocking, and then a full backlog is refused at once, not waited for.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(within_s))
    try:
        connection.connect(os.fspath(path))
    except BlockingIOError as error:
        raise TimeoutError from error
    except OSError as error:
        raise WorkerLostError(f"nobody listens at {path}: {error}. Its process may have ended.") from error
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0))


def _shake_hands(connection: socket.socket, path: Path, key: bytes, until_s: float) -> None:
    handshake = DiallerHandshake(key, secrets.token_bytes(NONCE_SIZE))
    while not handshake.done:
        connection.settimeout(max(0.001, until_s - time.monotonic()))
        try:
            data = connection.recv(handshake.wants)
            answer = handshake.receive(data)
            if answer:
                connection.sendall(answer)
        except ConnectionError:
            data = b""
        if not data:
            raise WorkerLostError(f"the listener at {path} closed the connection: it did not accept our key.")


def _timeval(seconds: float) -> bytes:
    """A `struct timeval`; 0 means that there is no limit."""
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))


def memory_links(a: Hub, b: Hub, *, limits: Limits = Limits()) -> tuple[Link, Link]:
    """Two ends of a link in memory, one on each hub. No authentication: both ends are in this process."""
    wire_a, wire_b = MemoryWire.pair()
    return Link(a, wire_a, limits=limits), Link(b, wire_b, limits=limits)

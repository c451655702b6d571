"""Links over Unix sockets on one host: listen, dial, and authenticate.

The socket is in a folder that only this user may enter, and the kernel reports the user of each connection. Then both
sides prove that they hold the key (`handshake`). Frames are read only after that. Connections that do not authenticate
are closed and counted in `listener.refused` (`acceptor`); they never reach a pickle and raise nothing in this process.
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
from ..security.handshake import NONCE_SIZE, DialerHandshake, ListenerHandshake
from ..shared_memory.sharing import Sharing
from .acceptor import Acceptor, Refused
from .wires import SocketWire

KEY_SIZE = 32
_PATH_SIZE_MAX = 100  # the kernel takes 107 bytes
_NAME_SIZE_MAX = 24  # of a socket in a private folder; the longest is mps1/control_privileged
_ACCEPTED_A_TURN = 64
_SEND_BUFFER_BYTES = 1 << 20


def new_key() -> bytes:
    """Return a random key for one pool."""
    return secrets.token_bytes(KEY_SIZE)


def private_folder() -> Path:
    """Make a folder for sockets that only this user may enter. The caller removes it."""
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


def _wire(connection: socket.socket) -> SocketWire:
    # A big array takes a third longer with the default buffer, because the processes wake each other too often.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return SocketWire(connection)


def _link(hub: Hub, connection: socket.socket, peer: Peer, limits: Limits) -> Link:
    wire = _wire(connection)
    return Link(hub, wire, peer=peer, limits=limits, sharing=Sharing(hub, wire, limits))


class UnixListener:
    """Accepts links at `path`. `on_link(link)` is called on the hub's thread and must set `link.handler`.

    Attributes:
        refused: numbers of closed connections by reason.
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
            self._begin,
            where=str(path),
            on_link=on_link,
            handshake_s=handshake_s,
            accepted_a_turn=_ACCEPTED_A_TURN,
        )
        self.refused = self._acceptor.refused
        hub.close_in_fork(self)

    def _begin(self, connection: socket.socket, _address: object) -> "_UnixHandshake":
        peer = _peer_of(connection)
        if peer.uid not in (-1, os.getuid()):
            raise Refused("other-user")
        return _UnixHandshake(self._hub, connection, peer, self._key, self._limits)

    def close(self) -> None:
        """Stop accepting; links stay. Call it on the hub's thread, or when the hub is stopped. No effect in a fork."""
        if self._acceptor.close():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def close_fork(self) -> None:
        """Close the copies of the descriptors in a forked child."""
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


class _UnixHandshake:
    """The handshake of an accepted connection. See `acceptor.PendingHandshake`."""

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
        # The buffer of a new socket has room for these few bytes; otherwise the peer does not follow the protocol.
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

    def reject(self) -> None:
        self._connection.close()

    def close_fork(self) -> None:
        self._connection.close()


def dial(hub: Hub, path: Path, key: bytes, *, within_s: float = 10.0, limits: Limits = Limits()) -> Link:
    """Connect to the listener at `path`; both sides prove the key. Then set `handler` and call `open()`. Blocks.

    Raises `AuthenticationError` if the listener does not hold the key, `WorkerLostError` if nobody listens or the
    listener closes the connection, `DeadlineExceeded` if it does not respond within `within_s` seconds.
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
    # Python's timeout would make the socket non-blocking, and a full backlog refuses a non-blocking socket at once.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(within_s))
    try:
        connection.connect(os.fspath(path))
    except BlockingIOError as error:
        raise TimeoutError from error
    except OSError as error:
        raise WorkerLostError(f"nobody listens at {path}: {error}. Its process may have ended.") from error
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(0))


def _shake_hands(connection: socket.socket, path: Path, key: bytes, until_s: float) -> None:
    handshake = DialerHandshake(key, secrets.token_bytes(NONCE_SIZE))
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
    """Return a `struct timeval`. 0 means no limit."""
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))


def link_pair(a: Hub, b: Hub, *, limits: Limits = Limits()) -> tuple[Link, Link]:
    """Return both ends of a link within this process, one on each hub. Without authentication and shared memory."""
    one, other = map(_wire, socket.socketpair())
    return Link(a, one, limits=limits), Link(b, other, limits=limits)

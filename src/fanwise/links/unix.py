"""Links over Unix sockets on one host: listening, dialling, and who may.

The socket lies in a folder that only this user may enter; the kernel tells the user id of whoever connects; then both
sides prove that they hold the key (`handshake`). Only after that is a frame read. A stranger, garbage, and whoever
connects and then says nothing are closed and counted in `listener.refused`; they never reach a pickle and never raise
in this process.
"""

import contextlib
import errno
import logging
import os
import secrets
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..base.errors import AuthenticationError, DeadlineExceeded, WireError, WorkerLostError
from .frames import Limits
from .handshake import NONCE_SIZE, DiallerHandshake, ListenerHandshake
from .hub import READ, Hub, Timer
from .link import Link, Peer
from .wires import MemoryWire, SocketWire

_log = logging.getLogger(__name__)

KEY_SIZE = 32
_PATH_SIZE_MAX = 100  # the kernel takes 107 bytes
# Who has connected and not proved itself: above this the oldest is dropped, which in good faith takes milliseconds.
_GREETINGS_MAX = 256
_ACCEPTED_A_TURN = 64
_SEND_BUFFER_BYTES = 1 << 20
# How long to leave the listener alone when this process has no descriptor left.
_EXHAUSTED_PAUSE_S = 0.1

Refusal = Literal["other-user", "not-authentic", "half-open", "malformed"]


def new_key() -> bytes:
    """A fresh random key for one pool."""
    return secrets.token_bytes(KEY_SIZE)


def private_folder() -> Path:
    """A new folder for sockets that only this user may enter; the caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix="fanwise-"))
    if len(os.fsencode(folder)) > _PATH_SIZE_MAX - 10:
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
    # The default buffer makes a big array a third slower: the two processes wake each other too often.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return SocketWire(connection)


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
        self.refused: Counter[Refusal] = Counter()
        self._hub = hub
        self._key = key
        self._on_link = on_link
        self._limits = limits
        self._handshake_s = handshake_s
        self._greeting: dict[_Greeting, None] = {}  # oldest first
        self._pid = os.getpid()
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(os.fspath(path))
            os.chmod(path, 0o600)
            self._socket.listen(socket.SOMAXCONN)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        hub.watch(self._socket.fileno(), self._accept)
        hub.close_in_fork(self)

    def _accept(self, _events: int) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(error)
                return
            peer = _peer_of(connection)
            if peer.uid not in (-1, os.getuid()):
                self.refused["other-user"] += 1
                connection.close()
                continue
            if len(self._greeting) >= _GREETINGS_MAX:
                next(iter(self._greeting)).drop("half-open")
            self._greeting[_Greeting(self, connection, peer)] = None

    def _pause(self, error: OSError) -> None:
        """Who connects waits in the kernel meanwhile. Polling on would only burn a CPU."""
        if self._closed or error.errno == errno.ECONNABORTED:
            return
        _log.warning("%s cannot accept a connection: %s", self.path, error)
        self._hub.change(self._socket.fileno(), 0)
        self._hub.call_at(self._hub.clock.now_s() + _EXHAUSTED_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self._hub.change(self._socket.fileno(), READ)

    def _welcome(self, greeting: "_Greeting") -> None:
        self._greeting.pop(greeting, None)
        link = Link(self._hub, _wire(greeting.connection), peer=greeting.peer, limits=self._limits)
        link.on_malformed = self._count_malformed
        try:
            link.watch_peer()
            self._on_link(link)
            link.open()
        except BaseException:
            link.close("it could not be welcomed")
            raise

    def _refuse(self, greeting: "_Greeting", why: Refusal) -> None:
        self._greeting.pop(greeting, None)
        self.refused[why] += 1

    def _count_malformed(self, _error: WireError) -> None:
        self.refused["malformed"] += 1

    def close(self) -> None:
        """Accept nothing more; the links stay. From the hub's thread, or when the hub stands. In a fork: nothing."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        for greeting in list(self._greeting):
            greeting.drop("half-open")
        self._hub.forget(self._socket.fileno())
        self._socket.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def close_fork(self) -> None:
        """In a forked child: close the copies of the descriptors."""
        self._socket.close()
        for greeting in self._greeting:
            greeting.connection.close()


class _Greeting:
    """A connection that has not proved itself yet."""

    def __init__(self, listener: UnixListener, connection: socket.socket, peer: Peer) -> None:
        self.connection = connection
        self.peer = peer
        self._listener = listener
        self._handshake = ListenerHandshake(listener._key, secrets.token_bytes(NONCE_SIZE))
        connection.setblocking(False)
        hub = listener._hub
        hub.watch(connection.fileno(), self._ready)
        self._timer: Timer = hub.call_at(hub.clock.now_s() + listener._handshake_s, lambda: self.drop("half-open"))
        self._send(self._handshake.first())

    def _send(self, data: bytes) -> None:
        # A fresh socket's buffer takes these few bytes whole; if not, the peer is not one of ours.
        with contextlib.suppress(OSError):
            self.connection.send(data)

    def _ready(self, _events: int) -> None:
        try:
            data = self.connection.recv(self._handshake.wants)
            if not data:
                self.drop("half-open")
                return
            answer = self._handshake.receive(data)
        except BlockingIOError:
            return
        except OSError:
            self.drop("half-open")
            return
        except AuthenticationError:
            self.drop("not-authentic")
            return
        if answer:
            self._send(answer)
        if self._handshake.done:
            self._leave_hub()
            self._listener._welcome(self)

    def drop(self, why: Refusal) -> None:
        self._leave_hub()
        self._listener._refuse(self, why)
        self.connection.close()

    def _leave_hub(self) -> None:
        self._timer.cancel()
        self._listener._hub.forget(self.connection.fileno())


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
        return Link(hub, _wire(connection), peer=_peer_of(connection), limits=limits)
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
        raise WorkerLostError(f"nobody listens at {path}: {error}. Its pool may have ended.") from error
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

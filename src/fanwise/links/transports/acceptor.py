"""Accepts connections and runs their handshakes: the part that all listeners share.

    listening socket --accept--> begin(connection) --> PendingHandshake --step, step, ...--> link --on_link--> its owner
                                      |                    |
                                      +------ Refused, or the time limit ------> closed, and counted in `refused`

The listeners (`unix`, `tcp`) implement the handshake. Its steps run when the connection is ready, and never block.
They run on the hub of the links, or on a hub of their own if handshakes are expensive and strangers can cause many.
Connections that send nothing are dropped at the time limit, and earlier if there are too many (`pending_connections`).

`close` closes the listening socket before the pending connections: a peer that sees its handshake end may dial again
at once, and must not be accepted again.
"""

import errno
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from ...base.errors import WireError
from ..hub import READ, Hub, Timer
from ..link import Link

_log = logging.getLogger(__name__)

# Connections with an incomplete handshake, which takes milliseconds: in total, and of one address.
MAX_PENDING = 256
MAX_PENDING_PER_ADDRESS = 128
# Pause of accepting when this process has no descriptor left.
_EXHAUSTED_PAUSE_S = 0.1

Connection = TypeVar("Connection", bound=Hashable)
Refusal = Literal["other-user", "not-authentic", "half-open", "malformed", "other-version"]


class Refused(Exception):
    """Raised by a handshake: close the connection and count it under `reason`."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason = reason


class PendingHandshake(Protocol):
    """The handshake of an accepted connection. Owns the connection until `link` is called."""

    def fileno(self) -> int:
        """Return the descriptor of the connection."""

    def step(self) -> int:
        """Continue without blocking. Return the events to wait for, 0 when complete. Raises `Refused`."""

    def link(self) -> Link | None:
        """Return the link over the connection, not open yet; None if it belongs to an older link. Called once, last."""

    def reject(self) -> None:
        """Close the connection so that the other side can still read the last message."""

    def close_fork(self) -> None:
        """Close this process's copy of the descriptor and do nothing else."""


class PendingConnections(Generic[Connection]):
    """See the module.

    Args:
        limit: of all connections.
        limit_per_address: of the connections of one address.
    """

    def __init__(self, *, limit: int, limit_per_address: int) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._addresses: dict[Connection, Hashable] = {}
        self._by_address: dict[Hashable, dict[Connection, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over a copy of all connections, the oldest first."""
        return iter(list(self._addresses))

    def add(self, connection: Connection, address: Hashable) -> Connection | None:
        """Return a connection that must be dropped for the new one and was removed. An address of None has no limit."""
        dropped: Connection | None = None
        if address is not None and len(self._by_address.get(address, ())) >= self._limit_per_address:
            dropped = next(iter(self._by_address[address]))
        elif len(self._addresses) >= self._limit:
            most = max(map(len, self._by_address.values()))
            # If several addresses have most, the one with the oldest connection.
            dropped = next(one for one, other in self._addresses.items() if len(self._by_address[other]) == most)
        if dropped is not None:
            self.remove(dropped)
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return dropped

    def remove(self, connection: Connection) -> bool:
        """Return False if it was removed before."""
        if connection not in self._addresses:
            return False
        address = self._addresses.pop(connection)
        connections = self._by_address[address]
        del connections[connection]
        if not connections:
            del self._by_address[address]
        return True


class Acceptor:
    """See the module.

    Args:
        listening: a non-blocking listening socket, owned by the acceptor from now on.
        begin: returns the handshake of a connection, given its address too. Raises `Refused`; then the connection is
            closed here.
        where: the address of the listener, for messages.
        on_link: called with each link on the hub's thread; must set `link.handler`.
        handshake_s: time limit of a handshake.
        accepted_a_turn: number of connections to accept before the hub continues with others.
        handshake_hub: a started hub for handshakes, owned by the acceptor from now on; None: `hub`.
        address_of: returns the address that `MAX_PENDING_PER_ADDRESS` applies to; None for no limit.

    Attributes:
        refused: numbers of closed connections by reason.
        pending: connections with an incomplete handshake, the oldest first.
    """

    def __init__(
        self,
        hub: Hub,
        listening: socket.socket,
        begin: Callable[[socket.socket, Any], PendingHandshake],  # Any: addresses have the form of their family
        *,
        where: str,
        on_link: Callable[[Link], None],
        handshake_s: float,
        accepted_a_turn: int,
        handshake_hub: Hub | None = None,
        address_of: Callable[[Any], Hashable] = lambda address: None,  # Any: as above
    ) -> None:
        self.refused: Counter[Refusal] = Counter()
        self.pending: PendingConnections[_PendingConnection] = PendingConnections(
            limit=MAX_PENDING, limit_per_address=MAX_PENDING_PER_ADDRESS
        )
        self.handshake_s = handshake_s
        self.hub = handshake_hub or hub
        self._link_hub = hub
        self._authenticated: dict[_PendingConnection, None] = {}  # complete, and waiting for the hub of the links
        self._address_of = address_of
        self._lock = threading.Lock()
        self._socket = listening
        self._begin = begin
        self._where = where
        self._on_link = on_link
        self._accepted_a_turn = accepted_a_turn
        self._pid = os.getpid()
        self._closed = False
        self.hub.watch(listening.fileno(), self._accept)

    def _accept(self, _events: int) -> None:
        for _ in range(self._accepted_a_turn):
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            try:
                handshake = self._begin(connection, address)
            except Refused as refused:
                self._count(refused.reason)
                connection.close()
                continue
            pending = _PendingConnection(self, handshake)
            dropped = self.pending.add(pending, self._address_of(address))
            if dropped is not None:
                dropped.drop("half-open")
            pending.begin()

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a moment. New connections wait in the kernel; polling would use a whole CPU."""
        if self._closed or error.errno == errno.ECONNABORTED:
            return
        _log.warning("%s cannot accept a connection: %s", self._where, error)
        self.hub.change(self._socket.fileno(), 0)
        self.hub.call_at(self.hub.clock.now_s() + _EXHAUSTED_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self.hub.change(self._socket.fileno(), READ)

    def complete(self, pending: "_PendingConnection") -> None:
        """A handshake is complete."""
        self.pending.remove(pending)
        if self.hub is self._link_hub:
            self._make_link(pending)
            return
        with self._lock:
            self._authenticated[pending] = None
        self._link_hub.call_soon(partial(self._make_link_unless_closed, pending))

    def _make_link_unless_closed(self, pending: "_PendingConnection") -> None:
        with self._lock:
            is_waiting = pending in self._authenticated
            self._authenticated.pop(pending, None)
        if is_waiting:
            self._make_link(pending)

    def _make_link(self, pending: "_PendingConnection") -> None:
        try:
            link = pending.handshake.link()
        except BaseException:
            pending.handshake.reject()
            raise
        if link is None:
            return
        link.on_malformed = self._count_malformed
        try:
            link.watch_peer()
            self._on_link(link)
            link.open()
        except BaseException:
            link.close("it could not be welcomed")
            raise

    def refuse(self, pending: "_PendingConnection", reason: Refusal) -> None:
        """A handshake has failed."""
        self.pending.remove(pending)
        self._count(reason)

    def _count(self, reason: Refusal) -> None:
        with self._lock:
            self.refused[reason] += 1

    def _count_malformed(self, _error: WireError) -> None:
        self._count("malformed")

    def close(self) -> bool:
        """Stop accepting; links stay. Call it on the hub's thread, or when the hub is stopped. No effect in a fork.

        Return True for the first call in the listening process.
        """
        if self._closed or self._pid != os.getpid():
            return False
        self._closed = True
        if self.hub is not self._link_hub:
            self.hub.close()  # ends all handshakes
        self.hub.forget(self._socket.fileno())
        self._socket.close()
        for pending in self.pending:
            pending.drop("half-open")
        with self._lock:
            authenticated, self._authenticated = self._authenticated, {}
        for pending in authenticated:
            pending.handshake.reject()
        return True

    def close_fork(self) -> None:
        """Close the copies of the descriptors in a forked child."""
        self._socket.close()
        for pending in (*self.pending, *self._authenticated):
            pending.handshake.close_fork()


class _PendingConnection:
    """A handshake, its registration with the hub's poll, and its time limit."""

    def __init__(self, acceptor: Acceptor, handshake: PendingHandshake) -> None:
        self.handshake = handshake
        self._acceptor = acceptor
        self._events = READ
        hub = acceptor.hub
        hub.watch(handshake.fileno(), self._ready)
        due_s = hub.clock.now_s() + acceptor.handshake_s
        self._timer: Timer = hub.call_at(due_s, lambda: self.drop("half-open"))

    def begin(self) -> None:
        """Take the first step: this side may be the first to send, or the other may already have sent something."""
        self._ready(READ)

    def _ready(self, _events: int) -> None:
        try:
            events = self.handshake.step()
        except Refused as refused:
            self.drop(refused.reason)
            return
        if events == 0:
            self._leave_hub()
            self._acceptor.complete(self)
        elif events != self._events:
            self._events = events
            self._acceptor.hub.change(self.handshake.fileno(), events)

    def drop(self, reason: Refusal) -> None:
        """Close the connection and count it."""
        self._leave_hub()
        self._acceptor.refuse(self, reason)
        self.handshake.reject()

    def _leave_hub(self) -> None:
        self._timer.cancel()
        self._acceptor.hub.forget(self.handshake.fileno())

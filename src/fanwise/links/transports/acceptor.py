"""Accepting connections of strangers, and holding them until they have proved themselves: what all listeners share.

    listening socket --accept--> begin(connection) --> Greeting --step, step, ...--> link --on_link--> its owner
                                      |                    |
                                      +---- Refused, or its time is over ----> closed, and counted in `refused`

How a stranger proves itself is the greeting's (`unix`, `tcp`). Its steps run when its connection is ready and never
wait; nothing that it raises on purpose leaves this file. They run on the thread of the hub that has the links, or,
where a greeting costs arithmetic and strangers can come in numbers, of a hub that does nothing else. Whoever connects
and says nothing is dropped after a while, and at once when too many do (`pending_connections`).

Closing: first the socket, then the greetings. Who sees its greeting end may dial again at once, and must find nobody.
"""

import errno
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Literal, Protocol

from ...base.errors import WireError
from ..hub import READ, Hub, Timer
from ..link import Link
from .pending_connections import PendingConnections

_log = logging.getLogger(__name__)

# Who has connected and not proved itself, which in good faith takes milliseconds: in all, and of one address.
GREETINGS_MAX = 256
GREETINGS_OF_ONE_MAX = 128
# How long to leave the listener alone when this process has no descriptor left.
_EXHAUSTED_PAUSE_S = 0.1

Refusal = Literal["other-user", "not-authentic", "half-open", "malformed", "other-version"]


class Refused(Exception):
    """Raised by a greeting: the connection is to be closed, and counted under `why`."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


class Greeting(Protocol):
    """A connection that has not proved itself yet. It owns the connection until `link` has taken it over."""

    def fileno(self) -> int:
        """Of the connection."""

    def step(self) -> int:
        """Go on, without waiting. The events to wait for, 0 when it has proved itself; or raises Refused."""

    def link(self) -> Link | None:
        """The link over the connection, not open yet; once, after the last step. None: it belongs to an older link."""

    def turn_away(self) -> None:
        """Close the connection, so that the other side can still read what was said to it."""

    def close_fork(self) -> None:
        """Close this process's copy of the descriptor, and touch nothing else."""


class Acceptor:
    """See the module.

    Args:
        listening: a socket that listens and does not block; the acceptor's from now on.
        where: its address, for messages.
        begin: makes the greeting of a connection, given its address too, or raises Refused; then the connection is
            closed here.
        on_link: gets each link, on the hub's thread, and must set `link.handler`.
        handshake_s: how long a greeting may take.
        accepted_a_turn: how many connections to take before the hub serves others.
        reception: the hub where greetings run, started, which is this acceptor's from now on; None: `hub`.
        from_where: the address that counts of where a connection comes from; None: none has a limit of its own.

    Attributes:
        refused: how many connections were closed, by reason.
        greeting: those that have not proved themselves, the oldest first.
    """

    def __init__(
        self,
        hub: Hub,
        listening: socket.socket,
        begin: Callable[[socket.socket, Any], Greeting],  # Any: addresses have the form of their family
        *,
        where: str,
        on_link: Callable[[Link], None],
        handshake_s: float,
        accepted_a_turn: int,
        reception: Hub | None = None,
        from_where: Callable[[Any], Hashable] = lambda address: None,  # Any: as above
    ) -> None:
        self.refused: Counter[Refusal] = Counter()
        self.greeting: PendingConnections[_Unproved] = PendingConnections(
            in_all=GREETINGS_MAX, of_one=GREETINGS_OF_ONE_MAX
        )
        self.handshake_s = handshake_s
        self.hub = reception or hub  # of the greetings
        self._links_hub = hub
        self._proved: dict[_Unproved, None] = {}  # have, and wait for the hub of the links
        self._from_where = from_where
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
                greeting = self._begin(connection, address)
            except Refused as refused:
                self._count(refused.why)
                connection.close()
                continue
            unproved = _Unproved(self, greeting)
            goes = self.greeting.arrive(unproved, self._from_where(address))
            if goes is not None:
                goes.drop("half-open")
            unproved.begin()

    def _pause(self, error: OSError) -> None:
        """Who connects waits in the kernel meanwhile. Polling on would only burn a CPU."""
        if self._closed or error.errno == errno.ECONNABORTED:
            return
        _log.warning("%s cannot accept a connection: %s", self._where, error)
        self.hub.change(self._socket.fileno(), 0)
        self.hub.call_at(self.hub.clock.now_s() + _EXHAUSTED_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self.hub.change(self._socket.fileno(), READ)

    def proved(self, unproved: "_Unproved") -> None:
        """It has proved itself."""
        self.greeting.gone(unproved)
        if self.hub is self._links_hub:
            self._welcome(unproved)
            return
        with self._lock:
            self._proved[unproved] = None
        self._links_hub.call_soon(partial(self._let_in, unproved))

    def _let_in(self, unproved: "_Unproved") -> None:
        """On the hub of the links; not when it was turned away meanwhile, by the closing."""
        with self._lock:
            is_there = unproved in self._proved
            self._proved.pop(unproved, None)
        if is_there:
            self._welcome(unproved)

    def _welcome(self, unproved: "_Unproved") -> None:
        try:
            link = unproved.greeting.link()
        except BaseException:
            unproved.greeting.turn_away()
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

    def refuse(self, unproved: "_Unproved", why: Refusal) -> None:
        """It has not, and will not."""
        self.greeting.gone(unproved)
        self._count(why)

    def _count(self, why: Refusal) -> None:
        with self._lock:
            self.refused[why] += 1

    def _count_malformed(self, _error: WireError) -> None:
        self._count("malformed")

    def close(self) -> bool:
        """Accept nothing more; the links stay. From the hub's thread, or when the hub stands. In a fork: nothing.

        Whether this was the first call, in the process that listens.
        """
        if self._closed or self._pid != os.getpid():
            return False
        self._closed = True
        if self.hub is not self._links_hub:
            self.hub.close()  # nothing is greeted from here on
        self.hub.forget(self._socket.fileno())
        self._socket.close()
        for unproved in self.greeting:
            unproved.drop("half-open")
        with self._lock:
            proved, self._proved = self._proved, {}
        for unproved in proved:
            unproved.greeting.turn_away()
        return True

    def close_fork(self) -> None:
        """In a forked child: close the copies of the descriptors."""
        self._socket.close()
        for unproved in (*self.greeting, *self._proved):
            unproved.greeting.close_fork()


class _Unproved:
    """A greeting, its place in the hub's poll, and its time."""

    def __init__(self, acceptor: Acceptor, greeting: Greeting) -> None:
        self.greeting = greeting
        self._acceptor = acceptor
        self._events = READ
        hub = acceptor.hub
        hub.watch(greeting.fileno(), self._ready)
        due_s = hub.clock.now_s() + acceptor.handshake_s
        self._timer: Timer = hub.call_at(due_s, lambda: self.drop("half-open"))

    def begin(self) -> None:
        """The first step: it may be this side that speaks first, or the other may have spoken already."""
        self._ready(READ)

    def _ready(self, _events: int) -> None:
        try:
            events = self.greeting.step()
        except Refused as refused:
            self.drop(refused.why)
            return
        if events == 0:
            self._leave_hub()
            self._acceptor.proved(self)
        elif events != self._events:
            self._events = events
            self._acceptor.hub.change(self.greeting.fileno(), events)

    def drop(self, why: Refusal) -> None:
        """Close it, and count why."""
        self._leave_hub()
        self._acceptor.refuse(self, why)
        self.greeting.turn_away()

    def _leave_hub(self) -> None:
        self._timer.cancel()
        self._acceptor.hub.forget(self.greeting.fileno())

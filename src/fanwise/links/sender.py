"""The writing half of a link: what the wire takes now is written now, the rest waits in order.

Also keeps what the hub polls for on this wire: room to write while something waits, and bytes to read unless a thread
that waits for its own answer has borrowed the reading. Both change with `_lock` held, together with the queue. Only
`wait_for_room` blocks.

Memory: what the caller owns and may change again is copied before it waits. Borrowed memory is not; it is given back,
by copying what still waits, with `copy_unsent`. Knows bytes only: no frames, calls or peers.
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .hub import READ, WRITE, Hub
from .transports.wires import Buffer, Wire

Put = Literal["written", "waits", "lost"]

_PARTS_A_TIME = 16
# So little a socket takes whole or not at all, but for one of TCP that is just full.
_WHOLE_BYTES = 4096


class _Carrier(NamedTuple):
    """What waits and carries a descriptor (ours) with its first byte, and how that is written."""

    view: memoryview
    fd: int
    write: Callable[[Buffer, int], int]


class Sender:
    """See the module. One for each link."""

    def __init__(self, hub: Hub, wire: Wire) -> None:
        self._hub = hub
        self._wire = wire
        self._fd = wire.fileno()
        self._lock = threading.Lock()
        self._queue: deque[memoryview] = deque()
        self.num_queued_bytes = self.num_sent_bytes = 0
        self._carriers: deque[_Carrier] = deque()
        self._polled = False
        self._num_waiting = 0
        self._ended = self._closed = False
        self._events = READ
        self._borrowed = False

    @property
    def waits(self) -> bool:
        """Whether something still has to be written."""
        return bool(self._queue)

    def put(self, parts: list[Buffer], *, copied: bool) -> Put:
        """Write, or queue, `parts`, and empty the list: as long as it is not, nothing of them has left, nor will.

        `copied`: the caller may change their memory at once. "lost": the wire takes nothing any more. Whoever reads it
        will find its end.
        """
        with self._lock:
            mine = parts.copy()
            parts.clear()
            try:
                sent = 0 if self._queue else self._wire.write(mine)
                if sent < 0:
                    return "lost"
                self.num_sent_bytes += sent
                if sent == len(mine[0]) and len(mine) == 1:
                    return "written"
                self._enqueue(mine, sent, copied)
                self._poll_for_events()
                return "waits" if self._queue else "written"
            except BaseException:
                if len(mine) > 1 or len(mine[0]) > _WHOLE_BYTES or self._wire.owes:
                    self._tear()
                raise

    def put_with_descriptor(self, part: bytes, fd: int, write: Callable[[Buffer, int], int]) -> None:
        """Write, or queue, `part`, and with its first byte `fd`, which is the sender's from now on.

        `write(part, fd)` is the wire's way to do so.
        """
        with self._lock:
            if self._closed:
                os.close(fd)
                return
            carrier = _Carrier(memoryview(part), fd, write)
            self._carriers.append(carrier)
            self._queue.append(carrier.view)
            self.num_queued_bytes += len(part)
            self._write_queue()

    def _tear(self) -> None:
        """An interrupt came while bytes left: nobody knows how many have, so no more may follow them."""
        self._queue.clear()
        self.num_queued_bytes = 0
        self._wire.hang_up()

    def put_last(self, parts: Sequence[Buffer]) -> None:
        """Last words, if there is room for them after all that waits."""
        with self._lock:
            self._write_queue()
            if not self._queue:
                self._wire.write(parts)

    def wait_for_room(self, timeout_s: float) -> None:
        """Block until the wire may take something, or is hung up. The descriptor stays open meanwhile."""
        with self._lock:
            if self._closed:
                return
            self._num_waiting += 1
        try:
            self._wire.wait_writable(timeout_s)
        finally:
            with self._lock:
                self._num_waiting -= 1
                self._give_back()

    def drain(self) -> None:
        """Write what the wire takes now."""
        with self._lock:
            self._write_queue()

    def copy_unsent(self) -> None:
        """Borrowed memory goes back to its owner before all of it was written."""
        with self._lock:
            kept = {id(carrier.view) for carrier in self._carriers}
            self._queue = deque(part if id(part) in kept else memoryview(bytes(part)) for part in self._queue)

    # -- what the hub polls for ------------------------------------------------------------------------------------

    def begin_polling(self, ready: Callable[[int], None]) -> None:
        """Let the hub call `ready(events)`; not after `end_polling`, which another thread may have called by now."""
        with self._lock:
            if not (self._polled or self._ended):
                self._events = self._wanted_events()
                self._hub.watch(self._fd, ready, self._events)
                self._polled = True

    def end_polling(self) -> None:
        """The hub forgets the wire."""
        with self._lock:
            self._polled, self._ended = False, True
            self._hub.forget(self._fd)

    def borrow_reading(self) -> None:
        """The hub does not look for bytes from now on: this thread reads."""
        with self._lock:
            self._borrowed = True
            events = WRITE if self._queue else 0  # as `_poll_for_events`; every call that is waited for comes here
            if events != self._events and self._polled:
                self._events = events
                self._hub.change(self._fd, events)

    def return_reading(self) -> None:
        """The hub looks for bytes again."""
        with self._lock:
            self._borrowed = False
            events = READ | WRITE if self._queue else READ  # as above
            if events != self._events and self._polled:
                self._events = events
                self._hub.change(self._fd, events)

    def close(self) -> None:
        """Drop what waits and give the descriptor back, once nobody polls it. Nobody may be reading."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self.num_queued_bytes = 0
            while self._carriers:
                os.close(self._carriers.popleft().fd)
            self._give_back()

    def _give_back(self) -> None:
        if self._closed and not self._num_waiting:
            self._wire.close()

    def _wanted_events(self) -> int:
        return (0 if self._borrowed else READ) | (WRITE if self._queue else 0)

    def _poll_for_events(self) -> None:
        events = self._wanted_events()
        if events != self._events and self._polled:
            self._events = events
            self._hub.change(self._fd, events)

    # -- the queue -------------------------------------------------------------------------------------------------

    def _enqueue(self, parts: Sequence[Buffer], sent: int, copied: bool) -> None:
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
                continue
            left = memoryview(part)[sent:]
            self.num_queued_bytes += len(left)
            # Headers and heads come as bytes, which nobody changes.
            self._queue.append(memoryview(bytes(left)) if copied and not isinstance(part, bytes) else left)
            sent = 0

    def _write_queue(self) -> None:
        try:
            while self._queue:
                sent = self._write_some()
                if sent < 0:
                    self._queue.clear()  # whoever reads finds the end
                    self.num_queued_bytes = 0
                elif sent == 0:
                    break
                else:
                    self._drop(sent)
        except BaseException:
            self._tear()
            raise
        self._poll_for_events()

    def _write_some(self) -> int:
        views = [self._queue[i] for i in range(min(len(self._queue), _PARTS_A_TIME))]
        if not self._carriers:
            return self._wire.write(views)
        carrier = self._carriers[0]
        if views[0] is not carrier.view:  # up to it, so that the descriptor goes with its own bytes
            return self._wire.write(list(itertools.takewhile(lambda view: view is not carrier.view, views)))
        sent = carrier.write(carrier.view, carrier.fd)
        if sent > 0:
            os.close(self._carriers.popleft().fd)
        return sent

    def _drop(self, sent: int) -> None:
        self.num_queued_bytes -= sent
        self.num_sent_bytes += sent
        while self._queue and sent >= len(self._queue[0]):
            sent -= len(self._queue.popleft())
        if sent:
            self._queue[0] = self._queue[0][sent:]

"""The writing half of a link: writes as much as the wire takes now, and queues the rest in order.

Also decides which events the hub polls for on this wire: room to write while bytes are queued, and bytes to read unless
a thread that waits for its own answer reads. Only `wait_for_room` blocks. Frames, calls and peers are unknown here.

Invariants
- The queue, the polled events and the descriptor change with `_lock` held.
- Queued memory is a copy, or borrowed until it was written or `copy_unsent` was called.
- A message that has begun to leave is completed, also after an interrupt, and never written twice.
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
# If more bytes are queued for a peer that does not read, none of its requests should be started.
MAX_QUEUED_BYTES = 4 << 20


class _Carrier(NamedTuple):
    """Queued bytes that carry a descriptor, owned by the writer, with the first of them, and how to write them."""

    view: memoryview
    fd: int
    write: Callable[[Buffer, int], int]


class Writer:
    """See the module."""

    def __init__(self, hub: Hub, wire: Wire) -> None:
        self._hub = hub
        self._wire = wire
        self._fd = wire.fileno()
        self._lock = threading.Lock()
        self._queue: deque[memoryview] = deque()
        self.num_queued_bytes = 0
        self._carriers: deque[_Carrier] = deque()
        self._ready: Callable[[int], None] | None = None
        self._polled = False
        self._waiting: set[object] = set()  # calls of `wait_for_room`
        self._ended = self._is_closing = False
        self.is_closed = False  # `close` is complete; a thread that waits for room closes the wire later
        self._events = READ
        self._borrowed = False
        self._on_drained = deque[Callable[[], None]]()

    @property
    def waits(self) -> bool:
        """Return True if bytes must still be written."""
        return bool(self._queue) or self._wire.has_unsent

    def put(self, parts: list[Buffer], *, copied: bool) -> Put:
        """Write or queue `parts`. The list is emptied first: until then no byte of them is sent.

        `copied`: the caller may change their memory at once. "lost": the wire takes nothing any more, and the reading
        thread will find its end.
        """
        with self._lock:
            message = parts.copy()
            num_queued, num_written = len(self._queue), self._wire.num_written
            try:
                parts.clear()
                sent = 0 if num_queued else self._wire.write(message)
                if sent < 0:
                    return "lost"
                if sent == len(message[0]) and len(message) == 1 and not self._wire.has_unsent:
                    return "written"
                self._enqueue(message, sent, copied)
                self._poll_for_events()
                return "waits" if self.waits else "written"
            except BaseException:  # the rest of the message leaves all the same
                while len(self._queue) > num_queued:
                    self._queue.pop()
                self.num_queued_bytes = sum(map(len, self._queue))
                self._enqueue(message, 0 if num_queued else self._wire.num_written - num_written, copied=True)
                self._poll_for_events()
                raise

    def put_with_descriptor(self, part: bytes, fd: int, write: Callable[[Buffer, int], int]) -> None:
        """Write or queue `part`, and `fd` with its first byte. `write(part, fd)` does that. Owns `fd` from now on."""
        with self._lock:
            if self._is_closing:
                os.close(fd)
                return
            carrier = _Carrier(memoryview(part), fd, write)
            self._carriers.append(carrier)
            self._queue.append(carrier.view)
            self.num_queued_bytes += len(part)
            self._write_queue()
            self._report_drained_soon()

    def _report_drained_soon(self) -> None:
        """Let the hub run what waits for the queue if it is short now, because it may be polled no more."""
        if self._on_drained and not self.is_behind:
            self._hub.call_soon(self.run_on_drained)

    def put_last(self, parts: Sequence[Buffer]) -> None:
        """Write a last message, if there is room for it after the queue."""
        with self._lock:
            self._write_queue()
            if not self._queue:
                self._wire.write(parts)

    def wait_for_room(self, timeout_s: float) -> None:
        """Block until the wire may take bytes, or is hung up. The descriptor stays open meanwhile."""
        wait = object()
        try:
            with self._lock:
                if self._is_closing:
                    return
                self._waiting.add(wait)
            self._wire.wait_writable(timeout_s)
        finally:
            try:
                self._stop_waiting(wait)
            except BaseException:  # an interrupt, perhaps before it was done
                self._stop_waiting(wait)
                raise

    def _stop_waiting(self, wait: object) -> None:
        with self._lock:
            self._waiting.discard(wait)
            self._close_if_unused()

    def drain(self) -> None:
        """Write as much of the queue as the wire takes now."""
        with self._lock:
            self._write_queue()
        if self._on_drained and not self.is_behind:
            self.run_on_drained()

    @property
    def is_behind(self) -> bool:
        """Return True if too many bytes are queued to accept more work of this peer."""
        return self.num_queued_bytes > MAX_QUEUED_BYTES

    def when_drained(self, callback: Callable[[], None]) -> bool:
        """If it is behind, return True and call `callback` when that has changed or the link has ended."""
        if not self.is_behind:
            return False
        with self._lock:
            if self._ended:
                return False
            self._on_drained.append(callback)
        if not self.is_behind:
            self.run_on_drained()
        return True

    def run_on_drained(self) -> None:
        with self._lock:
            callbacks, self._on_drained = self._on_drained, deque()
        for callback in callbacks:
            callback()

    def copy_unsent(self) -> None:
        """Copy the queued bytes: their owner may change the memory from now on."""
        with self._lock:
            carried = {id(carrier.view) for carrier in self._carriers}
            self._queue = deque(part if id(part) in carried else memoryview(bytes(part)) for part in self._queue)

    # -- polled events ------------------------------------------------------------------------------------

    def begin_polling(self, ready: Callable[[int], None]) -> None:
        """Let the hub call `ready(events)`. Does nothing after `end_polling`."""
        with self._lock:
            self._ready = ready
            self._watch()

    def _watch(self) -> None:
        if self._ready is not None and not (self._polled or self._ended):
            self._events = self._wanted_events()
            self._hub.watch(self._fd, self._ready, self._events)
            self._polled = True

    def disconnect(self) -> None:
        """Stop polling a connection that has ended. When this returns, no thread writes to it any more."""
        with self._lock:
            if self._polled:
                self._polled = False
                self._hub.forget(self._fd)

    def reconnect(self, replace: Callable[[], int]) -> bool:
        """Continue over another connection. `replace` installs it and returns its descriptor.

        Returns False, and does not call `replace`, if the link has ended.
        """
        with self._lock:
            if self._ended or self._is_closing:
                return False
            self._fd = replace()
            self._watch()
            self._write_queue()
            self._report_drained_soon()
            return True

    def end_polling(self) -> None:
        """Stop polling. The link has ended."""
        with self._lock:
            polled, self._polled, self._ended = self._polled, False, True
            if polled:
                self._hub.forget(self._fd)

    def borrow_reading(self) -> None:
        """Let this thread read: the hub does not poll for bytes from now on."""
        with self._lock:
            self._borrowed = True
            self._poll_for_events()

    def return_reading(self) -> None:
        """Undo `borrow_reading`."""
        with self._lock:
            self._borrowed = False
            self._poll_for_events()

    def close(self) -> None:
        """Drop the queue and close the wire, once no thread waits for it. No thread may be reading."""
        with self._lock:
            self._is_closing = True
            self._queue.clear()
            self.num_queued_bytes = 0
            while self._carriers:
                os.close(self._carriers.popleft().fd)
            self._close_if_unused()
            self.is_closed = True

    def _close_if_unused(self) -> None:
        if self._is_closing and not self._waiting:
            self._wire.close()

    def _wanted_events(self) -> int:
        wire = self._wire
        is_write_wanted = wire.has_unsent or (self._queue and wire.has_room)
        return (0 if self._borrowed else READ) | (WRITE if is_write_wanted else 0)

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
            # Headers and heads are bytes, which cannot change.
            self._queue.append(memoryview(bytes(left)) if copied and not isinstance(part, bytes) else left)
            sent = 0

    def _write_queue(self) -> None:
        while self.waits:
            views = list(itertools.islice(self._queue, _PARTS_A_TIME))
            num_left, num_written = len(self._queue) - len(views), self._wire.num_written
            try:
                sent = self._write(views)
                if sent < 0:
                    self._queue.clear()  # the reading thread finds the end
                    self.num_queued_bytes = 0
                    break
                if sent == 0:
                    break
                self._drop(sent)
            except BaseException:
                while len(self._queue) > num_left:
                    self._queue.popleft()
                self._queue.extendleft(reversed(views))
                self.num_queued_bytes = sum(map(len, self._queue))
                self._drop(self._wire.num_written - num_written)
                raise
        self._poll_for_events()

    def _write(self, views: list[memoryview]) -> int:
        if not self._carriers:
            return self._wire.write(views)
        carrier = self._carriers[0]
        if views[0] is not carrier.view:  # up to it, so that the descriptor goes with its own bytes
            return self._wire.write(list(itertools.takewhile(lambda view: view is not carrier.view, views)))
        return carrier.write(carrier.view, carrier.fd)

    def _drop(self, sent: int) -> None:
        """Remove bytes that were written from the queue."""
        self.num_queued_bytes -= sent
        if sent and self._carriers and self._queue[0] is self._carriers[0].view:
            os.close(self._carriers.popleft().fd)
        while self._queue and sent >= len(self._queue[0]):
            sent -= len(self._queue.popleft())
        if sent:
            self._queue[0] = self._queue[0][sent:]

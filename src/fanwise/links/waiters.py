"""Threads that wait for the answers to their calls while another thread reads. A reply is opaque here."""

import threading
from collections.abc import Callable, Hashable


class Waiters:
    """Threads that wait for their replies while another reads. To wake nobody costs nothing.

    Each sleeps on a lock of its own: an answer wakes the one that it is for, not all of hundreds. Where nobody is
    `asleep`, and what makes the fact of `wait_unless` true was done before that was seen, nobody need be woken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asleep: dict[Hashable, list[threading.Lock]] = {}

    def wait_unless(self, reply: Hashable, fact: Callable[[], bool], timeout_s: float | None) -> None:
        """Block until woken, at most `timeout_s` seconds; not at all when `fact()` holds already.

        What makes the fact true must be done before a wake. Then none is lost: this side is in the list before it looks
        at the fact, the other side looks at the list after it.
        """
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            self.asleep.setdefault(reply, []).append(turn)
        try:
            if not fact():
                turn.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        finally:
            with self._lock:
                turns = self.asleep.get(reply, [])
                if turn in turns:
                    turns.remove(turn)
                    if not turns:
                        del self.asleep[reply]

    def wake(self, reply: Hashable) -> None:
        """This reply is done."""
        if self.asleep:
            with self._lock:
                for turn in self.asleep.pop(reply, ()):
                    turn.release()

    def wake_one(self) -> None:
        """Nobody reads any more: let one of them. Those who wait for the same reply go together."""
        if self.asleep:
            with self._lock:
                reply = next(iter(self.asleep), None)
            if reply is not None:
                self.wake(reply)

    def wake_all(self) -> None:
        """Nothing will come any more."""
        for reply in list(self.asleep):
            self.wake(reply)

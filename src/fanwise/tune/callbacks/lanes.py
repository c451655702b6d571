"""Calls that are made one after the other in a thread of their own, and that nobody waits for in vain.

    put(...), put(...)  -->  queue  -->  fanwise-callbacks, from the first call on  -->  call()
    end(), wait(patience_s)              True: all were made; False: one does not return, and no other is made

Knows nothing of searches or of what is called; a call must not raise.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import final


@final
class Lane:
    """See the module. By one thread, or by several that take turns. `who`: whose calls they are, for messages."""

    def __init__(self, who: str) -> None:
        self.was_said_to_be_late = False
        self._who = who
        self._todo: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_made = 0
        self._busy: tuple[str, float] | None = None  # what is called, since when
        self._has_given_up = False

    @property
    def busy_with(self) -> str:
        """Whose call it is that is being made, as `the callback Mine.on_report`."""
        busy = self._busy
        return self._who if busy is None else f"{self._who}.{busy[0]}"

    @property
    def busy_s(self) -> float:
        """For how many seconds the call that is being made has not returned; 0: none is."""
        busy = self._busy
        return 0.0 if busy is None else time.monotonic() - busy[1]

    @property
    def num_waiting(self) -> int:
        """Calls that were put and not begun."""
        return max(self._todo.qsize() - 1, 0)  # the last one is the end

    def put(self, what: str, call: Callable[[], None]) -> None:
        """Make this call when those before it have returned. Blocks for nothing."""
        if self._has_given_up:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-callbacks", daemon=True)
            self._thread.start()
        self._todo.put((what, call))

    def give_up(self) -> None:
        """Begin no further call. Blocks for nothing."""
        self._has_given_up = True

    def end(self) -> None:
        """Nothing is put any more. Blocks for nothing."""
        self._todo.put(None)

    def wait(self, patience_s: float) -> bool:
        """After `end`: block until all calls are made. False: one has not returned for so many seconds; it is the last.

        As long as calls return, however many there are, it is waited for them.
        """
        if self._thread is None:
            return True
        while True:
            num_made = self._num_made
            self._thread.join(patience_s)
            if not self._thread.is_alive():
                self._thread = None
                return True
            if self._num_made == num_made:
                self._has_given_up = True
                return False

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            if not self._has_given_up:
                what, call = item
                self._busy = what, time.monotonic()
                call()
                self._busy = None
                self._num_made += 1

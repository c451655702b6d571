"""Runs the searcher: inline in the loop's thread if it is fast, else in a separate thread.

    SearchCore --observe, on_rollback, on_end--> AtOnce or InThread --> searcher
    Suggest action ------------ ask ----->                     --> Suggested, as an event

Observations and requests go through one queue, so a suggestion depends exactly on the events before its action.
"""

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, final

from ..core.actions import Suggest
from ..core.events import Suggested
from ..core.suggestions import failed_suggestion
from ..core.suggestions import plain_suggestion as asked
from ..searchers.searcher import Observation, Searcher

_MOST_WAITED_S = 10.0


class Suggester(Protocol):
    """Listener of `SearchCore` that also answers suggestion actions."""

    def observe(self, observation: Observation) -> None: ...
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...
    def on_end(self, trial_id: int, status: str) -> None: ...

    def ask(self, action: Suggest, *, now_s: float, seen: int) -> Suggested | None:
        """Return the suggestion, or None if it will be delivered later."""

    @property
    def failure(self) -> BaseException | None:
        """The exception raised by the searcher, or None."""

    def close(self) -> None:
        """Deliver no more suggestions. Does not block; a suggestion in progress is computed and dropped."""

    def settle(self) -> None:
        """After `close`, block until all observations are processed, unless an unneeded suggestion is in progress."""


def suggester_for(searcher: Searcher, tell: Callable[[Suggested], None], now_s: Callable[[], float]) -> Suggester:
    """Create the suggester of a searcher.

    Args:
        searcher: the searcher.
        tell: called with late suggestions, on another thread.
        now_s: returns the current time in seconds; must be callable from any thread.
    """
    return AtOnce(searcher) if searcher.runs_inline else InThread(searcher, tell, now_s)


@final
class AtOnce:
    """Runs a fast searcher inline."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self.failure: BaseException | None = None
        self.observe = searcher.observe
        self.on_rollback = searcher.on_rollback
        self.on_end = searcher.on_end

    def ask(self, action: Suggest, *, now_s: float, seen: int) -> Suggested:
        try:
            return Suggested(now_s, action.number, asked(self._searcher, action), seen)
        except Exception as error:  # user code: any exception ends the search in order
            self.failure = error
            return failed_suggestion(self._searcher, action, now_s, error, seen=seen)

    def close(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""


@final
class InThread:
    """Runs a slow searcher in a daemon thread, so that an endless fit does not block the program's exit.

    At exit, the program waits a few seconds for the thread: a daemon thread that returns from C++ while Python is
    finalizing ends the process with SIGABRT ("terminate called without an active exception").
    """

    def __init__(self, searcher: Searcher, tell: Callable[[Suggested], None], now_s: Callable[[], float]) -> None:
        self._searcher = searcher
        self._tell = tell
        self._now_s = now_s
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.failure: BaseException | None = None
        self._closed = False
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, name="fanwise-searcher", daemon=True)
        atexit.register(self._end)
        self._thread.start()

    def observe(self, observation: Observation) -> None:
        self._todo.put(lambda: self._searcher.observe(observation))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self._todo.put(lambda: self._searcher.on_rollback(trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self._todo.put(lambda: self._searcher.on_end(trial_id, status))

    def ask(self, action: Suggest, *, now_s: float, seen: int) -> None:
        self._todo.put(lambda: self._answer(action, seen))

    def close(self) -> None:
        self._closed = True
        self._todo.put(None)

    def settle(self) -> None:
        if not self._is_asked:
            self._thread.join(_MOST_WAITED_S)

    def _answer(self, action: Suggest, seen: int) -> None:
        config = None
        self._is_asked = True
        if self.failure is None and not self._closed:
            try:
                config = asked(self._searcher, action)
            except BaseException as error:  # user code: any exception, even SystemExit, ends the search in order
                self.failure = None if self._closed else error
        self._is_asked = False
        if self._closed:
            return
        if self.failure is None:
            self._tell(Suggested(self._now_s(), action.number, config, seen))
        else:
            self._tell(failed_suggestion(self._searcher, action, self._now_s(), self.failure, seen=seen))

    def _end(self) -> None:
        self.close()
        self._thread.join(_MOST_WAITED_S)

    def _run(self) -> None:
        try:
            self._think()
        finally:
            atexit.unregister(self._end)

    def _think(self) -> None:
        while (todo := self._todo.get()) is not None:
            try:
                todo()
            except BaseException as error:  # user code: the next suggestion fails with it and ends the search
                self.failure = self.failure or error

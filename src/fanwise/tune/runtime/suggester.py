"""Calls a searcher in a separate thread, unless the searcher `runs_inline`.

    SearchCore --observe, on_rollback, on_end--> Suggester --> searcher
    action Suggest ------------ ask -----------> Suggester --> event Suggested

Observations and requests go through one queue, so a suggestion depends on exactly the events before its request.
"""

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import final

from ..core.actions import Suggest
from ..core.events import Suggested
from ..core.suggestions import failed_suggestion, plain_suggestion
from ..searchers.searcher import Observation, Searcher

_EXIT_WAIT_S = 10.0


@final
class Suggester:
    """Calls a searcher in a daemon thread, so that an endless fit does not block the program's exit.

    At exit, the program waits a few seconds for the thread. Otherwise a daemon thread that returns from C++ while
    Python is finalizing may end the process with SIGABRT ("terminate called without an active exception").

    Args:
        searcher: the searcher.
        deliver: called on the searcher's thread with each answer. It must set `now_s`, which is 0.
    """

    def __init__(self, searcher: Searcher, deliver: Callable[[Suggested], None]) -> None:
        self._searcher = searcher
        self._deliver = deliver
        # Calls of the searcher. None: end the thread.
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.failure: BaseException | None = None  # raised by the searcher
        self._is_closed = False
        self._is_suggesting = False
        self._thread = threading.Thread(target=self._run, name="fanwise-searcher", daemon=True)
        atexit.register(self._stop)
        self._thread.start()

    def observe(self, observation: Observation) -> None:
        self._queue.put(lambda: self._searcher.observe(observation))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self._queue.put(lambda: self._searcher.on_rollback(trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self._queue.put(lambda: self._searcher.on_end(trial_id, status))

    def ask(self, action: Suggest, *, last_seen_seq: int) -> None:
        """Request a suggestion, which is passed to `deliver` later."""
        self._queue.put(lambda: self._suggest(action, last_seen_seq))

    def close(self) -> None:
        """Deliver no more suggestions. Does not block; a suggestion in progress is computed and dropped."""
        self._is_closed = True
        self._queue.put(None)

    def finish_observations(self) -> None:
        """After `close`, block for up to 10 s until the queue is empty, so that `failure` is final.

        Return at once if a suggestion is being computed.
        """
        if not self._is_suggesting:
            self._thread.join(_EXIT_WAIT_S)

    def _suggest(self, action: Suggest, last_seen_seq: int) -> None:
        if self._is_closed:
            return
        config = None
        self._is_suggesting = True
        try:
            config = plain_suggestion(self._searcher, action) if self.failure is None else None
        except BaseException as error:  # user code may raise any exception, even SystemExit
            self.failure = None if self._is_closed else error
        self._is_suggesting = False
        if self._is_closed:
            return
        answer = Suggested(0.0, action.number, config, last_seen_seq)
        if self.failure is not None:
            answer = failed_suggestion(self._searcher, action, self.failure, now_s=0.0, last_seen_seq=last_seen_seq)
        self._deliver(answer)

    def _stop(self) -> None:
        self.close()
        self._thread.join(_EXIT_WAIT_S)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except BaseException as error:  # from user code; the next suggestion fails with it and ends the search
                self.failure = self.failure or error
        atexit.unregister(self._stop)

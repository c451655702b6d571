"""Dispatches events of a search to callbacks and `logging`. Each callback has its own thread.

The search never waits for a callback, and callbacks do not wait for each other. At the end of the search, `close`
blocks until all callbacks have processed all events. It abandons a callback if one call takes too long, e.g. because a
server is unreachable. The first error of each callback method is logged, with a traceback if the callback is
user-defined. If `on_start` raises, the callback receives no more events.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, final

from ...base.nearest import did_you_mean
from ...base.text import counted, printable_line
from ..core.actions import Action, Answer, SetStatus, Start
from ..core.events import Event, Reported
from ..record.state import SearchState
from ..schedulers.scheduler import Status
from .search_events import SearchEnded, SearchStarted, TrialEnded, TrialReported, TrialStarted

_log = logging.getLogger(__name__)
# For lines about trials. The null handler keeps warnings from stderr, because the display shows the lines anyway.
_events_log = logging.getLogger("fanwise.tune.events")
_events_log.addHandler(logging.NullHandler())

# At the end of a search, a callback is abandoned if one call takes longer. User-defined callbacks may have more work to
# finish than the built-in ones.
CALL_TIMEOUT_S = 5.0
USER_TIMEOUT_FACTOR = 12
_MAX_ERROR_LENGTH = 300
_METHODS = ("on_start", "on_trial_start", "on_report", "on_trial_end", "on_end")


def checked_callbacks(callbacks: object) -> tuple[object, ...]:
    """Return valid callbacks as a tuple. Raises TypeError otherwise, e.g. for an unknown method `on_...`."""
    if not isinstance(callbacks, list | tuple):
        raise TypeError(f"callbacks must be a list of objects, got {callbacks!r}")
    for callback in callbacks:
        methods = [name for name in dir(callback) if name.startswith("on_")]
        if isinstance(callback, type) or not methods:
            raise TypeError(f"a callback must be an object with methods {', '.join(_METHODS)}, got {callback!r}")
        for name in methods:
            if name not in _METHODS:
                hint = did_you_mean(name, _METHODS)
                raise TypeError(f"{type(callback).__name__} has {name}, which is never called{hint}")
    return tuple(callbacks)


@final
class CallbackDispatcher:
    """Dispatches events of one search.

    Args:
        callbacks: the callbacks.
        state: the state of the search, to which each event is added after `on_event` (see `Recorder`).
        timeout_s: seconds that a call of a built-in callback may take at the end of the search.
    """

    def __init__(self, callbacks: Sequence[object], state: SearchState, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._state = state
        self._timeout_s = timeout_s
        # Lines are logged in a thread, because handlers of `logging` may block.
        self._log_worker = _CallbackWorker(SimpleNamespace(on_line=lambda record: _events_log.log(*record)))
        self._workers = [_CallbackWorker(callback) for callback in callbacks]

    def start(self, event: SearchStarted) -> None:
        self._put("on_start", event)

    def on_event(self, event: Event, actions: list[Action]) -> None:
        """Dispatch the callback events that follow from an event of the search and its actions. Never blocks."""
        now_s = event.now_s
        for action in actions:
            if type(action) is Answer:
                if type(event) is Reported and not action.late and not action.repeated:
                    values: Any = event.values
                    config = self._state.trials[event.trial_id].config
                    report = now_s, event.trial_id, event.attempt, config, action.iter, values, action.decision
                    self._put("on_report", TrialReported(*report))
            elif type(action) is Start:
                trial = self._state.trials.get(action.trial_id)
                is_rolled_back = trial is not None and trial.status is not Status.PAUSED
                void_after = action.from_iter if is_rolled_back else None
                start = now_s, action.trial_id, action.attempt, action.config, action.from_iter, action.source
                self._put("on_trial_start", TrialStarted(*start, void_after))
            elif type(action) is SetStatus:
                trial = self._state.trials.get(action.trial_id)
                if trial is not None:  # None: a repeated `SetStatus`, after the end of the trial
                    end = now_s, action.trial_id, action.attempt, trial.config, action.status, trial.last_iter
                    self._put("on_trial_end", TrialEnded(*end, trial.values or {}, action.reason, action.will_retry))

    def on_line(self, line: str, is_failure: bool) -> None:
        """Log a line about the search. Never blocks."""
        level = logging.WARNING if is_failure else logging.INFO
        if _events_log.isEnabledFor(level):
            self._log_worker.put("on_line", (level, "%s", line))

    def close(self, event: SearchEnded) -> None:
        """Dispatch the end of the search. Blocks until all callbacks have returned or taken too long."""
        self._put("on_end", event)
        workers = [*self._workers, self._log_worker]
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.join(self._timeout_s)

    def _put(self, method: str, event: object) -> None:
        for worker in self._workers:
            worker.put(method, event)


@final
class _CallbackWorker:
    """Calls the methods of one callback in a thread, which starts with the first call."""

    def __init__(self, callback: object) -> None:
        self._callback = callback
        self._is_builtin = type(callback).__module__.startswith(f"{__package__}.")
        self._queue: SimpleQueue[tuple[str, object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_calls = 0  # that have returned
        self._call_label = ""  # callback and method of the last call
        self._call_started_s = 0.0
        self._num_errors: Counter[str] = Counter()  # by label of the call
        self._is_abandoned = False

    def put(self, method: str, event: object) -> None:
        """Queue a call, if the callback has this method."""
        if self._is_abandoned or not hasattr(self._callback, method):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-callbacks", daemon=True)
            self._thread.start()
        self._queue.put((method, event))

    def close(self) -> None:
        """End the thread after the queued calls."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """After `close`, block until all calls have returned, or until one takes too long."""
        timeout_s *= 1 if self._is_builtin else USER_TIMEOUT_FACTOR
        while self._thread is not None and self._thread.is_alive():
            num_calls = self._num_calls
            self._thread.join(timeout_s)
            if self._num_calls == num_calls and self._thread.is_alive():
                self._is_abandoned = True
                busy_s = time.monotonic() - self._call_started_s
                num_waiting = max(self._queue.qsize() - 1, 0)  # without the end marker
                _log.error(
                    "%s is stuck: it has not returned for %.0f s. The search ends without waiting for it. "
                    "Not delivered: %s. The output of the callback may be incomplete.",
                    *(self._call_label, busy_s, counted(num_waiting, "event")),
                )
                break
        for label, count in self._num_errors.items():
            if count > 1:
                _log.error("%s raised %d times; the first is above", label, count)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            if not self._is_abandoned:
                self._call(*call)
                self._num_calls += 1

    def _call(self, method: str, event: object) -> None:
        label = f"the callback {type(self._callback).__name__}.{method}"
        self._call_label, self._call_started_s = label, time.monotonic()
        try:
            getattr(self._callback, method)(event)
        except BaseException as error:  # including SystemExit, which would end the thread silently
            self._num_errors[label] += 1
            if method == "on_start":
                self._is_abandoned = True
            effect = "It receives no more events; the search" if self._is_abandoned else "The search"
            if self._num_errors[label] == 1:
                text = f"{type(error).__name__}: {error}"
                if self._is_builtin:
                    text = printable_line(text.partition("\n")[0])[:_MAX_ERROR_LENGTH]
                cause = None if self._is_builtin else error
                _log.error("%s raised %s. %s continues.", label, text, effect, exc_info=cause)

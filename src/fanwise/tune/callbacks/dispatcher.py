"""Dispatches events of a search to callbacks and `logging`, each in its own thread.

The search never waits for a callback, and callbacks do not wait for each other. `close` blocks until a slow callback
has processed all events, but abandons one whose current call does not return, e.g. because a server is gone. The
first error of each callback method is logged; if `on_start` raises, the callback receives no more events. Tracebacks
are logged for user-defined callbacks only.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, final

from ...base.nearest import did_you_mean
from ...base.text import counted, printable_line
from ..core.actions import Action, Answer, Judged, Start
from ..core.events import Event, Reported
from ..record.state import SearchState
from ..schedulers.scheduler import Status
from .search_events import SearchEnded, SearchStarted, TrialEnded, TrialReported, TrialStarted

_log = logging.getLogger(__name__)
# Lines about trials. The null handler keeps them from stderr, because the display shows them anyway.
events_log = logging.getLogger("fanwise.tune.events")
events_log.addHandler(logging.NullHandler())

# A longer call is reported as slow. At the end of a search, built-in callbacks are abandoned after this time, and user
# callbacks, which may have work to finish, after a multiple of it.
PATIENCE_S = 5.0
_USER_FACTOR = 12
_MAX_ERROR_LENGTH = 300
METHODS = ("on_start", "on_trial_start", "on_report", "on_trial_end", "on_end")

CallbackEvent = SearchStarted | TrialStarted | TrialReported | TrialEnded | SearchEnded


def checked_callbacks(callbacks: object) -> tuple[object, ...]:
    """Validate callbacks. Raises TypeError for unknown methods, with the closest name."""
    if not isinstance(callbacks, list | tuple):
        raise TypeError(
            f"callbacks must be a list, got {callbacks!r}.\n  right:  callbacks=[{type(callbacks).__name__}()]"
        )
    for callback in callbacks:
        if isinstance(callback, type):
            raise TypeError(
                f"callbacks must be objects, got the class {callback.__name__}; write {callback.__name__}()"
            )
        methods = [name for name in dir(callback) if name.startswith("on_")]
        for name in methods:
            if name not in METHODS:
                raise TypeError(
                    f"{type(callback).__name__} has {name}, which is never called{did_you_mean(name, METHODS)}"
                )
        if not methods:
            raise TypeError(f"a callback needs one of the methods {', '.join(METHODS)}; {callback!r} has none")
    return tuple(callbacks)


@final
class CallbackDispatcher:
    """Dispatches events of one search.

    Args:
        callbacks: the callbacks.
        state: the search before the events that are dispatched; see `Recorder`.
        patience_s: seconds after which a call is reported as slow.
    """

    def __init__(self, callbacks: Sequence[object], state: SearchState, *, patience_s: float = PATIENCE_S) -> None:
        self._state = state
        self._patience_s = patience_s
        self._log_worker = _CallbackWorker("the log")
        pairs = [(callback, _CallbackWorker(f"the callback {type(callback).__name__}")) for callback in callbacks]
        self._workers = [worker for _, worker in pairs]
        self._builtin = [self._log_worker, *(worker for callback, worker in pairs if _is_builtin(callback))]
        self._methods = {
            name: [(worker, callback, getattr(callback, name)) for callback, worker in pairs if hasattr(callback, name)]
            for name in METHODS
        }
        self._errors: Counter[str] = Counter()

    def start(self, event: SearchStarted) -> None:
        """Dispatch the start of the search."""
        self._put("on_start", event)

    def on_event(self, event: Event, actions: list[Action]) -> None:
        """Dispatch the events that follow from an event, before it is added to the state. Never blocks."""
        for action in actions:
            if type(action) is Answer:
                if type(event) is Reported and not action.late and not action.repeated:
                    self._on_answer(event, action)
            elif type(action) is Start:
                self._on_started(event.now_s, action)
            elif type(action) is Judged:
                self._on_judged(event.now_s, action)

    def on_line(self, line: str, is_failure: bool) -> None:
        """Log a line about the search. Never blocks."""
        level = logging.WARNING if is_failure else logging.INFO
        if events_log.isEnabledFor(level):
            self._log_worker.put("log", lambda: events_log.log(level, "%s", line))

    def close(self, event: SearchEnded) -> None:
        """Dispatch the end of the search. Blocks until all callbacks have returned, except those that are stuck."""
        self._put("on_end", event)
        workers = [*self._workers, self._log_worker]
        for worker in workers:
            worker.close()
        for worker in workers:
            if not worker.join(self._patience_s * (1 if worker in self._builtin else _USER_FACTOR)):
                _log.error(
                    "%s is stuck: it has not returned for %.0f s. The search has ended without waiting for it. "
                    "Not delivered: %s. Its output may be incomplete.",
                    *(worker.current_call, worker.busy_s, counted(worker.num_waiting, "event")),
                )
        for method, count in self._errors.items():
            if count > 1:
                _log.error("%s raised %d times; the first is above", method, count)

    def _on_answer(self, event: Reported, action: Answer) -> None:
        values: Any = event.values
        config = self._state.trials[event.trial_id].config
        report = event.now_s, event.trial_id, event.attempt, config, action.iter, values, action.decision
        self._put("on_report", TrialReported(*report))

    def _on_started(self, now_s: float, action: Start) -> None:
        trial = self._state.trials.get(action.trial_id)
        is_rolled_back = trial is not None and trial.status is not Status.PAUSED
        start = now_s, action.trial_id, action.attempt, action.config, action.from_iter, action.source
        self._put("on_trial_start", TrialStarted(*start, void_after=action.from_iter if is_rolled_back else None))

    def _on_judged(self, now_s: float, action: Judged) -> None:
        trial = self._state.trials.get(action.trial_id)
        if trial is None:  # it is over; a judgment may be repeated
            return
        end = now_s, action.trial_id, action.attempt, trial.config, action.status, trial.num_reports
        self._put("on_trial_end", TrialEnded(*end, trial.values or {}, action.reason, action.will_retry))

    def _put(self, name: str, event: CallbackEvent) -> None:
        for worker, callback, method in self._methods[name]:
            worker.put(name, partial(self._call, worker, callback, name, method, event))
            if worker.busy_s > self._patience_s and not worker.reported_as_slow:
                worker.reported_as_slow = True
                line = "%s has not returned for %.0f s; the search continues, and later events are queued"
                self._log_worker.put("log", partial(_log.warning, line, worker.current_call, worker.busy_s))

    def _call(
        self,
        worker: "_CallbackWorker",
        callback: object,
        name: str,
        method: Callable[[CallbackEvent], object],
        event: CallbackEvent,
    ) -> None:
        try:
            method(event)
        except BaseException as error:  # sys.exit() in user code would end the thread silently
            label = f"the callback {type(callback).__name__}.{name}"
            self._errors[label] += 1
            is_builtin = _is_builtin(callback)
            if name == "on_start":
                worker.abandon()
            effect = "It receives no more events; the search" if name == "on_start" else "The search"
            if self._errors[label] == 1:
                text = f"{type(error).__name__}: {error}"
                text = printable_line(text.partition("\n")[0])[:_MAX_ERROR_LENGTH] if is_builtin else text
                _log.error("%s raised %s. %s continues.", label, text, effect, exc_info=None if is_builtin else error)


@final
class _CallbackWorker:
    """Runs calls sequentially in a thread, which starts with the first call. Calls must not raise.

    Args:
        label: owner of the calls, for messages.
    """

    def __init__(self, label: str) -> None:
        self.reported_as_slow = False
        self._label = label
        self._queue: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_done = 0
        self._current: tuple[str, float] | None = None  # name of the running call, start time
        self._is_abandoned = False

    @property
    def current_call(self) -> str:
        """Name of the running call, such as `the callback MyCallback.on_report`."""
        current = self._current
        return self._label if current is None else f"{self._label}.{current[0]}"

    @property
    def busy_s(self) -> float:
        """Seconds since the running call started; 0 if there is none."""
        current = self._current
        return 0.0 if current is None else time.monotonic() - current[1]

    @property
    def num_waiting(self) -> int:
        """Number of queued calls, after `close`."""
        return max(self._queue.qsize() - 1, 0)  # without the end marker

    def put(self, name: str, call: Callable[[], None]) -> None:
        """Queue a call."""
        if self._is_abandoned:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-callbacks", daemon=True)
            self._thread.start()
        self._queue.put((name, call))

    def abandon(self) -> None:
        """Skip all further calls."""
        self._is_abandoned = True

    def close(self) -> None:
        """Accept no more calls."""
        self._queue.put(None)

    def join(self, patience_s: float) -> bool:
        """Block until all calls have returned, after `close`. Return False if one takes longer than `patience_s`."""
        if self._thread is None:
            return True
        while True:
            num_done = self._num_done
            self._thread.join(patience_s)
            if not self._thread.is_alive():
                self._thread = None
                return True
            if self._num_done == num_done:
                self._is_abandoned = True
                return False

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if not self._is_abandoned:
                name, call = item
                self._current = name, time.monotonic()
                call()
                self._current = None
                self._num_done += 1


def _is_builtin(callback: object) -> bool:
    return type(callback).__module__.startswith(f"{__package__}.")

"""Who listens to a search: callbacks and `logging`, in a thread of their own, in order.

    hub's thread:    fact, orders --heard--> events --.
                     a line of the progress --told----|--> queue --> callback.on_...(event), log
    caller's thread: start() ... close() -------------'    fanwise-callbacks, one thread

No decision waits for a callback. One that is slower than the search is heard to the end: `close` blocks until then. An
error in a callback is logged with its traceback, the first of each method; it ends nothing.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, final

from ...base.nearest import did_you_mean
from ..decisions.facts import Fact, Reported
from ..decisions.orders import Answer, Judged, Order, Start
from .events import SearchEnded, SearchStarted, TrialEnded, TrialReported, TrialStarted

_log = logging.getLogger(__name__)
# What happens to trials. A handler that does nothing: without `logging` set up, nothing of it appears on the screen,
# which shows it anyway.
events_log = logging.getLogger("fanwise.tune.events")
events_log.addHandler(logging.NullHandler())

METHODS = ("on_start", "on_trial_start", "on_report", "on_trial_end", "on_end")

Event = SearchStarted | TrialStarted | TrialReported | TrialEnded | SearchEnded


def checked_callbacks(callbacks: object) -> tuple[object, ...]:
    """The callbacks, each with one of the methods at least, or TypeError that names the nearest."""
    if not isinstance(callbacks, list | tuple):
        raise TypeError(
            f"callbacks must be a list, got {callbacks!r}.\n  right:  callbacks=[{type(callbacks).__name__}()]"
        )
    for callback in callbacks:
        if isinstance(callback, type):
            raise TypeError(f"callbacks are objects, got the class {callback.__name__}; write {callback.__name__}()")
        named = [name for name in dir(callback) if name.startswith("on_")]
        for name in named:
            if name not in METHODS:
                raise TypeError(
                    f"{type(callback).__name__} has {name}, which is never called{did_you_mean(name, METHODS)}"
                )
        if not named:
            raise TypeError(f"a callback has one of the methods {', '.join(METHODS)}; {callback!r} has none")
    return tuple(callbacks)


@dataclass(slots=True)
class _Heard:
    """What is known of a trial that may still run."""

    config: Mapping[str, Any]  # Any: JSON
    iter: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)  # Any: what was reported


@final
class Listening:
    """See the module. `alive`: configurations of the trials that a resumed search may go on with."""

    def __init__(self, callbacks: Sequence[object], alive: Mapping[int, Mapping[str, Any]]) -> None:  # Any: JSON
        self._methods = {name: [(c, getattr(c, name)) for c in callbacks if hasattr(c, name)] for name in METHODS}
        self._trials = {trial_id: _Heard(config) for trial_id, config in alive.items()}
        self._has_callbacks = bool(callbacks)
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._errors: Counter[str] = Counter()
        self._thread: threading.Thread | None = None

    def start(self, event: SearchStarted) -> None:
        """The search begins."""
        self._put("on_start", event)

    def heard(self, fact: Fact, orders: list[Order]) -> None:
        """A fact and what followed from it. On the hub's thread; blocks for nothing."""
        if not self._has_callbacks:
            return
        for order in orders:
            if type(order) is Answer:
                self._answered(fact, order)
            elif type(order) is Start:
                self._started(fact.now_s, order)
            elif type(order) is Judged:
                self._judged(fact.now_s, order)

    def told(self, line: str, is_failure: bool) -> None:
        """A line about the search, for the log. On the hub's thread; blocks for nothing."""
        level = logging.WARNING if is_failure else logging.INFO
        if events_log.isEnabledFor(level):
            self._queue(lambda: events_log.log(level, "%s", line))

    def close(self, event: SearchEnded) -> None:
        """The search is over. Blocks until all callbacks have heard of everything."""
        self._put("on_end", event)
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None
        for what, count in self._errors.items():
            if count > 1:
                _log.error("%s raised %d times; the first is above", what, count)

    def _answered(self, fact: Fact, order: Answer) -> None:
        trial = self._trials.get(order.trial_id)
        if trial is None or order.late or order.repeated or type(fact) is not Reported:
            return
        trial.iter, trial.values = order.iter, fact.values
        values: Any = fact.values  # Any: numbers, as the search has checked
        self._put(
            "on_report",
            TrialReported(fact.now_s, fact.trial_id, fact.attempt, trial.config, order.iter, values, order.decision),
        )

    def _started(self, now_s: float, order: Start) -> None:
        if order.trial_id not in self._trials:
            self._trials[order.trial_id] = _Heard(order.config)
        event = TrialStarted(now_s, order.trial_id, order.attempt, order.config, order.from_iter, order.source)
        self._put("on_trial_start", event)

    def _judged(self, now_s: float, order: Judged) -> None:
        trial = self._trials.get(order.trial_id)
        if trial is None:
            return
        event = TrialEnded(
            now_s,
            order.trial_id,
            order.attempt,
            trial.config,
            order.status,
            trial.iter,
            trial.values,
            order.reason,
            order.will_retry,
        )
        if event.is_over:
            del self._trials[order.trial_id]
        self._put("on_trial_end", event)

    def _put(self, name: str, event: Event) -> None:
        for callback, method in self._methods[name]:
            self._queue(partial(self._call, callback, name, method, event))

    def _call(self, callback: object, name: str, method: Callable[[Event], object], event: Event) -> None:
        try:
            method(event)
        except Exception as error:  # user code: whatever it raises, the search goes on
            what = f"the callback {type(callback).__name__}.{name}"
            self._errors[what] += 1
            if self._errors[what] == 1:
                _log.error("%s raised %s: %s. The search goes on.", what, type(error).__name__, error, exc_info=error)

    def _queue(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanwise-callbacks", daemon=True)
            self._thread.start()
        self._todo.put(call)

    def _run(self) -> None:
        while (call := self._todo.get()) is not None:
            call()

"""Who listens to a search: callbacks and `logging`, each in a thread of its own, in order.

    hub's thread:    fact, orders --heard--> events --.
                     a line of the state --told----|--> a `Lane` for each --> callback.on_...(event), log
    caller's thread: start() ... close() -------------'

No decision waits for a callback, and no callback for another. One that is slower than the search is told everything:
`close` blocks as long as its calls return. One whose call does not, such as on a server that is gone, is said to be
stuck and told no more. An error in a callback is logged, the first of each method; it ends nothing, but for a callback
whose `on_start` failed: that one hears nothing more. Of a callback of ours no traceback is shown: it is not the user's.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from ...base.nearest import did_you_mean
from ...base.text import counted, printable_line
from ..decisions.facts import Fact, Reported
from ..decisions.orders import Answer, Judged, Order, Start
from ..schedulers.base import Status
from .events import SearchEnded, SearchStarted, TrialEnded, TrialReported, TrialStarted
from .lanes import Lane

_log = logging.getLogger(__name__)
# What happens to trials. A handler that does nothing: without `logging` set up, nothing of it appears on the screen,
# which shows it anyway.
events_log = logging.getLogger("fanwise.tune.events")
events_log.addHandler(logging.NullHandler())

# A call that takes longer is said. After the end of a search one of ours is not waited for any longer: it talks to a
# server. A user's may have something to do at the end, such as copying a model: it has so many times as long.
PATIENCE_S = 5.0
_TIMES_FOR_USERS = 12
_MOST_CHARACTERS = 300  # of an error, in one line
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
    is_paused: bool = False
    iter: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)  # Any: what was reported


@final
class Listening:
    """See the module. `alive`: for each trial that a resumed search may continue, its config and if it is paused."""

    def __init__(
        self,
        callbacks: Sequence[object],
        alive: Mapping[int, tuple[Mapping[str, Any], bool]],  # Any: JSON
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._log_lane = Lane("the log")
        lanes = [(callback, Lane(f"the callback {type(callback).__name__}")) for callback in callbacks]
        self._lanes = [lane for _, lane in lanes]
        self._of_ours = [self._log_lane, *(lane for callback, lane in lanes if _is_ours(callback))]
        self._methods = {
            name: [(lane, callback, getattr(callback, name)) for callback, lane in lanes if hasattr(callback, name)]
            for name in METHODS
        }
        self._trials = {trial_id: _Heard(*trial) for trial_id, trial in alive.items()}
        self._errors: Counter[str] = Counter()

    def start(self, event: SearchStarted) -> None:
        """The search begins."""
        self._put("on_start", event)

    def heard(self, fact: Fact, orders: list[Order]) -> None:
        """A fact and what followed from it. On the hub's thread; blocks for nothing. Without callbacks not needed."""
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
            self._log_lane.put("log", lambda: events_log.log(level, "%s", line))

    def close(self, event: SearchEnded) -> None:
        """The search is over. Blocks until all callbacks have heard of everything, but for those that are stuck."""
        self._put("on_end", event)
        lanes = [*self._lanes, self._log_lane]
        for lane in lanes:
            lane.end()
        for lane in lanes:
            if not lane.wait(self._patience_s * (1 if lane in self._of_ours else _TIMES_FOR_USERS)):
                _log.error(
                    "%s is stuck: it has not returned for %.0f s. The search is over and waits for it no longer: "
                    "not told to it: %s; and what it writes may be incomplete",
                    *(lane.busy_with, lane.busy_s, counted(lane.num_waiting, "event")),
                )
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
        trial = self._trials.setdefault(order.trial_id, _Heard(order.config))
        void_after = order.from_iter if order.attempt and not trial.is_paused else None
        trial.is_paused = False
        event = TrialStarted(
            now_s, order.trial_id, order.attempt, order.config, order.from_iter, order.source, void_after
        )
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
        trial.is_paused = order.status is Status.PAUSED
        if event.is_over:
            del self._trials[order.trial_id]
        self._put("on_trial_end", event)

    def _put(self, name: str, event: Event) -> None:
        for lane, callback, method in self._methods[name]:
            lane.put(name, partial(self._call, lane, callback, name, method, event))
            if lane.busy_s > self._patience_s and not lane.was_said_to_be_late:
                lane.was_said_to_be_late = True
                what, seconds = lane.busy_with, lane.busy_s
                line = "%s has not returned for %.0f s; the search goes on, and what follows is told to it later"
                self._log_lane.put("log", partial(_log.warning, line, what, seconds))

    def _call(self, lane: Lane, callback: object, name: str, method: Callable[[Event], object], event: Event) -> None:
        try:
            method(event)
        except BaseException as error:  # user code: sys.exit() would end the thread without a word
            what = f"the callback {type(callback).__name__}.{name}"
            self._errors[what] += 1
            is_ours = _is_ours(callback)
            if name == "on_start":
                lane.give_up()
            goes_on = "It hears nothing more; the search" if name == "on_start" else "The search"
            if self._errors[what] == 1:
                said = f"{type(error).__name__}: {error}"
                said = printable_line(said.partition("\n")[0])[:_MOST_CHARACTERS] if is_ours else said
                _log.error("%s raised %s. %s goes on.", what, said, goes_on, exc_info=None if is_ours else error)


def _is_ours(callback: object) -> bool:
    return type(callback).__module__.startswith(f"{__package__}.")

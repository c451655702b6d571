"""What the events of a record add up to: trials, their attempts, and the columns of their reports.

    events in the order of the record -> History.fold -> trials, reports, first_ready_s, stop_s, finished
                                                            |
                            best_row, worker_time_s, utilisation: questions asked of it

Knows the kinds of events (docs/design/main-job.md) and passes over kinds it does not know. Does not know where events
come from, nor data frames. Folding in pieces gives the same as folding at once: so a running search can be watched.

Reports are kept in columns, since there may be millions of them. Each trial runs in attempts 0, 1, ...; the reports of
an attempt that was tried again are in the columns, but count for nothing.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Protocol

from ..base.errors import RecordError

IN_PROGRESS = "InProgress"


class RecordedEvent(Protocol):
    """What is read of an event; `record_reading.Event` is one."""

    @property
    def seq(self) -> int: ...
    @property
    def t_s(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def trial_id(self) -> int | None: ...
    @property
    def body(self) -> Mapping[str, Any]: ...  # Any: JSON


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial failed: the kind (`exception`, `signal`, `out-of-memory`, ...) and all that is known of it."""

    kind: str
    text: str
    traceback: str | None
    last_output: str | None


@dataclass(slots=True)
class Attempt:
    """One run of a trial's objective on one slot. Times are seconds since the tuner started."""

    number: int
    slot: int
    started_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    free_s: float | None = None
    objective_s: float | None = None
    status: str = IN_PROGRESS
    failure: Failure | None = None
    will_retry: bool = False
    num_reports: int = 0
    last_row: int | None = None


@dataclass(slots=True)
class Trial:
    """One configuration and its attempts, of which the last one counts."""

    trial_id: int
    config: Mapping[str, Any]  # Any: JSON
    attempts: list[Attempt]

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    def numbered(self, number: int) -> Attempt:
        for attempt in reversed(self.attempts):
            if attempt.number == number:
                return attempt
        raise KeyError(f"attempt {number}")

    def leaving(self, slot: int) -> Attempt:
        """The attempt whose slot comes free: the next attempt may already run, on another slot."""
        for attempt in self.attempts:
            if attempt.slot == slot and attempt.free_s is None:
                return attempt
        raise KeyError(f"slot {slot}")


@dataclass(slots=True)
class Reports:
    """All reports as columns of one length. A value that a report did not have is None."""

    trial_ids: "array[int]" = field(default_factory=lambda: array("q"))
    attempts: "array[int]" = field(default_factory=lambda: array("q"))
    iters: "array[int]" = field(default_factory=lambda: array("q"))
    t_s: "array[float]" = field(default_factory=lambda: array("d"))
    worker_times: "array[float]" = field(default_factory=lambda: array("d"))
    decisions: list[str] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)  # Any: what was reported
    words: dict[str, str] = field(default_factory=dict)  # one object a decision, not one a row

    def __len__(self) -> int:
        return len(self.decisions)

    def add(self, trial_id: int, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        row = len(self.decisions)
        values = body["values"]
        for name, value in values.items():
            column = self.values.get(name)
            if column is None:
                column = self.values[name] = [None] * row
            column.append(value)
        if len(values) < len(self.values):
            for column in self.values.values():
                if len(column) == row:
                    column.append(None)
        self.trial_ids.append(trial_id)
        self.attempts.append(body["attempt"])
        self.iters.append(body["iter"])
        self.t_s.append(t_s)
        self.worker_times.append(body["worker_time"])
        self.decisions.append(self.words.setdefault(body["decision"], body["decision"]))


@dataclass(slots=True)
class History:
    """The state of a search after the events folded so far."""

    trials: dict[int, Trial] = field(default_factory=dict)
    reports: Reports = field(default_factory=Reports)
    first_ready_s: float | None = None
    stop_s: float | None = None
    last_s: float = 0.0
    last_seq: int = 0
    finished: bool = False
    end_reason: str | None = None

    def fold(self, events: Iterable[RecordedEvent]) -> None:
        """Take in events, which must follow those taken in before.

        Raises:
            RecordError: an event lacks something or belongs to a trial that never started: the record is damaged.
        """
        for event in events:
            try:
                self._fold_one(event)
            except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
                raise RecordError(
                    f"The record is damaged: event {event.seq} ({event.kind!r} of trial {event.trial_id}) does not fit "
                    f"what came before it, or lacks a field ({type(error).__name__}: {error})."
                ) from error
            self.last_s, self.last_seq = event.t_s, event.seq

    def _fold_one(self, event: RecordedEvent) -> None:
        kind, trial_id, t_s, body = event.kind, event.trial_id, event.t_s, event.body
        if kind == "report":
            self._report(self.trials[_known(trial_id)], t_s, body)
        elif kind == "start":
            attempt = Attempt(body["attempt"], body["slot"], t_s)
            trial = self.trials.setdefault(_known(trial_id), Trial(_known(trial_id), body["config"], []))
            trial.attempts.append(attempt)
        elif kind == "ready":
            self.trials[_known(trial_id)].numbered(body["attempt"]).ready_s = t_s
            self.first_ready_s = t_s if self.first_ready_s is None else self.first_ready_s
        elif kind == "end":
            _end(self.trials[_known(trial_id)].numbered(body["attempt"]), t_s, body)
        elif kind == "free":
            self.trials[_known(trial_id)].leaving(body["slot"]).free_s = t_s
        elif kind == "stop" and self.stop_s is None:
            self.stop_s = t_s
        elif kind == "finish":
            self.finished = True
            self.end_reason = body.get("reason")

    def _report(self, trial: Trial, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        attempt = trial.numbered(body["attempt"])
        attempt.num_reports += 1
        attempt.last_row = len(self.reports)
        self.reports.add(trial.trial_id, t_s, body)

    def status_of(self, trial: Trial) -> str:
        """The trial's status; one that waits for its next attempt is in progress as long as trials are started."""
        attempt = trial.last
        return IN_PROGRESS if attempt.will_retry and self.stop_s is None and not self.finished else attempt.status

    def counts(self) -> list[bool]:
        """For each report, whether it is of its trial's last attempt."""
        last = {trial_id: trial.last.number for trial_id, trial in self.trials.items()}
        attempts = zip(self.reports.trial_ids, self.reports.attempts, strict=True)
        return [number == last[trial_id] for trial_id, number in attempts]


def best_rows(history: History, metric: str, mode: str) -> dict[int, int]:
    """For each trial with a finite value of `metric`, the row of its best report; of equal ones the first."""
    column: Sequence[object] = history.reports.values.get(metric) or [None] * len(history.reports)
    sign = 1.0 if mode == "min" else -1.0
    best: dict[int, tuple[float, int]] = {}
    rows = zip(range(len(column)), history.reports.trial_ids, column, strict=True)
    for row, trial_id, value in compress(rows, history.counts()):
        # NaN and infinities say that something went wrong, not that it went well.
        if isinstance(value, (int, float)) and math.isfinite(value):
            known = best.get(trial_id)
            if known is None or sign * value < known[0]:
                best[trial_id] = (sign * value, row)
    return {trial_id: row for trial_id, (_, row) in best.items()}


def best_row(history: History, metric: str, mode: str) -> int | None:
    """The row of the best report of all trials; of equal ones the earliest. None when nothing finite was reported."""
    rows = best_rows(history, metric, mode).values()
    column, sign = history.reports.values.get(metric, ()), 1.0 if mode == "min" else -1.0
    return min(rows, key=lambda row: (sign * column[row], row), default=None)


def worker_time_s(history: History, trial: Trial, until_s: float = math.inf) -> float:
    """Seconds that the trial spent inside its objective up to `until_s`, all attempts together."""
    return math.fsum(_objective_s(attempt, history.last_s, until_s) for attempt in trial.attempts)


def utilisation(history: History, n_workers: int) -> float | None:
    """Time inside the objective, over n_workers times the time from the first `ready` to `stop` (or the last event).

    None while that time is nothing: before the first `ready`, and at it.
    """
    end_s = history.last_s if history.stop_s is None else history.stop_s
    if history.first_ready_s is None or end_s <= history.first_ready_s:
        return None
    busy_s = math.fsum(worker_time_s(history, trial, end_s) for trial in history.trials.values())
    return busy_s / (n_workers * (end_s - history.first_ready_s))


def _objective_s(attempt: Attempt, last_s: float, until_s: float) -> float:
    """As the worker measured it; while it runs, and where the worker could not tell any more, by our own clock."""
    if attempt.ready_s is None:
        return 0.0
    ended_s = last_s if attempt.ended_s is None else attempt.ended_s
    spent_s = ended_s - attempt.ready_s if attempt.objective_s is None else attempt.objective_s
    return max(0.0, min(spent_s, until_s - attempt.ready_s))


def _end(attempt: Attempt, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
    reason = body["reason"]
    attempt.ended_s = t_s
    attempt.status = body["status"]
    attempt.objective_s = body["objective_s"]
    attempt.will_retry = body["will_retry"]
    if reason is not None:
        attempt.failure = Failure(reason["kind"], reason["text"], reason.get("traceback"), reason.get("last_output"))


def _known(trial_id: int | None) -> int:
    if trial_id is None:
        raise KeyError("trial")
    return trial_id


def spans(history: History) -> Iterator[tuple[Trial, Attempt]]:
    """All stays of trials on slots, in order of trials and attempts."""
    for trial in history.trials.values():
        for attempt in trial.attempts:
            yield trial, attempt

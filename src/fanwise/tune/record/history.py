"""What the rows of a record add up to, in full: trials, their attempts, and the columns of their reports.

    rows in the order of the record -> History.fold -> trials, reports, progress (the bounded fold: see progress.py)
                                                            |
                                         best_row: a question asked of it

Does not know where rows come from, nor data frames. Folding in pieces gives the same as folding at once: so a running
search can be watched. Reports are kept in columns, since there may be millions of them.

Which reports count: those that their trial, going on from a checkpoint, has not left behind as void (the reports after
the checkpoint, unless the trial was paused), that did not come late, and that were not repeated after a pause.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Protocol, final

from ...base.errors import RecordError
from ..constraints import checked_constraints, infeasibility, violated, violations_of
from ..searchers.base import Objective
from .progress import Progress

IN_PROGRESS = "InProgress"


class RecordedEvent(Protocol):
    """The fields of an event that are read; `reading.Event` has them."""

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
    """One run of a trial's objective on one slot. Times are seconds since the search began.

    `valid_to`: its reports after this iteration are void; None: all stand. `threads`: what it left running.
    """

    number: int
    slot: int
    started_s: float
    from_iter: int = 0
    checkpoint: str | None = None
    valid_to: int | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    free_s: float | None = None
    objective_s: float | None = None
    status: str = IN_PROGRESS
    failure: Failure | None = None
    will_retry: bool = False
    num_reports: int = 0
    last_row: int | None = None
    threads: tuple[str, ...] = ()


@dataclass(slots=True)
class Trial:
    """One configuration and its attempts. `source`: the trial that it was cloned from."""

    trial_id: int
    config: Mapping[str, Any]  # Any: JSON
    attempts: list[Attempt]
    source: int | None = None
    fallback: bool = False
    checkpoint: str | None = None
    num_reports: int = 0

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    def numbered(self, number: int) -> Attempt:
        for attempt in reversed(self.attempts):
            if attempt.number == number:
                return attempt
        raise KeyError(f"attempt {number}")


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
    repeated: "array[int]" = field(default_factory=lambda: array("q"))  # rows of reports made again after a pause

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
        if "repeated" in body:
            self.repeated.append(row)


@final
class History:
    """The state of a search after the rows folded so far. `meta`: the record's."""

    def __init__(self, meta: Mapping[str, Any]) -> None:  # Any: JSON
        self.trials: dict[int, Trial] = {}
        self.reports = Reports()
        self.progress = Progress(meta)
        self.metric = str(meta["metric"])
        self.mode = str(meta["mode"])
        self.constraints = checked_constraints(meta.get("constraints", []))
        self.last_seq = 0

    @property
    def last_s(self) -> float:
        """The time of the last row."""
        return self.progress.last_s

    @property
    def finished(self) -> bool:
        """Whether the search came to its end."""
        return self.progress.finished

    @property
    def stop_s(self) -> float | None:
        """When trials were no longer started; None: they are."""
        return self._stop_s

    _stop_s: float | None = None

    def fold(self, events: Iterable[RecordedEvent]) -> None:
        """Take in rows, which must follow those taken in before.

        Raises:
            RecordError: a row lacks something or belongs to a trial that never started: the record is damaged.
        """
        for event in events:
            try:
                self._fold_one(event)
                self.progress.fold(event.t_s, event.kind, event.trial_id, event.body)
            except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
                raise RecordError(
                    f"The record is damaged: event {event.seq} ({event.kind!r} of trial {event.trial_id}) does not fit "
                    f"what came before it, or lacks a field ({type(error).__name__}: {error})."
                ) from error
            self.last_seq = event.seq

    def _fold_one(self, event: RecordedEvent) -> None:
        kind, t_s, body = event.kind, event.t_s, event.body
        if kind == "report":
            if "decision" in body and "late" not in body:
                self._report(self.trials[_known(event.trial_id)], t_s, body)
        elif kind == "ready":
            self.trials[_known(event.trial_id)].numbered(body["attempt"]).ready_s = t_s
        elif kind == "ended":
            _end(self.trials[_known(event.trial_id)].numbered(body["attempt"]), t_s, body)
        elif kind == "free":
            self.trials[_known(event.trial_id)].numbered(body["attempt"]).free_s = t_s
        elif kind == "resumed":
            self._resumed(t_s)
        for order in body.get("orders", ()):
            self._order(order, t_s, body)

    def _report(self, trial: Trial, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        attempt = trial.numbered(body["attempt"])
        attempt.num_reports += 1
        attempt.last_row = len(self.reports)
        trial.num_reports = body["iter"]
        if "checkpoint" in body:
            trial.checkpoint = body["checkpoint"]
        self.reports.add(trial.trial_id, t_s, body)

    def _order(self, order: Mapping[str, Any], t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
        what = order["order"]
        if what == "start":
            self._start(order, t_s)
        elif what == "judged":
            attempt = self.trials[order["trial"]].numbered(order["attempt"])
            attempt.status = order["status"]
            attempt.will_retry = order.get("will_retry", False)
            if "reason" in order:
                outcome = body.get("outcome", {})
                kind, text = order["reason"]
                attempt.failure = Failure(kind, text, outcome.get("traceback"), outcome.get("last_output"))
        elif what == "stop" and self._stop_s is None:
            self._stop_s = t_s

    def _start(self, order: Mapping[str, Any], t_s: float) -> None:  # Any: JSON
        trial_id, from_iter = order["trial"], order.get("from_iter", 0)
        checkpoint = order.get("checkpoint")
        attempt = Attempt(order["attempt"], order["slot"], t_s, from_iter, checkpoint)
        trial = self.trials.get(trial_id)
        if trial is None:
            source, fallback = order.get("source"), order.get("fallback", False)
            trial = self.trials[trial_id] = Trial(trial_id, order["config"], [], source, fallback, checkpoint)
        elif trial.last.status != "Paused":
            for before in trial.attempts:
                before.valid_to = from_iter if before.valid_to is None else min(before.valid_to, from_iter)
        trial.num_reports = from_iter
        trial.attempts.append(attempt)

    def _resumed(self, t_s: float) -> None:
        """What ran was lost with its tuner."""
        self._stop_s = None
        for trial in self.trials.values():
            for attempt in trial.attempts[-1:]:
                if attempt.ended_s is None:
                    attempt.ended_s, attempt.will_retry, attempt.status = self.last_s, True, "Lost"
                if attempt.free_s is None:
                    attempt.free_s = attempt.ended_s

    def status_of(self, trial: Trial, *, dead: bool = False) -> str:
        """The trial's status; one that waits for its next attempt is in progress as long as trials are started.

        `dead`: the tuner is gone, so that what was in progress is lost.
        """
        attempt = trial.last
        if attempt.status == IN_PROGRESS or (attempt.will_retry and self._stop_s is None and not self.finished):
            return "Lost" if dead else IN_PROGRESS
        return attempt.status

    def counts(self) -> list[bool]:
        """For each report, whether it counts; see the module."""
        void = {
            (trial.trial_id, attempt.number): attempt.valid_to
            for trial in self.trials.values()
            for attempt in trial.attempts
            if attempt.valid_to is not None
        }
        reports = self.reports
        counts = [True] * len(reports)
        for row in reports.repeated:
            counts[row] = False
        if void:
            for row, key in enumerate(zip(reports.trial_ids, reports.attempts, strict=True)):
                valid_to = void.get(key)
                if valid_to is not None and reports.iters[row] > valid_to:
                    counts[row] = False
        return counts

    def infeasibilities(self) -> list[float]:
        """Of each report, how far it is from meeting all constraints: 0 if it does."""
        if not self.constraints:
            return [0.0] * len(self.reports)
        names = list(dict.fromkeys(bound.metric for bound in self.constraints))
        columns = [self.reports.values.get(name) or [None] * len(self.reports) for name in names]
        rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
        return [infeasibility(self.constraints, violations_of(self.constraints, row)) for row in rows]

    def violated(self, row: int) -> dict[str, float]:
        """Which constraints a report violates, as they are written, and by how much."""
        return violated(self.constraints, {name: column[row] for name, column in self.reports.values.items()})


def best_rows(history: History, objective: Objective | None = None) -> dict[int, int]:
    """For each trial with a finite value of the metric, the row of its best report; of equal ones the first.

    One that meets all constraints goes before all that do not; of these the nearest to it is the best. `objective`: by
    this one; None: by the first.
    """
    return {trial_id: row for trial_id, (_, _, row) in _best(history, objective or _first(history)).items()}


def best_row(history: History) -> int | None:
    """The row of the best report of all trials; of equal ones the earliest. None when nothing finite was reported."""
    ranked = _best(history, _first(history)).values()
    return min(ranked)[2] if ranked else None


def _first(history: History) -> Objective:
    return Objective(history.metric, "min" if history.mode == "min" else "max")


def _best(history: History, objective: Objective) -> dict[int, tuple[float, float, int]]:
    """Infeasibility, loss and row of each trial's best report."""
    column: Sequence[object] = history.reports.values.get(objective.metric) or [None] * len(history.reports)
    best: dict[int, tuple[float, float, int]] = {}
    rows = zip(range(len(column)), history.reports.trial_ids, column, history.infeasibilities(), strict=True)
    for row, trial_id, value, beyond in compress(rows, history.counts()):
        # NaN and infinities say that something went wrong, not that it went well.
        if isinstance(value, (int, float)) and math.isfinite(value) and math.isfinite(beyond):
            known = best.get(trial_id)
            loss = objective.loss(value)
            if known is None or (beyond, loss) < known[:2]:
                best[trial_id] = (beyond, loss, row)
    return best


def worker_time_s(history: History, trial: Trial, until_s: float = math.inf) -> float:
    """Seconds that the trial spent inside its objective up to `until_s`, all attempts together."""
    return math.fsum(_objective_s(attempt, history.last_s, until_s) for attempt in trial.attempts)


def _objective_s(attempt: Attempt, last_s: float, until_s: float) -> float:
    """As the worker measured it; while it runs, and where the worker could not tell any more, by our own clock."""
    if attempt.ready_s is None:
        return 0.0
    ended_s = last_s if attempt.ended_s is None else attempt.ended_s
    spent_s = ended_s - attempt.ready_s if attempt.objective_s is None else attempt.objective_s
    return max(0.0, min(spent_s, until_s - attempt.ready_s))


def _end(attempt: Attempt, t_s: float, body: Mapping[str, Any]) -> None:  # Any: JSON
    attempt.ended_s = t_s
    attempt.objective_s = body["objective_s"]
    attempt.threads = tuple(body.get("outcome", {}).get("threads", ()))


def _known(trial_id: int | None) -> int:
    if trial_id is None:
        raise KeyError("trial")
    return trial_id


def spans(history: History) -> Iterator[tuple[Trial, Attempt]]:
    """All stays of trials on slots, in order of trials and attempts."""
    for trial in history.trials.values():
        for attempt in trial.attempts:
            yield trial, attempt

"""A trial and its attempts, as the events of a record describe them."""

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..constraints import format_violations
from ..schedulers.scheduler import Status


class RankedReport(NamedTuple):
    """A report and its rank: the smallest is the best, and of equal ones the first.

    `violations`: each constraint that it violates, and by how much.
    """

    infeasibility: float
    loss: float
    number: int
    value: float
    trial_id: int
    iter: int
    config: Mapping[str, Any]  # Any: JSON
    violations: Mapping[str, float]

    def is_before(self, other: "RankedReport | None") -> bool:
        return other is None or self[:3] < other[:3]

    @property
    def violated(self) -> str:
        """The violations as text; "" if there are none."""
        return format_violations(self.violations)


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

    Attributes:
        status: as the search judged it; "Lost": its tuner was killed.
        valid_to: its reports after this iteration are void; None: all are valid.
        threads: descriptions of threads that it left running.
        last_row: the row of its last report in the columns, if these are kept.
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
    status: str = Status.IN_PROGRESS.value
    failure: Failure | None = None
    will_retry: bool = False
    num_reports: int = 0
    last_row: int | None = None
    threads: tuple[str, ...] = ()


@dataclass(slots=True)
class Trial:
    """One configuration and its attempts.

    Attributes:
        attempts: all of them, or the last one only where not everything is kept.
        source: the trial that it was cloned from.
        fallback: whether its configuration was drawn at random because the searcher took too long.
        checkpoint: the last one.
        num_reports: reports so far, without void ones.
        values: its last report.
        worker_time_s: seconds inside the objective until its last report or end, all attempts together.
        best, best_iter: its best report. best_at_checkpoint: the best one after a rollback to the last checkpoint.
    """

    trial_id: int
    config: Mapping[str, Any]  # Any: JSON
    attempts: list[Attempt]
    source: int | None = None
    fallback: bool = False
    checkpoint: str | None = None
    status: Status = Status.IN_PROGRESS
    num_reports: int = 0
    values: Mapping[str, Any] | None = None  # Any: JSON
    worker_time_s: float | None = None
    earlier_s: float = 0.0  # inside the objective, in attempts that have ended
    best: RankedReport | None = None
    best_iter: int = 0
    best_at_checkpoint: RankedReport | None = None

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    def attempt(self, number: int) -> Attempt:
        """Return an attempt by its number. Raises KeyError."""
        for attempt in reversed(self.attempts):
            if attempt.number == number:
                return attempt
        raise KeyError(f"attempt {number} of trial {self.trial_id}")


@dataclass(slots=True)
class Reports:
    """All reports as columns of one length. A value that a report did not have is None."""

    trial_ids: "array[int]" = field(default_factory=lambda: array("q"))
    attempts: "array[int]" = field(default_factory=lambda: array("q"))
    iters: "array[int]" = field(default_factory=lambda: array("q"))
    t_s: "array[float]" = field(default_factory=lambda: array("d"))
    worker_times: "array[float]" = field(default_factory=lambda: array("d"))
    decisions: list[str] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)  # Any: values of reports
    repeated: "array[int]" = field(default_factory=lambda: array("q"))  # rows of reports made again after a pause
    _words: dict[str, str] = field(default_factory=dict)  # one object for each decision, not one for each row

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
        self.decisions.append(self._words.setdefault(body["decision"], body["decision"]))
        if "repeated" in body:
            self.repeated.append(row)

    def rows(self, *names: str) -> Iterator[dict[str, Any]]:  # Any: values of reports
        """Yield the values of these names, report by report; None where a report had none."""
        columns = [self.values.get(name) or [None] * len(self) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def worker_time_s(trial: Trial, last_s: float, until_s: float = math.inf) -> float:
    """Seconds that a trial spent inside its objective up to `until_s`, all attempts together.

    An attempt counts as its worker measured it; while it runs (until `last_s`), and where the worker could not measure
    any more, by the clock of the search.
    """
    return math.fsum(_objective_s(attempt, last_s, until_s) for attempt in trial.attempts)


def _objective_s(attempt: Attempt, last_s: float, until_s: float) -> float:
    if attempt.ready_s is None:
        return 0.0
    ended_s = last_s if attempt.ended_s is None else attempt.ended_s
    spent_s = ended_s - attempt.ready_s if attempt.objective_s is None else attempt.objective_s
    return max(0.0, min(spent_s, until_s - attempt.ready_s))

"""The data classes of a search's state: trials, attempts and reports, and the data of a table."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.trials import RankedReport
from ..schedulers.scheduler import Decision, Status

MAX_ROWS: Final = 50  # a snapshot has up to 50 running, 50 paused and 50 ended trials
_DECISIONS: Final = {str(decision): str(decision) for decision in Decision}  # shared by all reports, to save memory


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an attempt failed. `kind`: see `ReasonKind`."""

    kind: str
    text: str
    traceback: str | None
    last_output: str | None


@dataclass(slots=True)
class Attempt:
    """One run of a trial's objective on one slot. Times are seconds since the search began.

    Attributes:
        from_iter, checkpoint: number of the report and name of the checkpoint from which the attempt continues. 0 and
            None: start from scratch.
        valid_to: number of the last valid report. None: all are valid.
        ready_s, free_s: time when the objective was called, and when the slot became free.
        status: a `Status`, or "Lost" if the tuner was killed.
        host: name of its host if the pool has several, or None.
        threads: descriptions of threads that the attempt left running.
        last_report_index: index of the last report in `Reports`, if all reports are kept.
    """

    number: int
    slot: int
    started_s: float
    from_iter: int = 0
    checkpoint: str | None = None
    valid_to: int | None = None
    ready_s: float | None = None
    host: str | None = None
    ended_s: float | None = None
    free_s: float | None = None
    objective_s: float | None = None
    status: str = Status.IN_PROGRESS.value
    failure: Failure | None = None
    will_retry: bool = False
    num_reports: int = 0
    last_report_index: int | None = None
    threads: tuple[str, ...] = ()


@dataclass(slots=True)
class Trial:
    """One configuration and its attempts.

    Attributes:
        attempts: all attempts if all trials are kept, otherwise the last one.
        source: id of the trial that was cloned, or None.
        fallback: the configuration was drawn at random because the searcher took too long.
        checkpoint: name of the last checkpoint.
        last_iter: number of the last valid report, or 0.
        values: values of the last report.
        worker_time_s: seconds inside the objective in all attempts, up to the last report or end of an attempt.
        ended_attempts_s: seconds inside the objective in attempts that have ended.
        best, best_at_checkpoint: the best valid report, and the best one up to the last checkpoint.
    """

    trial_id: int
    config: Mapping[str, Any]
    attempts: list[Attempt]
    source: int | None = None
    fallback: bool = False
    checkpoint: str | None = None
    status: Status = Status.IN_PROGRESS
    last_iter: int = 0
    values: Mapping[str, Any] | None = None
    worker_time_s: float | None = None
    ended_attempts_s: float = 0.0
    best: RankedReport | None = None
    best_at_checkpoint: RankedReport | None = None

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    def attempt(self, number: int) -> Attempt:
        for attempt in reversed(self.attempts):
            if attempt.number == number:
                return attempt
        raise KeyError(f"attempt {number} of trial {self.trial_id}")


@dataclass(slots=True)
class Reports:
    """All reports as columns. In a column of `values`, None stands for a report without this value."""

    trial_ids: "array[int]" = field(default_factory=lambda: array("q"))
    attempts: "array[int]" = field(default_factory=lambda: array("q"))
    iters: "array[int]" = field(default_factory=lambda: array("q"))
    t_s: "array[float]" = field(default_factory=lambda: array("d"))
    worker_times: "array[float]" = field(default_factory=lambda: array("d"))
    decisions: list[str] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)
    repeated: "array[int]" = field(default_factory=lambda: array("q"))  # indices of reports repeated after a pause

    def __len__(self) -> int:
        return len(self.decisions)

    def add(self, trial_id: int, t_s: float, body: Mapping[str, Any]) -> None:
        index = len(self.decisions)
        values = body["values"]
        for name, value in values.items():
            column = self.values.get(name)
            if column is None:
                column = self.values[name] = [None] * index
            column.append(value)
        if len(values) < len(self.values):
            for column in self.values.values():
                if len(column) == index:
                    column.append(None)
        self.trial_ids.append(trial_id)
        self.attempts.append(body["attempt"])
        self.iters.append(body["iter"])
        self.t_s.append(t_s)
        self.worker_times.append(body["worker_time"])
        self.decisions.append(_DECISIONS.get(body["decision"], body["decision"]))
        if "repeated" in body:
            self.repeated.append(index)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial in a table. `iter`: number of its last report. `values`: values of its last report."""

    trial_id: int
    status: str
    iter: int | None
    config: Mapping[str, object]
    values: Mapping[str, object]
    worker_time_s: float | None


@dataclass(frozen=True, slots=True)
class SearchSnapshot:
    """The data of a table at one moment.

    Attributes:
        rows: the best trial, and the latest running, paused and ended trials, in the order of ids.
        config_names, value_names: names of the hyperparameters and of the reported values.
        running, paused, finished, total: numbers of trials. `finished` includes `completed` and `failed`.
        lost: number of trials that were running when their tuner was killed.
        best: value and trial id of the best report. violated: the constraints that this report violates.
        elapsed_s, limit_s: duration of the search so far and its wall-clock limit in seconds.
        utilization: share of the worker time spent in objectives, from 0 to 1. None: not known yet.
    """

    name: str
    metric: str
    rows: Sequence[TrialRow]
    config_names: Sequence[str]
    value_names: Sequence[str]
    running: int
    finished: int
    completed: int
    failed: int
    best: tuple[float, int] | None
    elapsed_s: float
    limit_s: float | None = None
    utilization: float | None = None
    paused: int = 0
    lost: int = 0
    total: int = 0
    violated: str = ""
    constraints: Sequence[str] = ()

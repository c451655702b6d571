"""Results of simulated searches."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from ..core.actions import BestReport
from ..schedulers.scheduler import Decision
from ..searchers.searcher import Objective


@final
@dataclass(frozen=True, slots=True)
class Incumbent:
    """A feasible report that was better than all previous ones. `time_s`: its virtual time in seconds."""

    time_s: float
    value: float
    trial_id: int
    iter: int


@final
@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """The result of a simulated search.

    Args:
        objective: the first objective.
        n_workers: number of workers.
        duration_s: virtual seconds from the start to the end of the search.
        reason: reason for the end of the search, in one line.
        best: the best report with its configuration, or None without reports. If no report is feasible, this is the
            report with the smallest `infeasibility`.
        incumbents: the best feasible report and all earlier best ones, in order of time.
        num_trials_started, num_trials_completed, num_trials_stopped, num_trials_failed: numbers of trials.
        num_attempts: number of times a trial was started, resumed or restarted.
        num_reports: number of reports, without repeated and late ones.
        decisions: number of reports that received each decision, without repeated reports.
        num_events: number of events passed to the state machine.
        training_s: total seconds of training on all workers, including work that was lost or repeated.
        utilization: share of worker time spent in training, as in `Experiment.utilization`.
    """

    objective: Objective
    n_workers: int
    duration_s: float
    reason: str
    best: BestReport | None
    incumbents: Sequence[Incumbent] = field(repr=False)
    num_trials_started: int
    num_trials_completed: int
    num_trials_stopped: int
    num_trials_failed: int
    num_attempts: int
    num_reports: int
    decisions: Mapping[Decision, int]
    num_events: int
    training_s: float
    utilization: float

    def best_value_at(self, time_s: float) -> float | None:
        """Return the best feasible value up to this virtual time, or None before the first feasible report."""
        index = bisect_right(self.incumbents, time_s, key=lambda incumbent: incumbent.time_s)
        return self.incumbents[index - 1].value if index else None

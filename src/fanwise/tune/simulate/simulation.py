"""The function `simulate`, which runs a search on a virtual clock, and its result."""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from ..core.trials import RankedReport
from ..record.utilization import Utilization
from ..schedulers.scheduler import Decision, Scheduler
from ..search_settings import SearchSettings
from ..searchers.searcher import Objective
from ..stopping import StoppingCriterion
from ..values import checked_bool, checked_int, checked_nonnegative
from ..warm_start import WarmStart, read_warm_start
from .tables import Table
from .workers import Faults, Incumbent, OnEvent, SimulatedWorkers


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
    best: RankedReport | None
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


def simulate(
    scheduler: Scheduler,
    table: Table,
    stop: StoppingCriterion,
    *,
    n_workers: int = 4,
    seed: int | None = None,
    checkpoints: bool = True,
    startup_s: float = 0.0,
    suggest_s: float = 0.0,
    faults: Faults | None = None,
    retries: int = 0,
    asynchronous: bool = True,
    trial_timeout_s: float | None = None,
    max_equal_failures: int | None = 3,
    warm_start: WarmStart | None = None,
    on_event: OnEvent | None = None,
) -> SimulatedSearch:
    """Simulate a search with learning curves in place of training, on a virtual clock.

    Blocks until the search ends. Simulating hours of a thousand workers takes seconds. Results are bit-identical on
    every machine.

    Args:
        scheduler: the scheduler, as for a Tuner. It is copied.
        table: learning curves and space, such as a `FunctionTable` or the result of `from_frame`.
        stop: stopping criterion. `max_wallclock_time` is in virtual seconds.
        n_workers: number of simulated workers.
        seed: seed of the search and the faults. None: the `random_seed` of the scheduler, or 0 if it has none.
        checkpoints: if True, trials save a checkpoint with every report. If False, resumed and retried trials start
            from scratch.
        startup_s: virtual seconds from the start of an attempt until the objective is called.
        suggest_s: virtual seconds per suggestion. The searcher computes one suggestion at a time.
        faults: random crashes, lost workers and slow attempts. None: no faults.
        retries: maximum number of restarts of a crashed trial.
        asynchronous: if False, trials start in batches, each when all trials of the previous one have ended.
        trial_timeout_s: virtual seconds after which an attempt is stopped. None: no limit.
        max_equal_failures: fail the search if the first `max_equal_failures` trials to finish all fail alike, or if
            all trials fail. None: never.
        warm_start: earlier experiments and data frames, as for a Tuner.
        on_event: called with every event and the resulting actions of the state machine, e.g. to collect reports.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range, the scheduler or warm start does not fit the space, no trial reported
            the metric, or a curve has invalid times.
        SearchFailedError: the search failed, for example because all trials crashed.
        Exception: any exception of the scheduler, the table or a user-defined function.

    >>> from fanwise.tune import FIFO, StoppingCriterion, uniform
    >>> from fanwise.tune.simulate import FunctionTable
    >>> def train(config, epoch):
    ...     return {"loss": config["x"] ** 2 + 1 / epoch}, 60.0  # report, seconds
    >>> table = FunctionTable(train, {"x": uniform(-1, 1), "max_epochs": 10})
    >>> stop = StoppingCriterion(max_wallclock_time=8 * 3600)
    >>> search = simulate(FIFO(metric="loss"), table, stop, n_workers=100)
    >>> search.num_trials_completed, search.utilization
    (4700, 1.0)
    """
    settings = SearchSettings.create(
        table.space,
        scheduler,
        stop,
        n_workers=checked_int("n_workers", n_workers, 1),
        random_seed=seed,
        default_seed=0,
        asynchronous=asynchronous,
        trial_timeout_s=trial_timeout_s,
        max_equal_failures=max_equal_failures,
        retries=retries,
    )
    earlier, _ = read_warm_start(warm_start, settings)
    scheduler = settings.copy_scheduler()
    core = settings.new_core(scheduler)
    workers = SimulatedWorkers(
        core=core,
        searcher=scheduler.searcher,
        table=table,
        metric=scheduler.objectives[0].metric,
        utilization=Utilization(n_workers),
        seed=settings.seed,
        checkpoints=checked_bool("checkpoints", checkpoints),
        startup_s=checked_nonnegative("startup_s", startup_s),
        suggest_s=checked_nonnegative("suggest_s", suggest_s),
        faults=faults,
        on_event=on_event,
        queue=deque(earlier),
    )
    duration_s, finish = workers.run()
    finish.raise_error()
    counts = core.counts
    return SimulatedSearch(
        objective=scheduler.objectives[0],
        n_workers=n_workers,
        duration_s=duration_s,
        reason=finish.reason,
        best=core.best,
        incumbents=workers.incumbents,
        num_trials_started=counts.num_trials_started,
        num_trials_completed=counts.num_trials_completed,
        num_trials_stopped=counts.num_trials_stopped,
        num_trials_failed=counts.num_trials_failed,
        num_attempts=workers.num_attempts,
        num_reports=counts.num_evaluations,
        num_events=workers.num_events,
        decisions=workers.decisions,
        training_s=workers.training_s,
        utilization=workers.utilization.share(duration_s) or 0.0,
    )

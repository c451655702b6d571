"""What a simulated search comes to: the incumbent over virtual time, counts, and all attempts and reports if wanted.

Whatever is kept for each attempt or report is a few numbers in arrays; without `keep` a finished trial leaves nothing.
"""

import statistics
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from ..decisions.orders import Best
from ..schedulers.base import Decision
from ..searchers.base import Objective

if TYPE_CHECKING:
    import pandas as pd

Keep: TypeAlias = Literal["incumbent", "attempts", "reports"]


@final
@dataclass(frozen=True, slots=True)
class Incumbent:
    """A report that was better than all before it, at its virtual time."""

    time_s: float
    value: float
    trial_id: int
    iter: int


@final
@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """A search that was simulated.

    Args:
        objective: what was optimised; the first one of several.
        n_workers: so many workers.
        duration_s: virtual seconds from the begin until nothing ran any more.
        reason: why it ended, in one line.
        best: the best report with its configuration; None: nothing was reported. Where no report meets all constraints,
            the nearest to that, with its `infeasibility`.
        incumbents: the best so far, whenever it became better; of the reports that meet all constraints.
        num_trials_started, num_trials_completed, num_trials_stopped, num_trials_failed: trials.
        num_attempts: how often a trial was started, resumed or started again.
        num_reports: reports that count: neither repeated nor late.
        num_facts: all that happened, as the state machine was told.
        decisions: how often each answer was given to a report that counts.
        training_s: seconds that all workers together spent in training, also where it was lost or repeated.
        utilisation: the share of worker time spent in training, counted as `Experiment.utilisation` is; 0 if no time
            counts.
    """

    objective: Objective
    n_workers: int
    duration_s: float
    reason: str
    best: Best | None
    incumbents: Sequence[Incumbent] = field(repr=False)
    num_trials_started: int
    num_trials_completed: int
    num_trials_stopped: int
    num_trials_failed: int
    num_attempts: int
    num_reports: int
    num_facts: int
    decisions: Mapping[Decision, int]
    training_s: float
    utilisation: float
    _attempts: "Columns | None" = field(repr=False, default=None)
    _reports: "Columns | None" = field(repr=False, default=None)

    def incumbent_at(self, time_s: float) -> float | None:
        """The best value that was reported up to this virtual time; None: none yet."""
        index = bisect_right(self.incumbents, time_s, key=lambda incumbent: incumbent.time_s)
        return self.incumbents[index - 1].value if index else None

    def time_to(self, target: float) -> float | None:
        """The virtual time at which a value as good as `target` was first reported; None: never."""
        loss = self.objective.loss
        times_s = (one.time_s for one in self.incumbents if loss(one.value) <= loss(target))
        return next(times_s, None)

    def attempts(self) -> "pd.DataFrame":
        """A row for each attempt that has ended: trial_id, attempt, worker, start_s, ready_s, end_s, from_iter, iter.

        `ready_s` is NaN where it ended before the objective began; `iter` is the last report.

        Raises:
            ValueError: they were not kept.
        """
        return _frame(self._attempts, "attempts")

    def reports(self) -> "pd.DataFrame":
        """A row for each report that counts, in the order of time: time_s, trial_id, iter, and the objective.

        Raises:
            ValueError: they were not kept.
        """
        return _frame(self._reports, "reports")


def _frame(columns: "Columns | None", what: Keep) -> "pd.DataFrame":
    if columns is None:
        raise ValueError(f"the {what} were not kept; simulate(..., keep={what!r}) keeps them")
    return columns.frame()


@final
class Columns:
    """Rows of numbers, eight bytes each. `types`: "q" for integers, "d" for floats.

    >>> columns = Columns({"trial_id": "q", "time_s": "d"})
    >>> columns.add(0, 1.5)
    >>> columns.frame().to_dict("records")
    [{'trial_id': 0, 'time_s': 1.5}]
    """

    def __init__(self, types: Mapping[str, Literal["q", "d"]]) -> None:
        self._arrays: dict[str, array[int] | array[float]] = {name: array(type) for name, type in types.items()}

    def add(self, *row: float) -> None:
        for column, value in zip(self._arrays.values(), row, strict=True):
            column.append(value)  # type: ignore[arg-type]  # the integers are where "q" is

    def frame(self) -> "pd.DataFrame":
        import pandas as pd  # here, because it takes long to load

        return pd.DataFrame({name: list(column) for name, column in self._arrays.items()})


@final
@dataclass(frozen=True, slots=True)
class Spread:
    """The incumbent at one virtual time over several searches, those that had none left out."""

    time_s: float
    mean: float
    deviation: float
    least: float
    greatest: float
    num_searches: int


def incumbent_spread(searches: Sequence[SimulatedSearch], times_s: Sequence[float]) -> list[Spread]:
    """Mean and spread of the incumbents of several searches, at each of these virtual times.

    A time at which no search had reported anything is left out. `deviation` is the sample's standard deviation, 0 for
    one search.
    """
    spreads = []
    for time_s in times_s:
        values = [value for one in searches if (value := one.incumbent_at(time_s)) is not None]
        if values:
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            mean = statistics.fmean(values)
            spreads.append(Spread(time_s, mean, deviation, min(values), max(values), len(values)))
    return spreads

"""The values that a table of a search shows at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Trials that are kept for showing.
MAX_ROWS = 50


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial: its last report in `values`; `iter` counts its reports. Missing things are None or absent."""

    trial_id: int
    status: str
    iter: int | None
    config: Mapping[str, object]
    values: Mapping[str, object]
    worker_time_s: float | None


@dataclass(frozen=True, slots=True)
class SearchSnapshot:
    """The values that a table shows at one moment.

    Attributes:
        rows: the latest trials.
        running, paused, finished, total: numbers of trials. completed, failed: of the finished ones.
        lost: trials that were running when their tuner was killed.
        best: value and trial id. violated: the constraints that it violates, if no report meets all.
        limit_s: the wall-clock limit, if any.
        utilization: the share of worker time spent inside the objective, 0 to 1.
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

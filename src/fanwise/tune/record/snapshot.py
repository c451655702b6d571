"""All that is shown of a search at one moment, as plain values."""

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
    """All that the terminal shows of a search at one moment.

    `finished` counts all trials that ended, `completed` those that ran until their end, `failed` those that failed.
    `rows` may leave out finished trials; what is not shown is counted. `best` is (value, trial id); `violated` says
    which constraints it violates, as the least of all, where none meets them: "" else. `constraints` are those that a
    result has to meet, as they are written. `limit_s` is the
    wall-clock limit, if any; `utilisation` the share of worker time inside the objective so far, 0 to 1. `paused`
    trials wait, `lost` ones ran when their tuner ended; `total` counts all trials, 0: running and finished.
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
    utilisation: float | None = None
    paused: int = 0
    lost: int = 0
    total: int = 0
    violated: str = ""
    constraints: Sequence[str] = ()

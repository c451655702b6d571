"""Events passed to callbacks.

    on_start(SearchStarted)                 before the first trial
      on_trial_start(TrialStarted)          an attempt of a trial is about to start on a worker
        on_report(TrialReported)            the scheduler has decided about a valid report
      on_trial_end(TrialEnded)              the attempt has ended; if `is_over`, the trial has ended, too
    on_end(SearchEnded)                     after the last trial

`now_s` is in seconds since the search began. Time in which no process ran the search is excluded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.actions import Reason
from ..schedulers.scheduler import Decision, Status
from ..searchers.searcher import Objective
from ..space import Space


@dataclass(frozen=True, slots=True)
class SearchStarted:
    """A search was started or resumed.

    `created_s`: Unix time at which the experiment was created. Together with the seed it identifies the search.
    """

    name: str
    path: Path
    space: Space
    objectives: tuple[Objective, ...]
    seed: int
    n_workers: int
    resumed: bool
    created_s: float


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """An attempt of a trial started.

    Args:
        attempt: number of the attempt, from 0. Paused and retried trials have several.
        from_iter: number of the report after which the attempt continues. 0: start from scratch.
        source: id of the trial that was cloned, or None.
        void_after: reports of earlier attempts with a higher number are discarded, because the trial restarts from an
            earlier checkpoint. None: all reports remain valid.
    """

    now_s: float
    trial_id: int
    attempt: int
    config: Mapping[str, Any]
    from_iter: int
    source: int | None
    void_after: int | None = None


@dataclass(frozen=True, slots=True)
class TrialReported:
    """A report of a trial, and the decision about it. `iter`: number of the report within the trial, from 1."""

    now_s: float
    trial_id: int
    attempt: int
    config: Mapping[str, Any]
    iter: int
    values: Mapping[str, float | int | str]
    decision: Decision


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """An attempt of a trial completed, failed, or was stopped or paused.

    Args:
        iter, values: number and values of the last report. If there is none, they are 0 and empty.
        reason: why the attempt failed, or None if it did not fail.
    """

    now_s: float
    trial_id: int
    attempt: int
    config: Mapping[str, Any]
    status: Status
    iter: int
    values: Mapping[str, float | int | str]
    reason: Reason | None
    will_retry: bool

    @property
    def is_over(self) -> bool:
        """True unless the trial is paused or will be retried."""
        return self.status is not Status.PAUSED and not self.will_retry


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """The search ended. `reason`: the reason in one line. `error`: the error if it failed, or None."""

    now_s: float
    name: str
    path: Path
    reason: str
    error: str | None

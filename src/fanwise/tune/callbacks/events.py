"""What callbacks are told: plain frozen values, one class for each method.

    on_start(SearchStarted)                 before the first trial
      on_trial_start(TrialStarted)          an attempt of a trial gets a worker
        on_report(TrialReported)            a report that counts was answered
      on_trial_end(TrialEnded)              the attempt is over; `is_over` says whether the trial is
    on_end(SearchEnded)                     nothing runs any more

`now_s` is seconds since the search began, without the time in which it was not running.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..decisions.orders import Reason
from ..schedulers.base import Decision, Status
from ..searchers.base import Objective
from ..spaces import Space


@dataclass(frozen=True, slots=True)
class SearchStarted:
    """A search begins, or, if `resumed`, goes on.

    Args:
        path: the experiment's folder.
        created_s: Unix time at which the experiment was made. With the seed it identifies the search after a resume.
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
    """An attempt of a trial begins.

    Args:
        attempt: 0, 1, ...: a trial that was paused, or is tried again, has several.
        from_iter: its reports up to this one stand: it goes on from its checkpoint. 0: from scratch.
        source: the trial that it was cloned from, or None.
        void_after: reports of earlier attempts after this one are void, because the trial starts again from an earlier
            checkpoint; None: all stand.
    """

    now_s: float
    trial_id: int
    attempt: int
    config: Mapping[str, Any]  # Any: what the space holds
    from_iter: int
    source: int | None
    void_after: int | None = None


@dataclass(frozen=True, slots=True)
class TrialReported:
    """A trial has reported. `iter`: which report of the trial it is, 1, 2, ...; `decision`: what it was answered."""

    now_s: float
    trial_id: int
    attempt: int
    config: Mapping[str, Any]  # Any: what the space holds
    iter: int
    values: Mapping[str, float | int | str]
    decision: Decision


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """An attempt of a trial is over: completed, stopped, paused or failed.

    Args:
        iter, values: of its last report; 0 and empty: this process has heard of none.
        reason: why it failed, or None.
        will_retry: it failed and is tried again.
    """

    now_s: float
    trial_id: int
    attempt: int
    config: Mapping[str, Any]  # Any: what the space holds
    status: Status
    iter: int
    values: Mapping[str, float | int | str]
    reason: Reason | None
    will_retry: bool

    @property
    def is_over(self) -> bool:
        """Whether the trial is over for good, as far as is known now."""
        return self.status is not Status.PAUSED and not self.will_retry


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """The search is over. `reason`: why, in one line; `error`: what made it fail, or None."""

    now_s: float
    name: str
    path: Path
    reason: str
    error: str | None

"""What is to be done because of a fact, in the order to do it. Plain frozen values.

    Start      a slot gets an attempt of a trial          Suggest           ask the searcher
    Answer     a report is answered                       Discard           a checkpoint is needed no more
    Reject     a report is refused                        StopStarting      no new trial from now on
    Judged     an attempt is over, and how                Finish            nothing runs, the search is over
    Terminate, Kill   the trial's process gets a signal

The record keeps them beside the fact that led to them: readers need not decide again, and replay can compare.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ...base.frozen import frozen
from ..schedulers.base import Decision, Status
from ..searchers.base import SuggestContext

ReasonKind: TypeAlias = Literal[
    "exception", "exit", "signal", "out-of-memory", "gpu-fault", "time-out", "no-report", "nan", "lost"
]  # fmt: skip
FinishKind: TypeAlias = Literal["limit", "no-metric", "equal-failures", "all-failed", "scheduler", "searcher"]


@frozen
class Reason:
    """Why a trial failed."""

    kind: ReasonKind
    text: str
    traceback: str = ""
    last_output: str = ""


@frozen
class Best:
    """The best report so far; `value` is the metric as it was reported. `infeasibility`: 0 unless none meets all
    constraints: then this one comes nearest to it.
    """

    value: float
    trial_id: int
    config: Mapping[str, object]
    iter: int
    infeasibility: float = 0.0


@frozen
class Start:
    """Start this attempt of the trial in the slot, which is free.

    Args:
        from_iter: its reports up to this iteration stand; the next one is from_iter + 1.
        checkpoint: the name of what it saved at from_iter, or None: from scratch.
        source: the trial that it was cloned from, or None.
        fallback: the searcher took longer than its budget, and the configuration was drawn at random.
    """

    trial_id: int
    attempt: int
    config: Mapping[str, object]
    slot: int
    from_iter: int = 0
    checkpoint: str | None = None
    source: int | None = None
    fallback: bool = False


@frozen
class Answer:
    """Answer the report.

    Args:
        iter: which report of the trial it is.
        late: the trial was over or told to stop; the report is not part of the search.
        repeated: a resumed trial came this way before; the report is not part of the search.
    """

    trial_id: int
    decision: Decision
    iter: int = 0
    late: bool = False
    repeated: bool = False


@frozen
class Reject:
    """Refuse the report; report() raises ValueError with this message in the trial."""

    trial_id: int
    message: str


@frozen
class Terminate:
    """SIGTERM to the trial's process."""

    trial_id: int
    why: str


@frozen
class Kill:
    """SIGKILL to the trial's process tree."""

    trial_id: int
    why: str


@frozen
class Judged:
    """This attempt is over. With will_retry the trial starts again, after a resume if the search stops first.

    If a person stops it before that, a second order says so, without will_retry.
    """

    trial_id: int
    attempt: int
    status: Status
    reason: Reason | None = None
    will_retry: bool = False


@frozen
class Suggest:
    """Ask the searcher, after it has been told all observations so far; its answer comes as `Suggested`."""

    number: int
    ask: SuggestContext


@frozen
class Discard:
    """This checkpoint is needed no more. `trial_id`: who needed it last, which may be a clone of who saved it."""

    trial_id: int
    checkpoint: str


@frozen
class StopStarting:
    """No new trial starts from now on."""

    reason: str


@frozen
class Finish:
    """The search is over and nothing runs.

    Args:
        reason: why, in one line.
        error: None, or the message of what made the search fail.
        cause: what the scheduler raised, if that was it; to be raised in its own type. Not on record.
        kind: `limit` when the search came to its end; else what made it fail.
    """

    reason: str
    error: str | None = None
    cause: Exception | None = None
    kind: FinishKind = "limit"


Order: TypeAlias = Start | Answer | Reject | Terminate | Kill | Judged | Suggest | Discard | StopStarting | Finish

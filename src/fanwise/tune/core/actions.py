"""Actions: the outputs of the state machine of a search. They are immutable.

    Start      start an attempt of a trial in a slot      Suggest           ask the searcher for a configuration
    Answer     answer a report                            Discard           delete a checkpoint
    Reject     refuse a report                            StopStarting      start no more new trials
    SetStatus  set the status of a trial                  Finish            end the search; nothing is running
    Terminate, Kill   send a signal to the trial's process

The record stores all actions except `Suggest`, so that readers need not recompute them, and a replay can compare them.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ...base.errors import SearchFailedError
from ...base.frozen import frozen
from ..schedulers.scheduler import Decision, Status
from ..searchers.searcher import SuggestContext

ReasonKind: TypeAlias = Literal[
    "exception", "exit", "signal", "out-of-memory", "gpu-fault", "time-out", "no-report", "nan", "lost"
]  # fmt: skip
FinishKind: TypeAlias = Literal["limit", "no-metric", "equal-failures", "all-failed", "scheduler", "searcher"]


@frozen
class Reason:
    """Why an attempt failed. The first line of `text` is a summary."""

    kind: ReasonKind
    text: str
    traceback: str = ""
    last_output: str = ""


@frozen
class Start:
    """Start an attempt of the trial in a free slot.

    Args:
        from_iter: number of the trial's last valid report, or 0. The next report has number from_iter + 1.
        checkpoint: name of the checkpoint saved at from_iter. None: start from scratch.
        source: id of the trial that was cloned, or None.
        fallback: the searcher took too long, and the configuration was drawn at random.
        alone: run on a whole GPU instead of a share, because an earlier attempt ran out of memory.
    """

    trial_id: int
    attempt: int
    config: Mapping[str, object]
    slot: int
    from_iter: int = 0
    checkpoint: str | None = None
    source: int | None = None
    fallback: bool = False
    alone: bool = False


@frozen
class Answer:
    """Answer report number `iter` of the trial.

    `late`: the trial had ended or had been asked to stop. `repeated`: a resumed trial repeats the report. Such reports
    do not count.
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
    """Send SIGTERM to the trial's process."""

    trial_id: int
    reason: str


@frozen
class Kill:
    """Send SIGKILL to the trial's process tree."""

    trial_id: int
    reason: str


@frozen
class SetStatus:
    """Set the status of a trial whose attempt has ended. `will_retry`: the trial starts again."""

    trial_id: int
    attempt: int
    status: Status
    reason: Reason | None = None
    will_retry: bool = False


@frozen
class Suggest:
    """Ask the searcher after it has received all observations so far. The answer is the event `Suggested`."""

    number: int
    context: SuggestContext


@frozen
class Discard:
    """Delete the checkpoint. `trial_id`: the last trial that used it, possibly a clone of the one that saved it."""

    trial_id: int
    checkpoint: str


@frozen
class StopStarting:
    """Start no new trials from now on."""

    reason: str


@frozen
class Finish:
    """End the search. No trial is running.

    Args:
        reason: the reason in one line.
        error: message of the error that made the search fail, or None.
        cause: the exception of the scheduler or searcher, which the user receives. Not recorded.
        kind: kind of the error; `limit` if there is none.
    """

    reason: str
    error: str | None = None
    cause: BaseException | None = None
    kind: FinishKind = "limit"

    def raise_error(self, note: str = "") -> None:
        """Raise the error of the search, if there is one. `note`: a last line for the message."""
        if self.cause is not None:
            raise self.cause
        if self.kind == "no-metric":
            raise ValueError(self.error)
        if self.error is not None:
            raise SearchFailedError(f"{self.error}{note}", reason=self.error, kind=self.kind)


Action: TypeAlias = Start | Answer | Reject | Terminate | Kill | SetStatus | Suggest | Discard | StopStarting | Finish

"""Events: the inputs of the state machine of a search. The record stores them, and a replay applies them again.

    EarlierTrial                     a trial of an earlier search, before Begin
    Begin, Resumed                   the search begins, or a new process resumes it
    Ready, Reported, Ended, Free     progress of an attempt
    Suggested                        the searcher has answered
    Tick                             a deadline has passed
    Command, Enqueued, WorkersChanged, Interrupt, TrialRequested     a user intervenes

Events are immutable and consist of JSON values. `now_s` is in seconds since the search began. Time in which no
process ran the search is excluded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, TypeAlias

from ...base.frozen import frozen
from ...pool.contract import OutcomeKind


@frozen
class Outcome:
    """The outcome of an attempt. The first line of `text` is a summary.

    Args:
        threads: threads that the objective left running, as one line with name and location for each.
        retry_alone: the attempt ran out of memory on a share of a GPU, and should be retried on a whole GPU.
    """

    kind: OutcomeKind
    text: str = ""
    traceback: str = ""
    last_output: str = ""
    threads: tuple[str, ...] = ()
    retry_alone: bool = False


@frozen
class EarlierTrial:
    """A trial of an earlier search, passed to the searcher before `Begin`.

    Args:
        trial_id: n earlier trials have the ids -n, ..., -1 in order.
        config: a complete configuration of this space.
        reports: the values of its reports in order. Each contains all values that this search requires.
    """

    now_s: float
    trial_id: int
    config: Mapping[str, object]
    reports: Sequence[Mapping[str, object]]
    status: str


@frozen
class Begin:
    """The search begins."""

    now_s: float


@frozen
class Suggested:
    """The searcher's answer to the `Suggest` action with the same `number`. `config` is None if it has none at present.

    Args:
        last_seen_seq: sequence number of the last event that the searcher had seen.
        error: the exception of the searcher as text, or None.
        cause: this exception, which the user receives. Not recorded.
    """

    now_s: float
    number: int
    config: Mapping[str, object] | None
    last_seen_seq: int = 0
    error: str | None = None
    cause: BaseException | None = field(default=None, compare=False)


@frozen
class Ready:
    """The worker is about to call the objective.

    `process_started_s`: start of the process on the pool's clock, not on that of the search. `start_method`: how the
    process was started, such as "fork". `host`: name of its host if the pool has several, or None.
    """

    now_s: float
    trial_id: int
    attempt: int
    pid: int = 0
    process_started_s: float = 0.0
    start_method: str = ""
    host: str | None = None


@frozen
class Reported:
    """A trial has reported and waits for the answer.

    `objective_s`: seconds inside the objective so far in this attempt. `checkpoint`: name of the checkpoint saved with
    the report.
    """

    now_s: float
    trial_id: int
    attempt: int
    values: Mapping[str, object]
    objective_s: float = 0.0
    checkpoint: str | None = None


@frozen
class Ended:
    """The attempt has ended. Its slot stays used until Free. `objective_s`: seconds inside the objective, or None."""

    now_s: float
    trial_id: int
    attempt: int
    outcome: Outcome = field(default_factory=lambda: Outcome("returned"))
    objective_s: float | None = None


@frozen
class Free:
    """The processes of the attempt have exited and released their devices, so the slot is free."""

    now_s: float
    trial_id: int
    attempt: int


@frozen
class Tick:
    """A deadline has passed, such as a trial's timeout or grace period, or the time limit of the search."""

    now_s: float


@frozen
class Interrupt:
    """A user ends the search by Ctrl-C or `stop()`. The first event asks all trials to stop, the second kills them."""

    now_s: float
    reason: str = "interrupted"


@frozen
class Command:
    """A user's command about one trial: pause it at its next report, resume it, or stop it."""

    now_s: float
    command: Literal["pause", "resume", "stop"]
    trial_id: int


@frozen
class Enqueued:
    """A user's complete configuration for the next new trial."""

    now_s: float
    config: Mapping[str, object]


@frozen
class WorkersChanged:
    """A user changes the number of trials that may run at a time. Running trials are not affected."""

    now_s: float
    n_workers: int


@frozen
class TrialRequested:
    """An ask-and-tell program asks for a trial.

    The request is dropped at once if no trial can start and none awaits a suggestion.
    """

    now_s: float


@frozen
class Resumed:
    """A new process resumes the search. Interrupted trials run again.

    `n_workers`, `stop` (the stopping criterion as JSON): new values, or None if unchanged. `versions`: versions of the
    libraries in the new process, or None if unchanged or unknown.
    """

    now_s: float
    n_workers: int | None = None
    stop: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None


Event: TypeAlias = (
    EarlierTrial | Begin | Suggested | Ready | Reported | Ended | Free | Tick
    | Interrupt | Command | Enqueued | WorkersChanged | TrialRequested | Resumed
)  # fmt: skip

"""What goes into the tuner's state machine and what comes out: one fact (Outcome), eight orders, two results.

    Start      a slot gets an attempt of a trial          Terminate, Kill   the trial's process gets a signal
    Answer     a report is answered                       StopStarting      no new trial from now on
    Reject     a report is refused                        Finish            nothing runs, the search is over
    Ended      an attempt is over

Plain frozen values: whoever carries them out writes them to the record, and tests compare them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .schedulers import Decision, Status

OutcomeKind: TypeAlias = Literal["returned", "stopped", "exception", "exit", "signal", "out-of-memory", "lost"]
ReasonKind: TypeAlias = Literal[
    "exception", "exit", "signal", "out-of-memory", "time-out", "no-report", "nan", "lost"
]  # fmt: skip

FinishKind: TypeAlias = Literal["limit", "no-metric", "equal-failures", "scheduler"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Fact: how one attempt's process ended. `text` starts with the line that a person should read first."""

    kind: OutcomeKind
    text: str = ""
    traceback: str = ""
    last_output: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a trial failed."""

    kind: ReasonKind
    text: str
    traceback: str = ""
    last_output: str = ""


@dataclass(frozen=True, slots=True)
class Best:
    """The best report so far; `value` is the metric as it was reported."""

    value: float
    trial_id: int
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Start:
    """Order: start this attempt of the trial in the slot. The slot is free."""

    trial_id: int
    attempt: int
    config: Mapping[str, object]
    slot: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Order: answer the report. `late`: the trial was over or told to stop, the report is not part of the search."""

    trial_id: int
    decision: Decision
    late: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """Order: refuse the report; report() raises ValueError with this message in the trial."""

    trial_id: int
    message: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Order: SIGTERM to the trial's process."""

    trial_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Order: SIGKILL to the trial's process tree."""

    trial_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Order: note that this attempt is over. With will_retry the trial starts again, unless the search stops first."""

    trial_id: int
    attempt: int
    status: Status
    reason: Reason | None
    will_retry: bool


@dataclass(frozen=True, slots=True)
class StopStarting:
    """Order: note that no new trial starts from now on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Order: the search is over and nothing runs.

    Args:
        reason: why, in one line.
        error: None, or the message of what made the search fail.
        cause: what the scheduler raised, if that was it; to be raised in its own type.
        kind: `limit` when the search came to its end; else what made it fail.
    """

    reason: str
    error: str | None = None
    cause: Exception | None = None
    kind: FinishKind = "limit"


Order: TypeAlias = Start | Answer | Reject | Terminate | Kill | Ended | StopStarting | Finish

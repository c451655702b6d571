"""A trial in the tuner's state machine: its attempts, how far it is, and from where it can go on.

    Start -> starting -> running -> ended -> slot free        told to stop or pause: stopping -> (grace over) killed

A trial's reports are numbered 1, 2, ... over all its attempts. An attempt begins at `from_iter`, the iteration of the
checkpoint that it starts from, or 0. After a crash the reports beyond it are void; after a pause they stand, and what
the next attempt reports on the way there again is a repetition (`reached`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from .orders import Best, Reason

# Where an attempt is between Start and Free; paused and suspended trials hold no slot. Words: see `stages`.
Phase: TypeAlias = Literal["starting", "running", "stopping", "killed", "ended", "paused", "suspended"]


class Ranked(NamedTuple):
    """A report and where it stands: the smallest is the best, of equals the first: no two have the same number."""

    infeasibility: float
    loss: float
    number: int
    iter: int
    trial_id: int
    value: float
    config: Mapping[str, object]

    @property
    def report(self) -> Best:
        return Best(self.value, self.trial_id, self.config, self.iter, self.infeasibility)


class Checkpoint(NamedTuple):
    """What a trial saved with a report: its name, the report's iteration, and the trial's best report until then."""

    name: str
    iter: int
    best: Ranked | None


@dataclass(slots=True)
class Trial:
    """A trial that may still run.

    Args:
        iter: number of its last report; reports of the attempt that runs count on from `from_iter`.
        reached: the scheduler and the searcher know its reports up to here.
        told: what it was told to do: "" nothing yet; "stop", "pause", or "suspend": the search ends, not the trial.
        counted: it is suspended and counts as stopped until the search goes on.
        hold: a person has paused it: only a person goes on with it.
        wanted: it pauses because of the person alone: for the scheduler it runs.
        dropped: it was told to pause and will never go on: it is over when its slot is free.
        given_up: a person has stopped it while it was about to pause or start again: likewise.
        at_maximum: it was told to stop because it had reached the scheduler's maximum.
        has_paused: after a report, so whatever it does later, the program works.
    """

    trial_id: int
    config: Mapping[str, object]
    slot: int = -1
    attempt: int = 0
    phase: Phase = "starting"
    iter: int = 0
    reached: int = 0
    checkpoint: Checkpoint | None = None
    best: Ranked | None = None
    told: str = ""
    hold: bool = False
    wanted: bool = False
    dropped: bool = False
    given_up: bool = False
    at_maximum: bool = False
    counted: bool = False
    has_paused: bool = False
    fault: Reason | None = None
    will_retry: bool = False
    num_retries: int = 0

    @property
    def was_told(self) -> bool:
        """Whether it was told to stop or pause, and has not ended."""
        return self.phase in ("stopping", "killed")

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good; its slot may not be free yet."""
        return self.phase == "ended" and not self.will_retry and self.told not in ("pause", "suspend")

    @property
    def from_iter(self) -> int:
        """Where an attempt that starts now begins."""
        return 0 if self.checkpoint is None else self.checkpoint.iter

    def begin_again(self) -> None:
        """A further attempt is about to start, from the last checkpoint."""
        self.attempt += 1
        self.phase = "starting"
        self.iter = self.from_iter
        self.told = ""
        self.fault = None
        self.will_retry = self.at_maximum = self.wanted = False

    def rewind(self) -> int:
        """The reports after the last checkpoint are void. Returns the iteration of the last report that stands."""
        self.iter = self.reached = self.from_iter
        self.best = None if self.checkpoint is None else self.checkpoint.best
        return self.iter

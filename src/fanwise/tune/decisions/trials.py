"""A trial in the tuner's state machine: its phase, attempts, iteration and checkpoint.

    Start -> starting -> running -> ended -> slot free        asked to stop or pause: stopping -> (grace over) killed

A trial's reports are numbered 1, 2, ... over all attempts. An attempt starts at `from_iter`, the iteration of its
checkpoint, or 0. After a crash the reports beyond `from_iter` are void. After a pause they remain valid, and the next
attempt repeats them up to `reached`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from .orders import Best, Reason

# The state of an attempt between Start and Free. Paused and suspended trials hold no slot. Terms: see `stages`.
Phase: TypeAlias = Literal["starting", "running", "stopping", "killed", "ended", "paused", "suspended"]


class Ranked(NamedTuple):
    """A report in ranking order, the smallest is the best. `number` is unique, so the earliest report wins ties."""

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
    """A saved checkpoint: its name, the iteration of its report, and the trial's best report up to then."""

    name: str
    iter: int
    best: Ranked | None


@dataclass(slots=True)
class Trial:
    """A trial that may still run.

    Args:
        iter: number of the last report. The current attempt counts from `from_iter`.
        reached: number of the last report that the scheduler and the searcher have seen.
        told: the request sent to it: "" (none), "stop", "pause", or "suspend" (the search ends, the trial does not).
        counted: suspended and counted as stopped until the search is resumed.
        hold: paused by a user, who alone can resume it.
        wanted: paused only by a user; the scheduler considers it running.
        dropped: asked to pause but never to be resumed; finished as soon as its slot is free.
        given_up: stopped by a user while pausing or waiting for a retry; finished as soon as its slot is free.
        at_maximum: stopped because it reached the scheduler's maximum resource.
        alone: its attempts get a whole GPU, because one has run out of memory on a share.
        has_paused: has paused after a report, so its later failures do not count as failures of the program.
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
    alone: bool = False

    @property
    def was_told(self) -> bool:
        """True if it has been asked to stop or pause and has not ended."""
        return self.phase in ("stopping", "killed")

    @property
    def is_over(self) -> bool:
        """True if it is finished. Its slot may not be free yet."""
        return self.phase == "ended" and not self.will_retry and self.told not in ("pause", "suspend")

    @property
    def from_iter(self) -> int:
        """The iteration at which the next attempt starts."""
        return 0 if self.checkpoint is None else self.checkpoint.iter

    def begin_again(self) -> None:
        """Prepare another attempt, from the last checkpoint."""
        self.attempt += 1
        self.phase = "starting"
        self.iter = self.from_iter
        self.told = ""
        self.fault = None
        self.will_retry = self.at_maximum = self.wanted = False

    def rewind(self) -> int:
        """Discard the reports after the last checkpoint. Return the iteration of the last valid report."""
        self.iter = self.reached = self.from_iter
        self.best = None if self.checkpoint is None else self.checkpoint.best
        return self.iter

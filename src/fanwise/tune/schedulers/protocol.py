"""What a scheduler is: which trial runs next, and what happens after each report.

    next(Ask)              -> New | Resume | Clone | Stop | Wait | Done   a worker is free
    on_report(Observation) -> CONTINUE | STOP | PAUSE                     a trial reported and waits for the answer
    on_rewind(trial, iter)                                                reports after `iter` are void: a lost attempt
    on_end(trial, status)                                                 the trial is over for good

A scheduler is a state machine: no clock, no chance of its own (`Ask.random` is keyed by seed and number), no I/O. So
the same object runs live, in replay and in the simulator. A searcher (`searchers.base`) chooses the configurations of
the new trials; the tuner asks it when the scheduler answers `New()` without one, outside the thread that answers
reports if the searcher is slow. The tuner checks all that a scheduler returns and names what is allowed.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, final, runtime_checkable

from ..searchers.base import Ask, Objective, Observation, Searcher
from ..spaces import Space


class Decision(enum.StrEnum):
    """The answer to a report. The text "STOP" is taken for STOP, and so on."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"
    PAUSE = "PAUSE"


# By themselves, for what runs at every report: to look a member up in its class costs as much as a call (Python 3.11).
CONTINUE: Final = Decision.CONTINUE
STOP: Final = Decision.STOP
PAUSE: Final = Decision.PAUSE


class Status(enum.StrEnum):
    """What a trial is, in the words that users of Syne Tune know."""

    IN_PROGRESS = "InProgress"
    PAUSED = "Paused"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"


EndStatus: TypeAlias = Literal[Status.COMPLETED, Status.STOPPED, Status.FAILED]


@final
@dataclass(frozen=True, slots=True)
class New:
    """Start a new trial. Its id is `ask.trial_id`. `config`: complete, of the space; None: the searcher chooses."""

    config: Mapping[str, object] | None = None


@final
@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a trial that was answered PAUSE, from its last checkpoint; without one it starts from scratch.

    What it reports again on the way to where it was paused is kept on record, but not told to the scheduler.
    """

    trial_id: int


@final
@dataclass(frozen=True, slots=True)
class Clone:
    """Start a new trial, with id `ask.trial_id`, from the last checkpoint of `trial_id`, with a configuration.

    Without a checkpoint it starts from scratch. Its iterations count on from those of the checkpoint.
    """

    trial_id: int
    config: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """A trial that was answered PAUSE will never go on: it is over, and its checkpoint can go. Then it asks again."""

    trial_id: int


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing now: ask again when something has happened. With nothing running, the search ends."""


@final
@dataclass(frozen=True, slots=True)
class Done:
    """Nothing ever again: the search ends when the running trials have ended."""


NextTrial: TypeAlias = New | Resume | Clone | Stop | Wait | Done


@runtime_checkable
class Scheduler(Protocol):
    """What the tuner calls. It calls `begin` on a copy of its own, so an object may be given to several tuners."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The reported values that are optimised, at least one; every report must have them."""

    @property
    def resource_attr(self) -> str | None:
        """Name of the reported value that says how far a trial is, e.g. "epoch"; None: the number of its reports."""

    @property
    def max_resource(self) -> float | None:
        """Where a trial ends, if the scheduler knows: a trial that it stops there, or beyond, counts as completed."""

    @property
    def searcher(self) -> Searcher | None:
        """Chooses the configurations for `New()`; None: the scheduler gives all of them."""

    @property
    def clones(self) -> bool:
        """Whether it may answer `Clone`: then the last checkpoint of every trial is kept until the search ends."""

    def check(self, space: Space) -> None:
        """Look whether the settings fit the space; ValueError if not. Changes nothing."""

    def begin(self, space: Space, seed: int) -> None:
        """Begin afresh, whatever was before."""

    def next(self, ask: Ask) -> NextTrial:
        """A worker is free. See the answers; `ask.exhausted` and `ask.may_begin` say whether there are new trials."""

    def on_report(self, observation: Observation) -> Decision:
        """A running trial reported. Each (trial, iteration) comes once, in order, but for `on_rewind`."""

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        """The reports of the trial after iteration `to_iter` are void: forget what followed from them."""

    def on_end(self, trial_id: int, status: Status) -> None:
        """The trial is over for good: COMPLETED, STOPPED or FAILED. A paused trial is not over."""

    def describe(self) -> dict[str, object]:
        """Name and settings as JSON, for the record. Equal descriptions must mean equal behaviour."""

"""What goes wrong in a simulated search: crashes, lost workers and slow ones.

Chance is keyed by (seed, trial, attempt): what happens to an attempt does not depend on what runs beside it, and the
same seed gives the same search on every machine. Quiet.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ..chance import Chance
from ..decisions.facts import Outcome
from ..values import is_number, seconds

_CRASH = Outcome("exception", "SimulatedCrash: the trial crashed (faults=)")
_LOSS = Outcome("lost", "the simulated worker was lost (faults=)")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, by chance.

    Args:
        crashes_per_hour: how often a trial crashes, in an hour of training. The tuner's `retries` start it again.
        losses_per_hour: how often a worker is lost with the trial that it runs, in an hour of training.
        repair_s: virtual seconds until a lost worker is there again.
        slowdown: drawn once for every attempt: how many times as long it takes. `lambda chance: 1.0 + (chance.random()
            < 0.1)` makes one in ten attempts take twice as long.

    Raises:
        TypeError, ValueError: a rate or time that is no number, is negative or infinite.
    """

    crashes_per_hour: float = 0.0
    losses_per_hour: float = 0.0
    repair_s: float = 0.0
    slowdown: Callable[[Chance], float] | None = None

    def __post_init__(self) -> None:
        for name in ("crashes_per_hour", "losses_per_hour"):
            rate = getattr(self, name)
            if not is_number(rate):
                raise TypeError(f"{name} must be a number, got {rate!r} of type {type(rate).__name__}")
            if not 0 <= rate < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {rate!r}")
        seconds("repair_s", self.repair_s)


@final
class Luck:
    """What chance has for one attempt of a trial."""

    __slots__ = ("_chance", "_faults", "slowdown")

    def __init__(self, faults: Faults, seed: int, trial_id: int, attempt: int) -> None:
        self._faults = faults
        self._chance = Chance(f"{seed}/faults/{trial_id}/{attempt}")
        self.slowdown = 1.0 if faults.slowdown is None else faults.slowdown(self._chance)
        if not (is_number(self.slowdown) and 0 < self.slowdown < math.inf):
            raise ValueError(f"slowdown must return a finite number above 0, got {self.slowdown!r}")

    def in_step(self, step_s: float) -> tuple[Outcome, float] | None:
        """Whether this stretch of training breaks off: how, and after how many seconds.

        The chance is the rate times the seconds, without the exponential function, whose last bit differs between
        machines; so a stretch breaks off at most once, and surely where that product is 1 or more.
        """
        crash, loss, moment = self._chance.random(), self._chance.random(), self._chance.random()
        if loss * 3600.0 < self._faults.losses_per_hour * step_s:
            return _LOSS, moment * step_s
        if crash * 3600.0 < self._faults.crashes_per_hour * step_s:
            return _CRASH, moment * step_s
        return None

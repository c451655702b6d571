"""Faults of a simulated search: crashes, lost workers and slow attempts.

Random numbers are keyed by (seed, trial, attempt), so the faults of an attempt do not depend on other trials.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ..core.events import Outcome
from ..rng import KeyedRandom
from ..values import checked_seconds, is_number

_CRASH = Outcome("exception", "SimulatedCrash: the trial crashed (faults=)")
_LOSS = Outcome("lost", "the simulated worker was lost (faults=)")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Random faults.

    Args:
        crashes_per_hour: rate of crashes per hour of training; `retries` restarts the trial.
        losses_per_hour: rate of lost workers per hour of training.
        repair_s: virtual seconds until a lost worker is available again.
        slowdown: function that draws the slowdown factor of an attempt, e.g. `lambda rng: 1.0 + (rng.random() <
            0.1)` doubles the time of one in ten attempts.

    Raises:
        TypeError, ValueError: a rate or time is not a finite number of at least 0.
    """

    crashes_per_hour: float = 0.0
    losses_per_hour: float = 0.0
    repair_s: float = 0.0
    slowdown: Callable[[KeyedRandom], float] | None = None

    def __post_init__(self) -> None:
        for name in ("crashes_per_hour", "losses_per_hour"):
            rate = getattr(self, name)
            if not is_number(rate):
                raise TypeError(f"{name} must be a number, got {rate!r} of type {type(rate).__name__}")
            if not 0 <= rate < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {rate!r}")
        checked_seconds("repair_s", self.repair_s)


@final
class AttemptFaults:
    """The faults of one attempt of a trial."""

    __slots__ = ("_faults", "_rng", "slowdown")

    def __init__(self, faults: Faults, seed: int, trial_id: int, attempt: int) -> None:
        self._faults = faults
        self._rng = KeyedRandom(f"{seed}/faults/{trial_id}/{attempt}")
        self.slowdown = 1.0 if faults.slowdown is None else faults.slowdown(self._rng)
        if not (is_number(self.slowdown) and 0 < self.slowdown < math.inf):
            raise ValueError(f"slowdown must return a finite number above 0, got {self.slowdown!r}")

    def in_step(self, step_s: float) -> tuple[Outcome, float] | None:
        """Return the outcome of a fault during a step of training, and its time in seconds from the start, or None.

        The probability is the rate times the duration. The exponential function is avoided, because its last bit
        differs between machines.
        """
        crash, loss, moment = self._rng.random(), self._rng.random(), self._rng.random()
        if loss * 3600.0 < self._faults.losses_per_hour * step_s:
            return _LOSS, moment * step_s
        if crash * 3600.0 < self._faults.crashes_per_hour * step_s:
            return _CRASH, moment * step_s
        return None

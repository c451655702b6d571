"""Base class of searchers, which choose the configurations of trials.

A searcher implements `suggest` and `observe`. It receives losses (smaller is better) and the configurations of running
trials, but not workers or the scheduler's decisions. Its random numbers come from `SuggestContext`, keyed by seed and
suggestion number, so suggestion 17 does not depend on how many numbers suggestions 0 to 16 drew.
"""

import abc
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, TypeAlias, final

from ..rng import KeyedRandom
from ..space import Space

Mode: TypeAlias = Literal["min", "max"]


@final
@dataclass(frozen=True, slots=True)
class Objective:
    """A metric to optimize."""

    metric: str
    mode: Mode = "min"

    def loss(self, value: float) -> float:
        """Convert a value to a loss. Smaller is better. Infinite values of either sign become +inf."""
        loss = value if self.mode == "min" else -value
        return math.inf if loss == -math.inf else loss


@final
@dataclass(slots=True)
class Observation:
    """A report of a trial.

    Args:
        trial_id: id of the trial. Trials of a warm start have negative ids, and their configurations may be suggested
            again.
        config: configuration of the trial.
        iter: number of the report within the trial, from 1. The numbers continue when a trial is resumed.
        resource: value of the scheduler's `resource_attr` in the report, rounded to 12 significant digits, or `iter` if
            the scheduler has none.
        losses: one loss per objective. Infinite values are +inf, and NaN does not occur.
        values: all reported values.
        violations: violation of each constraint in the unit of its metric, at most 0 if satisfied.
        infeasibility: 0 if all constraints are satisfied, otherwise the sum of the positive violations, each divided by
            its bound. Reports are ranked by infeasibility first, then by loss.
    """

    trial_id: int
    config: Mapping[str, object]
    iter: int
    resource: float
    losses: tuple[float, ...]
    values: Mapping[str, object]
    violations: tuple[float, ...] = ()
    infeasibility: float = 0.0

    @property
    def loss(self) -> float:
        """Loss of the first objective."""
        return self.losses[0]


@final
@dataclass(slots=True, eq=False, repr=False)
class SuggestContext:
    """The state of the search, for a scheduler that chooses the next trial or a searcher that chooses a configuration.

    Args:
        number: for a searcher, the number of the request. For a scheduler, the number of attempts started so far.
        trial_id: id that a new trial gets.
        space: the search space.
        seed: seed of the search.
        purpose: "suggest" or, for a scheduler, "next". A part of the key of the random numbers.
        pending: configurations of the running trials by id. Read-only.
        now_s: seconds since the search began.
        suggest_timeout_s: seconds until a random configuration is used instead of the suggestion. None: no limit.
        no_new_configs: True if the searcher has no configuration now or is not asked. `New()` without a configuration
            then means `Wait()`.
        can_start_trial: False if the search must not start more trials. Paused trials may be resumed, but `New` and
            `Clone` mean `Wait()`, and `no_new_configs` is True.
    """

    number: int
    trial_id: int
    space: Space
    _: KW_ONLY
    seed: int = 0
    purpose: str = "suggest"
    pending: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    now_s: float = 0.0
    suggest_timeout_s: float | None = None
    no_new_configs: bool = False
    can_start_trial: bool = True
    _random: KeyedRandom | None = field(default=None, init=False)

    @property
    def random(self) -> KeyedRandom:
        """Random number generator of this request, keyed by seed, purpose and number."""
        if self._random is None:
            self._random = KeyedRandom(f"{self.seed}/{self.purpose}/{self.number}")
        return self._random


class Searcher(abc.ABC):
    """Base class of searchers. Subclasses implement `suggest` and `observe`.

    The tuner runs a copy, so that one object can be passed to several tuners. `suggest`, `observe`, `on_rollback` and
    `on_end` are called from one thread, which is a separate one unless `runs_inline` is set.

    >>> class ConstantSearcher(Searcher):
    ...     def suggest(self, context):
    ...         return {"learning_rate": 0.1}
    ...     def observe(self, observation):
    ...         print(f"trial {observation.trial_id} reported a loss of {observation.loss}")

    Attributes:
        runs_inline: True for searchers that answer within microseconds. They run in the thread that answers reports.
        suggest_timeout_s: seconds that a free worker waits for a suggestion before it gets a random configuration. If
            set, suggestions are requested before a worker is free. None: no limit. Ignored if `runs_inline` is set.
        levels: resource levels in increasing order. Model-based searchers learn from each trial's first report at or
            above the highest level that enough trials have reached. Without levels, they learn from each trial's last
            report. The scheduler sets the levels before `begin` if the searcher was passed by name.
    """

    runs_inline: ClassVar[bool] = False
    suggest_timeout_s: ClassVar[float | None] = None
    levels: tuple[float, ...] = ()

    @property
    def libraries(self) -> tuple[str, ...]:
        """Names of the Python packages that determine the suggestions. Subclasses may set a class variable.

        Their versions are recorded. A replay with other versions takes the suggestions from the record.
        """
        return ()

    @abc.abstractmethod
    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        """Return a configuration for trial `context.trial_id`, with or without the constants of the space.

        Return None if there is no suggestion now. `suggest` is called again after a report or the end of a trial. If no
        trial is running, None ends the search.
        """

    @abc.abstractmethod
    def observe(self, observation: Observation) -> None:
        """Handle a report. Not called for reports that a resumed trial repeats."""

    def replay_suggestion(self, context: SuggestContext, config: Mapping[str, object] | None) -> None:
        """Restore the state after a recorded suggestion, when a search is resumed.

        The default calls `suggest`. Searchers with a model override this to skip the computation.
        """
        self.suggest(context)

    def check(self, space: Space) -> None:  # noqa: B027  # optional
        """Raise ValueError if the settings do not fit the space. Changes nothing."""

    def begin(self, space: Space, seed: int) -> None:  # noqa: B027  # optional
        """Begin a search. Called once, on the copy."""

    def on_rollback(self, trial_id: int, to_iter: int) -> None:  # noqa: B027  # optional
        """Discard the observations of a trial after report number `to_iter`."""

    def on_end(self, trial_id: int, status: str) -> None:  # noqa: B027  # optional
        """Handle the final end of a trial: "Completed", "Stopped" or "Failed"."""

    def describe(self) -> dict[str, object]:
        """Return name and settings as JSON, for the record."""
        return {"name": type(self).__name__}

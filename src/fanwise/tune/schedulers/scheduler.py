"""Base class of schedulers, which decide which trial runs next and what happens after each report.

A scheduler is a pure state machine without clock or I/O, so it also runs in replays and in the simulator. Its random
numbers come from `SuggestContext.random` or are keyed by the seed. When `next` returns `New()` without a configuration,
the tuner asks the scheduler's searcher for one. The tuner validates the return values of all methods.
"""

import abc
import enum
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Required, TypeAlias, TypedDict, final

from ...base.nearest import names_nearest_option
from ..constraints import checked_constraints
from ..searchers import RandomSearcher, resolve_searcher
from ..searchers.points import FirstPoints
from ..searchers.searcher import Mode, Objective, Observation, Searcher, SuggestContext
from ..space import Space


class Decision(enum.StrEnum):
    """The answer to a report. `on_report` may also return the name as a string, such as "STOP"."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"
    PAUSE = "PAUSE"


# Module constants for code that runs at every report: attribute access on an enum is as slow as a call in Python 3.11.
CONTINUE: Final = Decision.CONTINUE
STOP: Final = Decision.STOP
PAUSE: Final = Decision.PAUSE


class Status(enum.StrEnum):
    """Status of a trial. Syne Tune uses the same values."""

    IN_PROGRESS = "InProgress"
    PAUSED = "Paused"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"


@final
@dataclass(frozen=True, slots=True)
class New:
    """Start a new trial with id `context.trial_id`. `config`: its configuration, or None to ask the searcher."""

    config: Mapping[str, object] | None = None


@final
@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a paused trial from its last checkpoint, or else from scratch.

    Reports that the trial repeats do not reach the scheduler.
    """

    trial_id: int


@final
@dataclass(frozen=True, slots=True)
class Clone:
    """Start a new trial with id `context.trial_id` and this configuration from the last checkpoint of `trial_id`.

    The numbers of its reports continue from the checkpoint. Without a checkpoint, the new trial starts from scratch.
    """

    trial_id: int
    config: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """End a paused trial, whose checkpoint can be deleted. The tuner then calls `next` again."""

    trial_id: int


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """Start nothing until the next event. If no trial is running, the search ends."""


@final
@dataclass(frozen=True, slots=True)
class Done:
    """Start no more trials; the search ends when the running trials have ended."""


NextTrial: TypeAlias = New | Resume | Clone | Stop | Wait | Done


class SchedulerOptions(TypedDict, total=False):
    """Keyword options of all schedulers; see `Scheduler`."""

    metric: Required[str | Sequence[str]]
    mode: Mode | Sequence[Mode]
    constraints: Sequence[str]
    resource_attr: str | None
    points_to_evaluate: Sequence[Mapping[str, object]] | None
    random_seed: int | None


class Scheduler(abc.ABC):
    """Base class of schedulers. Subclasses implement `next` and `on_report`.

    The tuner runs a copy of a scheduler, so that one object can be passed to several tuners.

    Args:
        searcher: a `Searcher`, or the name of one ("random", "forest", ...). None: random search.
        metric: name of the reported value to optimize, or several names.
        mode: "min" or "max", for all metrics or one for each.
        constraints: constraints on reported values, such as ["latency_ms <= 20"]. Reports that violate a constraint
            rank behind all others.
        resource_attr: name of the reported value that is the resource of a trial, e.g. "epoch". None: the number of
            reports of the trial is its resource.
        points_to_evaluate: configurations to try first, in this order. Omitted values are sampled.
        random_seed: seed of the search. None: the `random_seed` of the Tuner.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

    Attributes:
        objectives: metrics with their modes, at least one. Every report must contain all of the metrics.
        max_resource: the resource at which trials end. A trial that is stopped at or above this resource counts as
            completed. None: no maximum, or one that `begin` sets.
        clones: True if `next` may return `Clone`. The last checkpoint of every trial is then kept until the end.
    """

    clones: ClassVar[bool] = False
    max_resource: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the options of the base class to the signature, for help() and the command line."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            keyword = inspect.Parameter.KEYWORD_ONLY
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
                base_options = inspect.signature(cls.__mro__[1]).parameters.values()
                by_name = {option.name: option for option in (*base_options, *parameters) if option.kind is keyword}
                parameters = [*(option for option in parameters[:-1] if option.kind is not keyword), *by_name.values()]
            cls.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]

    @names_nearest_option
    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        metric: str | Sequence[str],
        mode: Mode | Sequence[Mode] = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        if isinstance(searcher, Space | Mapping):
            name = type(self).__name__
            raise TypeError(
                f"{name} got a space, which belongs to the Tuner.\n"
                f"  right:  Tuner(objective, space, {name}(metric=...), stop)"
            )
        self.objectives = checked_objectives(metric, mode)
        self.constraints = checked_constraints(constraints)
        self.resource_attr = checked_name("resource_attr", resource_attr)
        self.random_seed = checked_seed(random_seed)
        self._learns_at_levels = isinstance(searcher, str)
        searcher = RandomSearcher() if searcher is None else resolve_searcher(searcher)
        if not isinstance(searcher, Searcher):
            raise TypeError(f"searcher must be a Searcher, such as TPESearcher(), or the name of one, got {searcher!r}")
        self.searcher = searcher if points_to_evaluate is None else FirstPoints(points_to_evaluate, searcher)

    def check(self, space: Space) -> None:
        """Raise ValueError if the settings do not fit the space. Changes nothing."""
        self.searcher.check(space)

    def begin(self, space: Space, seed: int) -> None:
        """Reset all state for a new search."""
        if self._learns_at_levels:
            self.searcher.levels = self.levels(space)
        self.searcher.begin(space, seed)

    def levels(self, space: Space) -> tuple[float, ...]:
        """Return the resource levels at which a searcher should compare trials, in increasing order.

        `begin` assigns them to `Searcher.levels` if the searcher was passed by name.
        """
        return ()

    @abc.abstractmethod
    def next(self, context: SuggestContext) -> NextTrial:
        """Return the next action for a free worker. Respect `context.no_new_configs` and `context.can_start_trial`."""

    @abc.abstractmethod
    def on_report(self, observation: Observation) -> Decision:
        """Return the decision about a trial after a report. A report is passed again only after `on_rollback`."""

    def on_rollback(self, trial_id: int, to_iter: int) -> None:  # noqa: B027  # optional
        """Discard the reports of a trial after number `to_iter`, because the trial restarts from that report."""

    def on_end(self, trial_id: int, status: Status) -> None:  # noqa: B027  # optional
        """Handle the final end of a trial: COMPLETED, STOPPED or FAILED. Not called for paused trials."""

    def describe(self) -> dict[str, object]:
        """Return the name and settings as JSON, for the record. Schedulers with equal descriptions behave equally."""
        constraints = {"constraints": list(map(str, self.constraints))} if self.constraints else {}
        return {
            "name": type(self).__name__,
            "metric": [objective.metric for objective in self.objectives],
            "mode": [objective.mode for objective in self.objectives],
            **constraints,
            "resource_attr": self.resource_attr,
            "searcher": self.searcher.describe(),
            "random_seed": self.random_seed,
        }


@final
class FIFO(Scheduler):
    """First in, first out: runs every trial to its end. Arguments and errors are those of `Scheduler`.

    >>> scheduler = FIFO("sobol", metric="loss", points_to_evaluate=[{"depth": 3}])
    >>> scheduler.next(SuggestContext(0, 0, Space({"depth": 3})))
    New(config=None)
    """

    def next(self, context: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        return CONTINUE


def checked_objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[Objective, ...]:
    """Return one objective per metric. A single mode applies to all metrics. Raises TypeError, ValueError."""
    metrics = [metric] if isinstance(metric, str) else metric
    if not isinstance(metrics, list | tuple) or not all(isinstance(name, str) for name in metrics):
        raise TypeError(f"metric must be the name of a reported value, got {metric!r} of type {type(metric).__name__}")
    if not metrics or "" in metrics or len(set(metrics)) < len(metrics):
        raise ValueError(f"metric must be the name of a reported value (or a list of distinct names), got {metric!r}")
    modes = [mode] * len(metrics) if isinstance(mode, str) else list(mode)
    if len(modes) != len(metrics) or not all(item in ("min", "max") for item in modes):
        raise ValueError(f"mode must be 'min' or 'max' (or one of them for each metric), got {mode!r}")
    return tuple(map(Objective, metrics, modes))


def checked_name(option: str, name: str | None) -> str | None:
    """Return `name` if it is a str or None. Raises TypeError otherwise."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{option} must be a name or None, got {name!r} of type {type(name).__name__}")
    return name


def checked_seed(seed: int | None) -> int | None:
    """Return `seed` if it is an int or None. Raises TypeError otherwise."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"random_seed must be an int or None, got {seed!r} of type {type(seed).__name__}")
    return seed


def seed_of(scheduler: Scheduler, seed: int | None, default: int) -> int:
    """Return `seed`, the scheduler's `random_seed`, or else the default. Raises ValueError if the first two differ."""
    if scheduler.random_seed is None:
        return default if seed is None else seed
    if seed is not None and seed != scheduler.random_seed:
        raise ValueError(
            f"a search has one seed, but the search was given {seed} and its {type(scheduler).__name__} was given "
            f"random_seed={scheduler.random_seed}. Remove one of them."
        )
    return scheduler.random_seed

"""The base class of schedulers: which trial runs next, and what happens after each report.

    next(Ask)              -> New | Resume | Clone | Stop | Wait | Done   a worker is free
    on_report(Observation) -> CONTINUE | STOP | PAUSE                     a trial reported and waits for the answer
    on_rewind(trial, iter)                                                reports after `iter` are void: a lost attempt
    on_end(trial, status)                                                 the trial is over for good

A scheduler is a pure state machine: no clock, no I/O, and random numbers only from `Ask.random`, which is keyed by seed
and number. So the same object runs live, in replay and in the simulator. Its searcher (`searchers.base`) chooses the
configurations of new trials; the tuner asks it when the scheduler answers `New()` without one. The tuner checks all
answers of a scheduler.
"""

import abc
import enum
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar, final

from ...base.nearest import did_you_mean
from ..constraints import checked_constraints
from ..searchers.base import Ask, Mode, Objective, Observation, Searcher
from ..searchers.by_name import searcher_of
from ..searchers.first_points import FirstPoints
from ..searchers.random_search import RandomSearcher
from ..spaces import Space

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Self = TypeVar("_Self")


class Decision(enum.StrEnum):
    """The answer to a report. The text "STOP" is accepted for STOP, and so on."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"
    PAUSE = "PAUSE"


# Module constants for code that runs at every report: attribute access on an enum is as slow as a call in Python 3.11.
CONTINUE: Final = Decision.CONTINUE
STOP: Final = Decision.STOP
PAUSE: Final = Decision.PAUSE


class Status(enum.StrEnum):
    """Status of a trial, in Syne Tune's words."""

    IN_PROGRESS = "InProgress"
    PAUSED = "Paused"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"


EndStatus: TypeAlias = Literal[Status.COMPLETED, Status.STOPPED, Status.FAILED]


@final
@dataclass(frozen=True, slots=True)
class New:
    """Start a new trial with id `ask.trial_id`. `config`: a complete configuration; None: the searcher chooses it."""

    config: Mapping[str, object] | None = None


@final
@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a trial that was answered PAUSE from its last checkpoint; without one it starts from scratch.

    Reports that it repeats are recorded but not passed to the scheduler.
    """

    trial_id: int


@final
@dataclass(frozen=True, slots=True)
class Clone:
    """Start a new trial with id `ask.trial_id` and this configuration from the last checkpoint of `trial_id`.

    Without a checkpoint it starts from scratch. Its iterations continue from those of the checkpoint.
    """

    trial_id: int
    config: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """End a paused trial; its checkpoint can be deleted. The tuner then asks again."""

    trial_id: int


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """Start nothing until something has happened. If nothing is running, the search ends."""


@final
@dataclass(frozen=True, slots=True)
class Done:
    """Start nothing ever again: the search ends when the running trials have ended."""


NextTrial: TypeAlias = New | Resume | Clone | Stop | Wait | Done


def _check_options(method: Callable[Concatenate[_Self, _P], _R]) -> Callable[Concatenate[_Self, _P], _R]:
    """Decorate the constructor of a scheduler: an unknown option is an error with the closest name.

    Schedulers of Syne Tune take the space; here it goes to the Tuner, which the error says.
    """
    parameters = inspect.signature(method).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = [option for option in parameters if option != "self"]
    takes_searcher = known[:1] == ["searcher"]

    @functools.wraps(method)
    def checked(self: _Self, /, *args: _P.args, **options: _P.kwargs) -> _R:
        name = type(self).__name__
        has_space = takes_searcher and any(isinstance(value, Space | Mapping) for value in args)
        if has_space or (not takes_any and options.keys() & ({"config_space", "space"} - set(known))):
            raise TypeError(
                f"{name} got a space, which belongs to the Tuner.\n"
                f"  right:  Tuner(objective, space, {name}(metric=...), stop)"
            )
        for option in options:
            if option not in known and not takes_any:
                raise TypeError(f"{name} has no option {option!r}{did_you_mean(option, known)}")
        return method(self, *args, **options)

    return checked


class Scheduler(abc.ABC):
    """Base class of schedulers. Subclasses implement `next` and `on_report`.

    It owns what all schedulers have in common, and validates it. The tuner runs a copy of a scheduler, so that one
    object may be given to several tuners.

    Args:
        searcher: chooses configurations, an object or a name ("random", "forest", ...); None: random search.
        metric: name of the reported value to optimize, or several names.
        mode: "min" or "max", for all metrics or one for each.
        constraints: conditions on reported values, such as ["latency_ms <= 20"]. A report that violates one ranks
            behind all reports that do not.
        resource_attr: name of the reported value that says how far a trial is, e.g. "epoch"; None: the number of its
            reports.
        points_to_evaluate: configurations to try first, in this order; values that are left out are drawn at random.
        random_seed: None: the seed of the search.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

    Attributes:
        objectives: metrics with their modes, at least one. Every report must have them.
        max_resource: the resource at which trials end, if the scheduler knows it. A trial that is stopped at or beyond
            it counts as completed.
        clones: True if `next` may answer `Clone`. The last checkpoint of every trial is then kept until the end.
        multiple_objectives: True if the scheduler accepts several metrics.
    """

    clones: ClassVar[bool] = False
    multiple_objectives: ClassVar[bool] = False
    max_resource: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _check_options(cls.__init__)  # type: ignore[method-assign]

    @_check_options
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
        self.objectives = checked_objectives(metric, mode)
        if len(self.objectives) > 1 and not self.multiple_objectives:
            raise TypeError(
                f"{type(self).__name__} needs one metric, got {metric!r}. For several: MOASHA, or FIFO, which stops no "
                f"trial early"
            )
        self.constraints = checked_constraints(constraints)
        self.resource_attr = checked_name("resource_attr", resource_attr)
        self.random_seed = checked_seed(random_seed)
        self._sets_levels = isinstance(searcher, str)
        searcher = searcher_of(searcher)
        if searcher is None:
            searcher = RandomSearcher()
        if not isinstance(searcher, Searcher):
            raise TypeError(f"searcher must be a Searcher, such as TPESearcher(), or the name of one, got {searcher!r}")
        self.searcher: Searcher = searcher
        if points_to_evaluate is not None:
            self.searcher = FirstPoints(points_to_evaluate, searcher)

    def check(self, space: Space) -> None:
        """Raise ValueError if the settings do not fit the space. Changes nothing."""
        self.searcher.check(space)

    def begin(self, space: Space, seed: int) -> None:
        """Begin a search. Forgets everything that was before."""
        if self._sets_levels:
            self.searcher.levels = self.levels(space)
        self.searcher.begin(space, seed)

    def levels(self, space: Space) -> tuple[float, ...]:
        """Return the resource levels, in increasing order, at which trials are compared.

        A searcher that was given by name learns from each trial's first report at the highest level that enough trials
        have reached. Without levels, and if it was given as an object, it learns from each trial's last report.
        """
        return ()

    @abc.abstractmethod
    def next(self, ask: Ask) -> NextTrial:
        """Decide what a free worker does. `ask.exhausted` and `ask.may_begin` say whether there are new trials."""

    @abc.abstractmethod
    def on_report(self, observation: Observation) -> Decision:
        """Decide about a running trial that reported. Each (trial, iteration) comes once, in order, but for
        `on_rewind`."""

    def on_rewind(self, trial_id: int, to_iter: int) -> None:  # noqa: B027  # optional
        """Forget what followed from the reports of the trial after iteration `to_iter`; they are void."""

    def on_end(self, trial_id: int, status: Status) -> None:  # noqa: B027  # optional
        """The trial is over for good: COMPLETED, STOPPED or FAILED. A paused trial is not over."""

    def describe(self) -> dict[str, object]:
        """Return name and settings as JSON, for the record. Equal descriptions must mean equal behavior."""
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


def checked_objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[Objective, ...]:
    """Return one objective per metric. One mode holds for all metrics.

    Raises:
        TypeError, ValueError: metric is not a name or different names, or a mode is not "min" or "max".
    """
    metrics = [metric] if isinstance(metric, str) else metric
    if not isinstance(metrics, list | tuple) or not all(isinstance(name, str) for name in metrics):
        raise TypeError(f"metric must be the name of a reported value, got {metric!r} of type {type(metric).__name__}")
    if not metrics or "" in metrics or len(set(metrics)) < len(metrics):
        raise ValueError(f"metric must be the name of a reported value (or different names), got {metric!r}")
    modes = [mode] * len(metrics) if isinstance(mode, str) else list(mode)
    if len(modes) != len(metrics) or not all(one in ("min", "max") for one in modes):
        raise ValueError(f"mode must be 'min' or 'max' (or one of them for each metric), got {mode!r}")
    return tuple(map(Objective, metrics, modes))


def checked_name(option: str, name: str | None) -> str | None:
    """Return the name, or None. Raises TypeError if it is neither."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{option} must be a name or None, got {name!r} of type {type(name).__name__}")
    return name


def checked_seed(seed: int | None, name: str = "random_seed") -> int | None:
    """Return the seed, or None. Raises TypeError if it is neither."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"{name} must be an int or None, got {seed!r} of type {type(seed).__name__}")
    return seed


def seed_of(scheduler: Scheduler, given: int | None, otherwise: int) -> int:
    """Return the seed of a search. A search has one: its scheduler, searcher and trials all use it.

    Args:
        scheduler: its `random_seed` is the seed if no other is given.
        given: as an argument of the search, or None.
        otherwise: the seed if there is neither.

    Raises:
        ValueError: the search and its scheduler were given different seeds.
    """
    own = scheduler.random_seed
    if own is None:
        return otherwise if given is None else given
    if given is not None and given != own:
        raise ValueError(
            f"a search has one seed, but the search was given {given} and its {type(scheduler).__name__} was given "
            f"random_seed={own}. Leave out one of them."
        )
    return own

"""Schedulers: which trial starts next with which configuration, and whether a running one goes on.

    suggest(trial_id)                       -> configuration, or None: nothing now
    on_report(trial_id, config, values)     -> CONTINUE or STOP
    on_end(trial_id, status)                   what was kept for the trial may go

A scheduler is a pure state machine: the same object decides live, in replay and in the simulator. It knows the space,
the seed and what was reported; it knows nothing of workers, slots, time or failures beyond a trial's last status.
Chance comes from `random.Random(f"{seed}/suggest/{number}")`, number counting the configurations given out.

Here: the Protocol that the tuner calls, FIFOScheduler (every trial runs to its end, a searcher chooses), RandomSearch.
"""

import enum
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, final

from ..base.nearest import names_nearest_option
from .searchers import Ask, RandomSearcher, Searcher, mark_used, refuse_used
from .spaces import Space
from .values import plain_json

Mode: TypeAlias = Literal["min", "max"]

_P = ParamSpec("_P")
_Self = TypeVar("_Self")


class Decision(enum.StrEnum):
    """The answer to a report."""

    CONTINUE = "CONTINUE"
    STOP = "STOP"


class Status(enum.StrEnum):
    """What a trial is, in the words that users of Syne Tune know."""

    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    STOPPED = "Stopped"
    FAILED = "Failed"


class Scheduler(Protocol):
    """What the tuner calls. One object serves one search."""

    @property
    def metric(self) -> str:
        """Name of the reported value that is optimised."""

    @property
    def mode(self) -> Mode:
        """Whether a small ("min") or a large ("max") metric is good."""

    def start(self, space: Space, seed: int) -> None:
        """Begin afresh with this space and seed. Raises ValueError when its settings do not fit the space.

        Called when a Tuner is made, so that what does not fit is refused there, and again when it runs; the last call
        before the first `suggest` counts.
        """

    def suggest(self, trial_id: int) -> dict[str, object] | None:
        """A complete configuration for a new trial. None: nothing now; with no trial running it means never."""

    def on_report(self, trial_id: int, config: Mapping[str, object], values: Mapping[str, object]) -> Decision:
        """A running trial reported values; the metric is among them, a number and not NaN."""

    def on_end(self, trial_id: int, status: Status) -> None:
        """The trial is over for good (all its attempts): Completed, Stopped or Failed."""

    def describe(self) -> dict[str, object]:
        """Name and settings as JSON, for the record."""


def _takes_no_space(init: Callable[Concatenate[_Self, _P], None]) -> Callable[Concatenate[_Self, _P], None]:
    """Decorates an `__init__`: a space among its arguments, as in Syne Tune, is refused with the place it goes to."""

    @functools.wraps(init)
    def checked(self: _Self, /, *args: _P.args, **options: _P.kwargs) -> None:
        if any(isinstance(value, Space | Mapping) for value in args) or options.keys() & {"config_space", "space"}:
            name = type(self).__name__
            right = "FIFOScheduler(searcher, metric=...)" if name == "FIFOScheduler" else f"{name}(metric=...)"
            raise TypeError(
                f"{name} got a space: the space goes to the Tuner, which tells it to the scheduler.\n"
                f"  right:  Tuner(objective, space, {right}, stop)"
            )
        init(self, *args, **options)

    return checked


@final
class FIFOScheduler:
    """Runs every trial to its end; a searcher chooses the configurations.

    Args:
        searcher: chooses; serves this search only.
        metric: name of the reported value to optimise.
        mode: "min" or "max".
        points_to_evaluate: configurations to try first, in this order; what one leaves out is drawn at random.
        random_seed: None takes the tuner's seed.

    Raises:
        TypeError: an unknown option (names the nearest), or an argument of the wrong type.
        ValueError: a mode other than "min" and "max", or an empty metric.

    >>> scheduler = FIFOScheduler(RandomSearcher(), metric="loss", points_to_evaluate=[{"depth": 3}])
    >>> scheduler.start(Space({"depth": 3}), seed=0)
    >>> scheduler.suggest(trial_id=0)
    {'depth': 3}
    """

    @_takes_no_space
    @names_nearest_option
    def __init__(
        self,
        searcher: Searcher,
        *,
        metric: str,
        mode: Mode = "min",
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        if not isinstance(searcher, Searcher):
            raise TypeError(
                f"searcher must be a Searcher (an instance, for example RandomSearcher()), got {searcher!r}"
            )
        self._searcher = searcher
        self._metric = check_metric(metric)
        self._mode = check_mode(mode)
        self._points = copy_points(points_to_evaluate)
        self._random_seed = check_seed(random_seed)
        self._space: Space | None = None
        self._seed = 0
        self._num_suggested = 0

    @property
    def metric(self) -> str:
        return self._metric

    @property
    def mode(self) -> Mode:
        return self._mode

    def start(self, space: Space, seed: int) -> None:
        """See `Scheduler`.

        Raises:
            ValueError: points_to_evaluate do not fit the space; the scheduler or its searcher has served a search.
        """
        refuse_used(self, "Make a new scheduler for each Tuner, with a new searcher.")
        searcher = type(self._searcher).__name__
        refuse_used(self._searcher, f"Make a new searcher for each Tuner: FIFOScheduler({searcher}(...), metric=...).")
        for index, point in enumerate(self._points):
            try:
                space.check_part(point)
            except ValueError as error:
                raise ValueError(f"points_to_evaluate[{index}]: {error}") from None
        self._space = space
        self._seed = seed if self._random_seed is None else self._random_seed

    def suggest(self, trial_id: int) -> dict[str, object] | None:
        """See `Scheduler`.

        Raises:
            TypeError, ValueError: the searcher returned no configuration of the space.
        """
        assert self._space is not None, "the tuner calls start() first"
        mark_used(self)
        mark_used(self._searcher)
        rng = random.Random(f"{self._seed}/suggest/{self._num_suggested}")
        if self._num_suggested < len(self._points):
            config: dict[str, object] | None = self._space.complete(self._points[self._num_suggested], rng)
        else:
            config = suggestion_of(self._searcher, Ask(trial_id, self._space, rng))
        if config is not None:
            self._num_suggested += 1
        return config

    def on_report(self, trial_id: int, config: Mapping[str, object], values: Mapping[str, object]) -> Decision:
        self._searcher.observe(trial_id, config, loss_of(values, self._metric, self._mode))
        return Decision.CONTINUE

    def on_end(self, trial_id: int, status: Status) -> None:
        """Nothing is kept for a trial."""

    def describe(self) -> dict[str, object]:
        return {
            "name": "FIFOScheduler",
            "searcher": type(self._searcher).__name__,
            "metric": self._metric,
            "mode": self._mode,
            "points_to_evaluate": [dict(point) for point in self._points],
            "random_seed": self._random_seed,
        }


@final
class RandomSearch:
    """Random search: every configuration is drawn from the space, every trial runs to its end.

    Args and errors are those of `FIFOScheduler`, without the searcher.

    >>> RandomSearch(metrics="validation_error")
    Traceback (most recent call last):
    TypeError: RandomSearch has no option 'metrics'; did you mean 'metric'?
    """

    @_takes_no_space
    @names_nearest_option
    def __init__(
        self,
        *,
        metric: str,
        mode: Mode = "min",
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        self._fifo = FIFOScheduler(
            RandomSearcher(),
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            random_seed=random_seed,
        )

    @property
    def metric(self) -> str:
        return self._fifo.metric

    @property
    def mode(self) -> Mode:
        return self._fifo.mode

    def start(self, space: Space, seed: int) -> None:
        self._fifo.start(space, seed)

    def suggest(self, trial_id: int) -> dict[str, object] | None:
        return self._fifo.suggest(trial_id)

    def on_report(self, trial_id: int, config: Mapping[str, object], values: Mapping[str, object]) -> Decision:
        return self._fifo.on_report(trial_id, config, values)

    def on_end(self, trial_id: int, status: Status) -> None:
        self._fifo.on_end(trial_id, status)

    def describe(self) -> dict[str, object]:
        return {**self._fifo.describe(), "name": "RandomSearch"}


def check_metric(metric: str) -> str:
    """The name of a metric, or TypeError, ValueError."""
    if not isinstance(metric, str):
        raise TypeError(f"metric must be the name of a reported value, got {metric!r} of type {type(metric).__name__}")
    if not metric:
        raise ValueError("metric must be the name of a reported value, got an empty text")
    return metric


def check_mode(mode: Mode) -> Mode:
    """One of "min" and "max", or ValueError."""
    if mode not in ("min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
    return mode


def check_seed(seed: int | None) -> int | None:
    """A seed or None, or TypeError."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"random_seed must be an int or None, got {seed!r} of type {type(seed).__name__}")
    return seed


def copy_points(points: Sequence[Mapping[str, object]] | None) -> tuple[dict[str, object], ...]:
    """points_to_evaluate as copies of our own, in plain Python values; whether they fit a space is checked later."""
    if points is None:
        return ()
    if isinstance(points, Mapping | str) or not isinstance(points, Sequence):
        raise TypeError(f"points_to_evaluate must be a list of configurations, [{{...}}, ...], got {points!r}")
    copies = []
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            raise TypeError(f"points_to_evaluate[{index}] must be a dict of hyperparameters, got {point!r}")
        what = f"points_to_evaluate[{index}]"
        copies.append({str(name): plain_json(f"{what}[{name!r}]", value) for name, value in point.items()})
    return tuple(copies)


def loss_of(values: Mapping[str, object], metric: str, mode: Mode) -> float:
    """The metric as a loss: a smaller one is better."""
    value = float(values[metric])  # type: ignore[arg-type]  # the tuner lets only numbers through
    return value if mode == "min" else -value


def suggestion_of(searcher: Searcher, ask: Ask) -> dict[str, object] | None:
    """What the searcher suggests, checked against the space and in plain Python values.

    Raises:
        TypeError: it returned neither a configuration nor None; names the searcher's class.
        ValueError: the configuration is not one of the space; names the searcher's class.
    """
    suggested = searcher.suggest(ask)
    if suggested is None:
        return None
    who = f"{type(searcher).__name__}.suggest() for trial {ask.trial_id}"
    if not isinstance(suggested, Mapping):
        raise TypeError(f"{who} must return a dict of hyperparameters, or None, got {suggested!r}")
    try:
        return ask.space.check(suggested)
    except ValueError as error:
        raise ValueError(f"{who} returned {dict(suggested)!r}: {error}") from None

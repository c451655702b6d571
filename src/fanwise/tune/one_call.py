"""The whole of a search in one call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .experiment import Experiment
from .schedulers import RandomSearch
from .schedulers.protocol import Scheduler
from .searchers.base import Mode
from .spaces import Space
from .stopping import StoppingCriterion
from .tuner import Tuner


def search(
    objective: Callable[..., Any],  # Any: the user's objective
    space: Space | Mapping[str, Any],  # Any: domains and constants
    *,
    metric: str | None = None,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    n_trials: int | None = None,
    seconds: float | None = None,
    n_workers: int | None = None,
    scheduler: Scheduler | None = None,
    **options: Any,  # Any: the Tuner's
) -> Experiment:
    """Search the hyperparameters of an objective; blocks. As `Tuner(...).run()`, with the usual choices made.

    Args:
        objective: called in a process of its own for each trial, with the configuration as keyword arguments; returns
            the metric or a dict with it, or calls `report`.
        space: names to domains and constants.
        metric, mode: what random search looks at; not with `scheduler`, which has its own.
        constraints: what every report must meet, such as ["latency_ms <= 20"].
        n_trials: start so many.
        seconds: end after so many; at least one of the two.
        n_workers: trials at a time; None: as many as the machine has devices for.
        scheduler: another one than random search, such as `ASHA(...)`.
        options: further ones of `Tuner`, such as name=, callbacks= or quiet=.

    Raises:
        TypeError, ValueError: arguments that make no sense. And as `Tuner.run`.

    >>> experiment = search(train, {"learning_rate": loguniform(1e-4, 1)}, metric="loss", n_trials=20)
    >>> experiment.best.config
    {'learning_rate': 0.0123}
    """
    if scheduler is None and metric is None:
        raise TypeError('search() needs the name of the value to look at: metric="loss" (or a scheduler)')
    if scheduler is not None and (metric is not None or mode != "min"):
        raise TypeError("search() got a scheduler, which has its own metric and mode: leave out metric= and mode=")
    if n_trials is None and seconds is None:
        raise ValueError("search() would run for ever: say n_trials=20, seconds=600, or both")
    if scheduler is None:
        assert metric is not None, "looked at above"
        scheduler = RandomSearch(metric=metric, mode=mode)
    stop = StoppingCriterion(max_num_trials_started=n_trials, max_wallclock_time=seconds)
    return Tuner(objective, space, scheduler, stop, constraints=constraints, n_workers=n_workers, **options).run()

"""Runs a whole search in one call."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.nearest import did_you_mean
from .experiment import Experiment
from .schedulers.scheduler import Scheduler
from .searchers.searcher import Mode, Searcher
from .space import Space
from .stopping import StoppingCriterion
from .tuner import Tuner


def search(
    objective: Callable[..., Any],  # Any: the user's objective
    space: Space | Mapping[str, Any],  # Any: domains and constants
    *,
    metric: str | Sequence[str] | None = None,
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    n_trials: int | None = None,
    seconds: float | None = None,
    n_workers: int | None = None,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    scheduler: Scheduler | None = None,
    **options: Any,  # Any: the Tuner's
) -> Experiment:
    """Search the hyperparameters of an objective. Blocks. Shorthand for `Tuner(...).run()`.

    Args:
        objective: function to optimize. Each trial calls it in a separate process with the configuration as keyword
            arguments. It returns the metric or a dict that contains it, or calls `report`.
        space: dict of names to domains and constants.
        metric, mode: name of the reported value to optimize, or several names, and "min" or "max". Not allowed with
            `scheduler`, which has its own.
        constraints: constraints on every report, such as ["latency_ms <= 20"].
        n_trials: number of trials to start. Required if `seconds` is None.
        seconds: time limit in seconds. Required if `n_trials` is None.
        n_workers: number of trials that run at a time. None: as many as the devices allow.
        searcher: a searcher, or its name ("random", "forest", "tpe", ...). None: choose one by the objectives, space,
            budget and number of workers, print it, and record it.
        points_to_evaluate: configurations to try first. Missing values are drawn at random.
        scheduler: stops trials early, such as `ASHA(...)`. None: every trial runs to its end.
        options: other arguments of `Tuner`, such as name=, callbacks= or quiet=.

    Raises:
        TypeError, ValueError: invalid arguments.
        Exception: as `Tuner.run`.

    >>> experiment = search(train, {"learning_rate": loguniform(1e-4, 1)}, metric="loss", n_trials=20)
    >>> experiment.best.config
    {'learning_rate': 0.0123}
    """
    known = [*inspect.signature(search).parameters, *inspect.signature(Tuner).parameters]
    known = [name for name in dict.fromkeys(known) if name not in ("options", "stop")]
    for name in options:
        if name not in known:
            raise TypeError(f"search has no option {name!r}{did_you_mean(name, known)}")
    if n_trials is None and seconds is None:
        raise ValueError("search() would run for ever: say n_trials=20, seconds=600, or both")
    stop = StoppingCriterion(max_num_trials_started=n_trials, max_wallclock_time=seconds)
    tuner = Tuner(
        objective,
        space,
        scheduler,
        stop,
        metric=metric,
        mode=mode,
        searcher=searcher,
        points_to_evaluate=points_to_evaluate,
        constraints=constraints,
        n_workers=n_workers,
        **options,
    )
    return tuner.run()

"""Searchers and schedulers by name, with options as key=value.

--searcher sobol --scheduler asha --option max_t=81 --option brackets=2
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..base.nearest import did_you_mean, must_be_one_of
from ..tune import ASHA, BOHB, FIFO, MOASHA, PBT, Hyperband, MedianStopping, Scheduler, SuccessiveHalving
from ..tune.searchers import searcher_factory
from .usage import UsageError

SCHEDULERS: Mapping[str, Callable[..., Any]] = {  # Any: each has options of its own
    "fifo": FIFO,
    "asha": ASHA,
    "halving": SuccessiveHalving,
    "hyperband": Hyperband,
    "bohb": BOHB,
    "median": MedianStopping,
    "pbt": PBT,
    "moasha": MOASHA,
}
# Arguments of schedulers with their options of the command.
_COMMAND_OPTIONS = {
    "metric": "--metric",
    "mode": "--mode",
    "constraints": "--constraint",
    "random_seed": "--seed",
    "searcher": "--searcher",
}


def scheduler_of(
    searcher: str | None,
    scheduler: str,
    options: Mapping[str, object],
    *,
    metric: str | Sequence[str],
    mode: str | Sequence[str],
    constraints: Sequence[str],
    seed: int | None,
) -> Scheduler:
    """Return the scheduler with its searcher. Each option is passed to the one that has it.

    Raises:
        UsageError: a name, option or value is invalid.
    """
    make_scheduler = _scheduler_named(scheduler)
    has_searcher = "searcher" in inspect.signature(make_scheduler).parameters
    if not has_searcher and searcher is not None:
        raise UsageError(f"--scheduler {scheduler} has its own searcher: omit --searcher")
    searcher = searcher or "random"
    try:
        make_searcher, searcher_options = _searcher_and_options(searcher)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    scheduler_options = _options_of(make_scheduler)
    refuse_command_options(options)
    for name in options:
        if name not in searcher_options and name not in scheduler_options:
            hint = did_you_mean(name, [*searcher_options, *scheduler_options])
            raise UsageError(f"--option: {searcher} and {scheduler} have no option {name!r}{hint}")
    of_searcher = {name: value for name, value in options.items() if name in searcher_options}
    try:
        return make_scheduler(  # type: ignore[no-any-return]  # all of them make one
            **({"searcher": make_searcher(**of_searcher) if of_searcher else searcher} if has_searcher else {}),
            metric=metric,
            mode=mode,
            constraints=constraints,
            random_seed=seed,
            **{name: value for name, value in options.items() if name in scheduler_options},
        )
    except TypeError as error:
        missing = [name for name in _required(make_scheduler) if name not in options]
        raise UsageError(f"{scheduler} needs --option {missing[0]}=..." if missing else str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def refuse_command_options(options: Mapping[str, object]) -> None:
    """Raise UsageError for options that the command has itself."""
    for name in options:
        if name in _COMMAND_OPTIONS:
            raise UsageError(f"use {_COMMAND_OPTIONS[name]} instead of --option {name}=...")


def _searcher_and_options(name: str) -> tuple[Callable[..., Any], list[str]]:  # Any: as above
    """Return a function that creates the searcher, and the names of its options."""
    make = searcher_factory(name)
    if isinstance(make, partial):  # a sampler of Optuna
        from ..tune.searchers.with_optuna import sampler_options

        try:
            return make, ["suggest_timeout_s", *sampler_options(*make.args)]
        except ValueError as error:
            raise ValueError(f"searcher {name!r}: {error}") from error
    return make, _options_of(make)


def _scheduler_named(name: str) -> Callable[..., Any]:  # Any: as above
    if name not in SCHEDULERS:
        raise UsageError(must_be_one_of("--scheduler", name, SCHEDULERS))
    return SCHEDULERS[name]


def _options_of(make: Callable[..., Any]) -> list[str]:  # Any: as above
    return [name for name in inspect.signature(make).parameters if name not in _COMMAND_OPTIONS]


def _required(make: Callable[..., Any]) -> list[str]:  # Any: as above
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.name not in _COMMAND_OPTIONS]

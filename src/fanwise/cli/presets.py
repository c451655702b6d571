"""Searchers and schedulers by name, with options: `--searcher sobol --scheduler asha --option max_t=81`."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..base.nearest import did_you_mean
from ..tune import ASHA, BOHB, FIFO, MOASHA, PBT, Hyperband, MedianStopping, SuccessiveHalving
from ..tune.searchers import searcher_factory
from .console import UsageError

_SCHEDULERS: Mapping[str, Callable[..., Any]] = {
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


def scheduling(
    searcher: str | None, scheduler: str, options: Mapping[str, object], **objective: object
) -> dict[str, Any]:
    """Return the scheduler argument of the Tuner, or the arguments with which the Tuner chooses a scheduler.

    Args:
        options: {name: value} of `--option`. Each is passed to the searcher or scheduler that has it.
        objective: metric, mode, constraints and random_seed.

    Raises:
        UsageError: a name, option or value is invalid.
    """
    for name in options:
        if name in _COMMAND_OPTIONS:
            raise UsageError(f"use {_COMMAND_OPTIONS[name]} instead of --option {name}=...")
    if searcher is None and scheduler == "fifo":
        if options:
            raise UsageError(f"--option {min(options)} needs --searcher or --scheduler, to which it belongs")
        return objective
    make_scheduler = _SCHEDULERS[scheduler]
    has_searcher = "searcher" in inspect.signature(make_scheduler).parameters
    if not has_searcher and searcher is not None:
        raise UsageError(f"--scheduler {scheduler} has its own searcher: omit --searcher")
    searcher = searcher or "random"
    try:
        make_searcher, searcher_options = _searcher_and_options(searcher)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    scheduler_options = _options_of(make_scheduler)
    for name in options:
        if name not in searcher_options and name not in scheduler_options:
            hint = did_you_mean(name, [*searcher_options, *scheduler_options])
            raise UsageError(f"--option: {searcher} and {scheduler} have no option {name!r}{hint}")
    arguments = {name: value for name, value in options.items() if name in scheduler_options}
    of_searcher = {name: value for name, value in options.items() if name in searcher_options}
    try:
        if has_searcher:
            arguments["searcher"] = make_searcher(**of_searcher) if of_searcher else searcher
        return {"scheduler": make_scheduler(**arguments, **objective)}
    except TypeError as error:
        required = [p for p in inspect.signature(make_scheduler).parameters.values() if p.default is p.empty]
        missing = [p.name for p in required if p.name not in options and p.name not in _COMMAND_OPTIONS]
        raise UsageError(f"{scheduler} needs --option {missing[0]}=..." if missing else str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _searcher_and_options(name: str) -> tuple[Callable[..., Any], list[str]]:
    """Return a function that creates the searcher, and the names of its options."""
    make = searcher_factory(name)
    if isinstance(make, partial):  # a sampler of Optuna
        from ..tune.searchers.with_optuna import sampler_options

        try:
            return make, ["suggest_timeout_s", *sampler_options(*make.args)]
        except ValueError as error:
            raise ValueError(f"searcher {name!r}: {error}") from error
    return make, _options_of(make)


def _options_of(make: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(make).parameters if name not in _COMMAND_OPTIONS]

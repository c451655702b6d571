"""Searchers and schedulers by the names that a command line has for them, with their options as key=value.

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
# Options of the command itself.
_OWN = {
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
    """The scheduler with its searcher; each option goes to the one of the two that has it.

    Raises:
        UsageError: no such name or option, or a value that it does not take; says which there are.
    """
    make_scheduler = _scheduler_named(scheduler)
    has_searcher = "searcher" in inspect.signature(make_scheduler).parameters
    if not has_searcher and searcher is not None:
        raise UsageError(f"--scheduler {scheduler} has a searcher of its own: leave out --searcher")
    searcher = searcher or "random"
    try:
        make_searcher, its = _searcher_and_options(searcher)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    theirs = _options_of(make_scheduler)
    refuse_own(options)
    for name in options:
        if name not in its and name not in theirs:
            of = f"{searcher} and {scheduler} have no option {name!r}"
            raise UsageError(f"--option: {of}{did_you_mean(name, [*its, *theirs])}")
    of_searcher = {name: value for name, value in options.items() if name in its}
    try:
        return make_scheduler(  # type: ignore[no-any-return]  # all of them make one
            **({"searcher": make_searcher(**of_searcher) if of_searcher else searcher} if has_searcher else {}),
            metric=metric,
            mode=mode,
            constraints=constraints,
            random_seed=seed,
            **{name: value for name, value in options.items() if name in theirs},
        )
    except TypeError as error:
        missing = [name for name in _needed(make_scheduler) if name not in options]
        what = f"{scheduler} needs --option {missing[0]}=..." if missing else str(error)
        raise UsageError(what) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def refuse_own(options: Mapping[str, object]) -> None:
    """UsageError for what the command has an option of its own for."""
    for name in options:
        if name in _OWN:
            raise UsageError(f"say {_OWN[name]} instead of --option {name}=...")


def _searcher_and_options(name: str) -> tuple[Callable[..., Any], list[str]]:  # Any: as above
    """What makes the searcher, and the names of its options."""
    make = searcher_factory(name)
    if isinstance(make, partial):  # of a sampler of Optuna
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
    return [name for name in inspect.signature(make).parameters if name not in _OWN]


def _needed(make: Callable[..., Any]) -> list[str]:  # Any: as above
    parameters = inspect.signature(make).parameters.values()
    return [each.name for each in parameters if each.default is inspect.Parameter.empty and each.name not in _OWN]

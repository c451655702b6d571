"""Validates the parts of a search and describes them for the record. Shared by `Tuner` and `open_search`."""

import copy
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..base.version import VERSION
from .constraints import Constraint
from .default_searcher import SearcherChoice, choose_searcher
from .schedulers.scheduler import FIFO, Scheduler
from .searchers.searcher import Mode, Searcher
from .searchers.with_sklearn import has_sklearn
from .space import Space
from .stopping import StoppingCriterion


def check_scheduler(scheduler: object) -> None:
    """Raise TypeError unless this is a scheduler."""
    if isinstance(scheduler, type):
        raise TypeError(
            f"the scheduler must be an object, got the class {scheduler.__name__}.\n"
            f"  right:  {scheduler.__name__}(metric=...)"
        )
    if not isinstance(scheduler, Scheduler):
        raise TypeError(
            f"the scheduler must be a Scheduler, such as ASHA(metric='loss', max_t=81), got {scheduler!r}. "
            f"A searcher goes into FIFO(searcher, metric=...)."
        )


def scheduler_for(
    scheduler: Scheduler | None,
    *,
    metric: str | Sequence[str] | None,
    mode: Mode | Sequence[Mode],
    searcher: Searcher | str | None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    space: Space,
    stop: StoppingCriterion | None,
    n_workers: int,
) -> tuple[Scheduler, SearcherChoice | None]:
    """Return the scheduler, or a FIFO scheduler for the metric, and the choice of the searcher if one was made.

    Raises:
        TypeError: both a scheduler and a metric are given, or neither.
        ValueError: there is no searcher of this name.
    """
    if scheduler is not None:
        if metric is not None or mode != "min" or searcher is not None or points_to_evaluate is not None:
            raise TypeError(
                "a scheduler has its own metric, mode, searcher and points_to_evaluate: leave out metric=, mode=, "
                "searcher= and points_to_evaluate= here"
            )
        check_scheduler(scheduler)
        return scheduler, None
    if metric is None:
        raise TypeError('a search needs the name of the value to look at: metric="loss" (or a scheduler)')
    chosen = None
    if searcher is None:
        chosen = choose_searcher(
            num_objectives=1 if isinstance(metric, str) else len(metric),
            has_conditions=bool(space.conditions),
            max_trials=None if stop is None else stop.max_trials,
            n_workers=n_workers,
            has_sklearn=has_sklearn(),
        )
    searcher = searcher if chosen is None else chosen.name
    return FIFO(searcher, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate), chosen


def checked_stop(stop: object) -> StoppingCriterion:
    """Return the stopping criterion. Raise ValueError if it is None, or TypeError if it has another type."""
    if stop is None:
        raise ValueError("the search would run for ever: say when it ends, stop=StoppingCriterion(...)")
    if not isinstance(stop, StoppingCriterion):
        raise TypeError(f"stop must be a StoppingCriterion, got {stop!r}.")
    return stop


def copied(scheduler: Scheduler) -> Scheduler:
    """Return a deep copy, so that one scheduler can be passed to several tuners. Raise TypeError if copying fails."""
    try:
        return copy.deepcopy(scheduler)
    except Exception as error:  # copying user code may raise any exception
        name = type(scheduler).__name__
        raise TypeError(
            f"the tuner runs a copy of its scheduler, and {name} cannot be copied ({type(error).__name__}: {error}). "
            f"Make in begin() what cannot be copied, such as locks and files, and not in __init__."
        ) from error


def space_of(space: Space | Mapping[str, Any]) -> Space:  # Any: domains and constants
    """Return the argument if it is a Space, or else make a Space of it."""
    return space if isinstance(space, Space) else Space(space)


def described(
    *,
    name: str,
    objective: str,
    space: Space,
    scheduler: Scheduler,
    constraints: Sequence[Constraint],
    seed: int,
    n_workers: int,
    stop: StoppingCriterion,
    chosen: SearcherChoice | None = None,
) -> dict[str, object]:
    """Return the metadata that the record stores at the start of a search."""
    objectives = scheduler.objectives
    return {
        "id": secrets.token_hex(16),
        "name": name,
        "objective": objective,
        "space": space.to_json(),
        "scheduler": scheduler.describe(),
        "chosen": None if chosen is None else {"searcher": chosen.name, "because": chosen.reason},
        "metric": objectives[0].metric,
        "mode": objectives[0].mode,
        "objectives": [[objective.metric, objective.mode] for objective in objectives],
        "constraints": list(map(str, constraints)),
        "resource_attr": scheduler.resource_attr,
        "seed": seed,
        "n_workers": n_workers,
        "stop": stop.to_json(),
        "created_s": time.time(),
        "versions": versions_of(scheduler),
    }


def libraries_of(scheduler: Scheduler) -> tuple[str, ...]:
    """Return the packages whose versions affect the suggestions; see `Searcher.libraries`."""
    return scheduler.searcher.libraries


def check_same(
    meta: Mapping[str, Any],  # Any: JSON
    objective: str,
    space: Space,
    scheduler: Scheduler,
    constraints: Sequence[Constraint],
    seed: int | None = None,
) -> None:
    """Raise ValueError with the differences if the settings are not those of the experiment to resume."""
    problems = []
    if seed is not None and seed != meta["seed"]:
        problems.append(f"the random seed was {meta['seed']!r}, and is {seed!r}")
    if objective != meta["objective"]:
        problems.append(f"the objective was {meta['objective']!r}, and is {objective!r}")
    new, old = space.to_json(), meta["space"]
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            problems.append(f"the space had {name!r}: {old.get(name)!r}, and has {new.get(name)!r}")
    if scheduler.describe() != meta["scheduler"]:
        problems.append(f"the scheduler was {meta['scheduler']!r}, and is {scheduler.describe()!r}")
    bounds = list(map(str, constraints))
    if bounds != meta.get("constraints", []):
        problems.append(f"the constraints were {meta.get('constraints', [])!r}, and are {bounds!r}")
    if problems:
        raise ValueError(
            f"the experiment {meta['name']!r} cannot go on with something else:\n  " + "\n  ".join(problems) + "\n"
            "Leave it out to take what was kept, or make a new experiment."
        )


def versions_of(scheduler: Scheduler) -> dict[str, str]:
    """Return the versions that may affect the results. Libraries that are not installed are left out."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"fanwise": VERSION, "python": sys.version.split()[0]}
    for name in dict.fromkeys(("torch", "numpy", *libraries_of(scheduler))):
        if name == "fanwise":
            continue
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions

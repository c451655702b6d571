"""What every scheduler's arguments have in common: objectives, seeds, a searcher, points to try first - checked."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from ...base.nearest import did_you_mean
from ..constraints import Constraint
from ..searchers.base import Mode, Objective, Searcher
from ..searchers.first_points import FirstPoints
from ..searchers.random_search import RandomSearcher
from ..spaces import Space

_P = ParamSpec("_P")
_R = TypeVar("_R")


def checked_objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[Objective, ...]:
    """One objective or several, or TypeError, ValueError. One mode holds for all."""
    metrics = [metric] if isinstance(metric, str) else metric
    if not isinstance(metrics, list | tuple) or not all(isinstance(name, str) for name in metrics):
        raise TypeError(f"metric must be the name of a reported value, got {metric!r} of type {type(metric).__name__}")
    if not metrics or "" in metrics or len(set(metrics)) < len(metrics):
        raise ValueError(f"metric must be the name of a reported value (or different names), got {metric!r}")
    modes = [mode] * len(metrics) if isinstance(mode, str) else list(mode)
    if len(modes) != len(metrics) or not all(one in ("min", "max") for one in modes):
        raise ValueError(f"mode must be 'min' or 'max' (or one of them for each metric), got {mode!r}")
    return tuple(map(Objective, metrics, modes))


def described_objectives(objectives: Sequence[Objective], constraints: Sequence[Constraint] = ()) -> dict[str, object]:
    """Metrics and modes for a scheduler's description, and the constraints if there are any."""
    described: dict[str, object] = {
        "metric": [objective.metric for objective in objectives],
        "mode": [objective.mode for objective in objectives],
    }
    return described | {"constraints": list(map(str, constraints))} if constraints else described


def checked_objective(metric: str, mode: Mode) -> tuple[Objective, ...]:
    """The one objective of a scheduler that ranks trials by one number, or TypeError, ValueError."""
    if not isinstance(metric, str):
        raise TypeError(
            f"metric must be the name of one reported value, got {metric!r} of type {type(metric).__name__}; "
            f"for several: MOASHA, or a scheduler that ends no trial early"
        )
    return checked_objectives(metric, mode)


def checked_name(option: str, name: str | None) -> str | None:
    """The name of a reported value or of a part of the space, or None; or TypeError."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{option} must be a name or None, got {name!r} of type {type(name).__name__}")
    return name


def checked_seed(seed: int | None, name: str = "random_seed") -> int | None:
    """A seed or None, or TypeError."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"{name} must be an int or None, got {seed!r} of type {type(seed).__name__}")
    return seed


def seed_of(scheduler: object, given: int | None, otherwise: int) -> int:
    """Return the seed of a search. A search has one: its scheduler, searcher and trials all use it.

    Args:
        scheduler: its `random_seed` is the seed if no other is given.
        given: as an argument of the search, or None.
        otherwise: the seed if there is neither.

    Raises:
        ValueError: the search and its scheduler were given different seeds.
    """
    own = getattr(scheduler, "random_seed", None)
    if not isinstance(own, int):
        return otherwise if given is None else given
    if given is not None and given != own:
        raise ValueError(
            f"a search has one seed, but the search was given {given} and its {type(scheduler).__name__} was given "
            f"random_seed={own}. Leave out one of them."
        )
    return own


def checked_searcher(
    searcher: Searcher | str | None, points_to_evaluate: Sequence[Mapping[str, object]] | None
) -> Searcher:
    """The searcher, random search for None, behind the points to try first; or TypeError, ValueError."""
    if searcher is None or searcher == "random":
        searcher = RandomSearcher()
    if not isinstance(searcher, Searcher):
        what = f"searcher must be a Searcher (an instance, for example RandomSearcher()), got {searcher!r}"
        if isinstance(searcher, str):
            what += (
                "; a scheduler's class takes the object, such as TPESearcher(); names are for Tuner(metric=..., "
                "searcher='tpe'), search and the functions that make schedulers, such as ASHA(searcher='tpe')"
            )
        raise TypeError(what)
    return searcher if points_to_evaluate is None else FirstPoints(points_to_evaluate, searcher)


def checks_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates what makes a scheduler: unknown options name the nearest, and a space is refused with its right place.

    Syne Tune's schedulers take the space; here it goes to the Tuner.
    """
    name = function.__qualname__.partition(".")[0]
    known = [option for option in inspect.signature(function).parameters if option != "self"]

    @functools.wraps(function)
    def checked(*args: _P.args, **options: _P.kwargs) -> _R:
        if any(isinstance(value, Space | Mapping) for value in args) or options.keys() & {"config_space", "space"}:
            right = "FIFOScheduler(searcher, metric=...)" if name == "FIFOScheduler" else f"{name}(metric=...)"
            raise TypeError(
                f"{name} got a space: the space goes to the Tuner, which tells it to the scheduler.\n"
                f"  right:  Tuner(objective, space, {right}, stop)"
            )
        for option in options:
            if option not in known:
                raise TypeError(f"{name} has no option {option!r}{did_you_mean(option, known)}")
        return function(*args, **options)

    return checked

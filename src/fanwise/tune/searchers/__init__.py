"""Searchers, which choose the configurations of trials, and names for them, as in `ASHA(searcher="tpe")`."""

from collections.abc import Callable, Mapping
from functools import partial

from ...base.nearest import must_be_one_of
from .gp import GPSearcher as GPSearcher
from .optuna_searcher import OptunaSearcher as OptunaSearcher
from .points import GridSearcher as GridSearcher
from .random_search import RandomSearcher as RandomSearcher
from .random_search import SobolSearcher as SobolSearcher
from .searcher import Mode as Mode
from .searcher import Objective as Objective
from .searcher import Observation as Observation
from .searcher import Searcher as Searcher
from .searcher import SuggestContext as SuggestContext
from .tpe import TPESearcher as TPESearcher
from .with_sklearn import ForestSearcher as ForestSearcher

SEARCHERS: Mapping[str, Callable[..., Searcher]] = {
    "random": RandomSearcher,
    "grid": GridSearcher,
    "sobol": SobolSearcher,
    "gp": GPSearcher,
    "forest": ForestSearcher,
    "tpe": TPESearcher,
    "bayesopt": partial(OptunaSearcher, "GPSampler"),
}
"""Constructors of searchers by name. All can be called without arguments."""

OPTUNA_PREFIX = "optuna:"  # "optuna:NAME" is the sampler NAME of Optuna


def searcher_factory(name: str) -> Callable[..., Searcher]:
    """Return the constructor of the searcher with this name. Raises ValueError for an unknown name."""
    if name.startswith(OPTUNA_PREFIX):
        return partial(OptunaSearcher, name.removeprefix(OPTUNA_PREFIX))
    if name not in SEARCHERS:
        raise ValueError(must_be_one_of("searcher", name, SEARCHERS, also=f"{OPTUNA_PREFIX}NAME"))
    return SEARCHERS[name]


def resolve_searcher(searcher: Searcher | str | None) -> Searcher | None:
    """Return the argument, or a new searcher if it is a name. Raises ValueError for an unknown name, NotInstalled."""
    return searcher_factory(searcher)() if isinstance(searcher, str) else searcher

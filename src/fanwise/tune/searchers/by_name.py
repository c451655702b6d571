"""Searchers by name, as in `ASHA(searcher="tpe")` and `--searcher tpe`.

`optuna:NAME` is the sampler NAME of Optuna.
"""

from collections.abc import Callable, Mapping
from functools import partial

from ...base.nearest import must_be_one_of
from .forest import ForestSearcher
from .grid import GridSearcher
from .optuna_searcher import OptunaSearcher
from .random_search import RandomSearcher
from .searcher import Searcher
from .sobol import SobolSearcher
from .tpe import TPESearcher

SEARCHERS: Mapping[str, Callable[..., Searcher]] = {
    "random": RandomSearcher,
    "grid": GridSearcher,
    "sobol": SobolSearcher,
    "forest": ForestSearcher,
    "tpe": TPESearcher,
    "bayesopt": partial(OptunaSearcher, "GPSampler"),
}
"""All can be called without arguments."""

OPTUNA_PREFIX = "optuna:"


def searcher_factory(name: str) -> Callable[..., Searcher]:
    """Return the constructor of the searcher with this name. Raises ValueError for an unknown name."""
    if name.startswith(OPTUNA_PREFIX):
        return partial(OptunaSearcher, name.removeprefix(OPTUNA_PREFIX))
    if name not in SEARCHERS:
        raise ValueError(must_be_one_of("searcher", name, SEARCHERS, also=f"{OPTUNA_PREFIX}NAME"))
    return SEARCHERS[name]


def resolve_searcher(searcher: Searcher | str | None) -> Searcher | None:
    """Construct the searcher with this name. Other values are returned unchanged.

    Raises:
        ValueError: unknown name.
        NotInstalled: a library of the searcher is missing.
    """
    return searcher_factory(searcher)() if isinstance(searcher, str) else searcher

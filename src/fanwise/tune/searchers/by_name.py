"""Searchers by the names that texts have for them: `ASHA(searcher="tpe")`, and `--searcher tpe` on the command line.

`optuna:TPESampler` is a sampler of Optuna by its name there.
"""

from collections.abc import Callable, Mapping
from functools import partial

from ...base.nearest import must_be_one_of
from .base import Searcher
from .forest_searcher import ForestSearcher
from .grid import GridSearcher
from .optuna_searcher import OptunaSearcher
from .random_search import RandomSearcher
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
"""Each can be made without arguments."""

OF_OPTUNA = "optuna:"


def maker_of(name: str) -> Callable[..., Searcher]:
    """What makes the searcher of this name, with its settings as keywords.

    Raises:
        ValueError: no searcher has the name.
    """
    if name.startswith(OF_OPTUNA):
        return partial(OptunaSearcher, name.removeprefix(OF_OPTUNA))
    if name not in SEARCHERS:
        raise ValueError(must_be_one_of("searcher", name, SEARCHERS, also=f"{OF_OPTUNA}NAME"))
    return SEARCHERS[name]


def searcher_of(given: Searcher | str | None) -> Searcher | None:
    """Return the searcher of this name. A searcher, or None, is returned unchanged.

    Raises:
        ValueError: no searcher has the name.
        NotInstalled: a library that the searcher needs is missing; the message names the extra.
    """
    return maker_of(given)() if isinstance(given, str) else given

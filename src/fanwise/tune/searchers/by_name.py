"""Searchers by the names that texts have for them: `ASHA(searcher="tpe")`, and `--searcher tpe` on the command line."""

from collections.abc import Callable, Mapping

from ...base.nearest import did_you_mean
from .base import Searcher
from .bayesian import BayesianSearcher
from .bore import BORESearcher
from .cqr import CQRSearcher
from .evolution import EvolutionSearcher
from .forest_searcher import ForestSearcher
from .grid import GridSearcher
from .local_search import LocalSearcher
from .random_search import RandomSearcher
from .sobol import SobolSearcher
from .tpe import TPESearcher

SEARCHERS: Mapping[str, Callable[..., Searcher]] = {
    "random": RandomSearcher,
    "grid": GridSearcher,
    "sobol": SobolSearcher,
    "local": LocalSearcher,
    "evolution": EvolutionSearcher,
    "forest": ForestSearcher,
    "tpe": TPESearcher,
    "cqr": CQRSearcher,
    "bore": BORESearcher,
    "bayesopt": BayesianSearcher,
}
"""Each can be made without arguments."""


def searcher_of(given: Searcher | str | None) -> Searcher | None:
    """The searcher of this name; a searcher, or None, as it is.

    Raises:
        ValueError: no searcher has the name.
        NotInstalled: the searcher needs a library that is not there; names the extra.
    """
    if not isinstance(given, str):
        return given
    if given not in SEARCHERS:
        known = ", ".join(SEARCHERS)
        raise ValueError(f"searcher must be one of {known}, got {given!r}{did_you_mean(given, SEARCHERS)}")
    return SEARCHERS[given]()

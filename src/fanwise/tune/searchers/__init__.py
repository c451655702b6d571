"""Searchers, which choose the configurations of trials."""

from .base import Mode as Mode
from .base import Objective as Objective
from .base import Observation as Observation
from .base import Searcher as Searcher
from .base import SuggestContext as SuggestContext
from .forest import ForestSearcher as ForestSearcher
from .grid import GridSearcher as GridSearcher
from .model_based import ModelBasedSearcher as ModelBasedSearcher
from .optuna_searcher import OptunaSearcher as OptunaSearcher
from .random_search import RandomSearcher as RandomSearcher
from .sobol import SobolSearcher as SobolSearcher
from .tpe import TPESearcher as TPESearcher

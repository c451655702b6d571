"""Searchers, which choose the configurations of trials."""

from .forest import ForestSearcher as ForestSearcher
from .grid import GridSearcher as GridSearcher
from .model_based import ModelBasedSearcher as ModelBasedSearcher
from .optuna_searcher import OptunaSearcher as OptunaSearcher
from .random_search import RandomSearcher as RandomSearcher
from .searcher import Mode as Mode
from .searcher import Objective as Objective
from .searcher import Observation as Observation
from .searcher import Searcher as Searcher
from .searcher import SuggestContext as SuggestContext
from .sobol import SobolSearcher as SobolSearcher
from .tpe import TPESearcher as TPESearcher

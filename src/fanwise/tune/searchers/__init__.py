"""Searchers: which configuration to try next."""

from .base import Ask as Ask
from .base import Mode as Mode
from .base import Objective as Objective
from .base import Observation as Observation
from .base import Searcher as Searcher
from .forest_searcher import ForestSearcher as ForestSearcher
from .grid import GridSearcher as GridSearcher
from .learner import Learner as Learner
from .optuna_searcher import OptunaSearcher as OptunaSearcher
from .random_search import RandomSearcher as RandomSearcher
from .sobol import SobolSearcher as SobolSearcher
from .tpe import TPESearcher as TPESearcher

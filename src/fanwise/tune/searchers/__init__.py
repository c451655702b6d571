"""Searchers: which configuration to try next."""

from .base import Ask as Ask
from .base import Mode as Mode
from .base import Objective as Objective
from .base import Observation as Observation
from .base import Searcher as Searcher
from .bayesian import BayesianSearcher as BayesianSearcher
from .bore import BORESearcher as BORESearcher
from .cqr import CQRSearcher as CQRSearcher
from .evolution import EvolutionSearcher as EvolutionSearcher
from .grid import GridSearcher as GridSearcher
from .learner import Learner as Learner
from .local_search import LocalSearcher as LocalSearcher
from .optuna_searcher import OptunaSearcher as OptunaSearcher
from .random_search import RandomSearcher as RandomSearcher
from .sobol import SobolSearcher as SobolSearcher
from .tpe import TPESearcher as TPESearcher

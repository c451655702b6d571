"""Asynchronous hyperparameter search.

spaces/, chance, searchers, schedulers, stopping, tuning (quiet)  what to try, what goes on, when to end
reporting                                                 what objectives call
tuner, search, screen                                     a search at work, and what it shows
record, experiment                                        what happened, kept and read
"""

from ..base.errors import TrialStopped as TrialStopped
from .experiment import Best as Best
from .experiment import Experiment as Experiment
from .experiment import load_experiment as load_experiment
from .experiment_names import list_experiments as list_experiments
from .reporting import report as report
from .schedulers import Decision as Decision
from .schedulers import FIFOScheduler as FIFOScheduler
from .schedulers import RandomSearch as RandomSearch
from .schedulers import Scheduler as Scheduler
from .searchers import Ask as Ask
from .searchers import RandomSearcher as RandomSearcher
from .searchers import Searcher as Searcher
from .spaces import Space as Space
from .spaces import choice as choice
from .spaces import constant as constant
from .spaces import finrange as finrange
from .spaces import logfinrange as logfinrange
from .spaces import logordinal as logordinal
from .spaces import lograndint as lograndint
from .spaces import loguniform as loguniform
from .spaces import ordinal as ordinal
from .spaces import parameter as parameter
from .spaces import qlograndint as qlograndint
from .spaces import qloguniform as qloguniform
from .spaces import qrandint as qrandint
from .spaces import quniform as quniform
from .spaces import randint as randint
from .spaces import reverseloguniform as reverseloguniform
from .spaces import uniform as uniform
from .stopping import StoppingCriterion as StoppingCriterion
from .tuner import Tuner as Tuner

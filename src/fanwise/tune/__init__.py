"""Asynchronous hyperparameter search.

    space, searchers              search spaces, and the choice of configurations
    schedulers, stopping          decisions about trials, and limits of a search
    core                          the state machine of a search
    objective                     report() and other functions for use inside an objective function
    search_settings               validated settings of a search
    tuner, ask_tell               classes and functions that run a search
    runtime, display, callbacks   worker processes, terminal output and user callbacks of a running search
    record, experiment            the event log on disk, and the results read from it
    simulate                      searches on a virtual clock

Names load on first use (PEP 562), so that a trial that only reports loads neither searchers nor schedulers.
"""

from typing import TYPE_CHECKING

from ..base.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..base.home import list_experiments as list_experiments
    from .ask_tell import AskedTrial as AskedTrial
    from .ask_tell import OpenSearch as OpenSearch
    from .ask_tell import open_search as open_search
    from .experiment import Experiment as Experiment
    from .experiment import load_experiment as load_experiment
    from .experiment import replay_experiment as replay_experiment
    from .objective import from_iter as from_iter
    from .objective import load_checkpoint as load_checkpoint
    from .objective import report as report
    from .objective import trial_folder as trial_folder
    from .objective import trial_id as trial_id
    from .runtime.background import RunningSearch as RunningSearch
    from .schedulers import ASHA as ASHA
    from .schedulers import BOHB as BOHB
    from .schedulers import FIFO as FIFO
    from .schedulers import MOASHA as MOASHA
    from .schedulers import PBT as PBT
    from .schedulers import Clone as Clone
    from .schedulers import Decision as Decision
    from .schedulers import Done as Done
    from .schedulers import Hyperband as Hyperband
    from .schedulers import MedianStopping as MedianStopping
    from .schedulers import New as New
    from .schedulers import NextTrial as NextTrial
    from .schedulers import Resume as Resume
    from .schedulers import Scheduler as Scheduler
    from .schedulers import Status as Status
    from .schedulers import Stop as Stop
    from .schedulers import SuccessiveHalving as SuccessiveHalving
    from .schedulers import Wait as Wait
    from .searchers import ForestSearcher as ForestSearcher
    from .searchers import GPSearcher as GPSearcher
    from .searchers import GridSearcher as GridSearcher
    from .searchers import Objective as Objective
    from .searchers import Observation as Observation
    from .searchers import OptunaSearcher as OptunaSearcher
    from .searchers import RandomSearcher as RandomSearcher
    from .searchers import Searcher as Searcher
    from .searchers import SobolSearcher as SobolSearcher
    from .searchers import SuggestContext as SuggestContext
    from .searchers import TPESearcher as TPESearcher
    from .space import Space as Space
    from .space import choice as choice
    from .space import constant as constant
    from .space import finrange as finrange
    from .space import logfinrange as logfinrange
    from .space import logordinal as logordinal
    from .space import lograndint as lograndint
    from .space import loguniform as loguniform
    from .space import ordinal as ordinal
    from .space import parameter as parameter
    from .space import qlograndint as qlograndint
    from .space import qloguniform as qloguniform
    from .space import qrandint as qrandint
    from .space import quniform as quniform
    from .space import randint as randint
    from .space import reverseloguniform as reverseloguniform
    from .space import uniform as uniform
    from .stopping import StoppingCriterion as StoppingCriterion
    from .tuner import Tuner as Tuner
    from .tuner import search as search
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

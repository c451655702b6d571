"""Asynchronous hyperparameter search.

spaces/, chance, searchers, schedulers, stopping, tuning (quiet)  what to try, what goes on, when to end
reporting                                                 what objectives call
tuner, search, screen                                     a search at work, and what it shows
record, experiment                                        what happened, kept and read
"""

from ..base.errors import CheckpointError as CheckpointError
from ..base.errors import SearchInterrupted as SearchInterrupted
from ..base.errors import TrialStopped as TrialStopped
from .asking import AskedTrial as AskedTrial
from .asking import OpenSearch as OpenSearch
from .asking import open_search as open_search
from .background import RunningSearch as RunningSearch
from .callbacks import MLflowCallback as MLflowCallback
from .callbacks import SearchEnded as SearchEnded
from .callbacks import SearchStarted as SearchStarted
from .callbacks import TensorBoardCallback as TensorBoardCallback
from .callbacks import TrialEnded as TrialEnded
from .callbacks import TrialReported as TrialReported
from .callbacks import TrialStarted as TrialStarted
from .callbacks import WandbCallback as WandbCallback
from .decisions.replay import Difference as Difference
from .decisions.replay import Replayed as Replayed
from .experiment import Best as Best
from .experiment import Experiment as Experiment
from .experiment import load_experiment as load_experiment
from .one_call import search as search
from .record.names import list_experiments as list_experiments
from .replaying import replay_experiment as replay_experiment
from .schedulers import ASHA as ASHA
from .schedulers import MOASHA as MOASHA
from .schedulers import Clone as Clone
from .schedulers import Decision as Decision
from .schedulers import Done as Done
from .schedulers import FIFOScheduler as FIFOScheduler
from .schedulers import GridSearch as GridSearch
from .schedulers import Hyperband as Hyperband
from .schedulers import LocalSearch as LocalSearch
from .schedulers import MedianStopping as MedianStopping
from .schedulers import MedianStoppingRule as MedianStoppingRule
from .schedulers import New as New
from .schedulers import NextTrial as NextTrial
from .schedulers import PopulationBasedTraining as PopulationBasedTraining
from .schedulers import RandomSearch as RandomSearch
from .schedulers import RegularizedEvolution as RegularizedEvolution
from .schedulers import Resume as Resume
from .schedulers import Scheduler as Scheduler
from .schedulers import SobolSearch as SobolSearch
from .schedulers import Status as Status
from .schedulers import Stop as Stop
from .schedulers import SuccessiveHalving as SuccessiveHalving
from .schedulers import Wait as Wait
from .searchers import Ask as Ask
from .searchers import EvolutionSearcher as EvolutionSearcher
from .searchers import GridSearcher as GridSearcher
from .searchers import LocalSearcher as LocalSearcher
from .searchers import Objective as Objective
from .searchers import Observation as Observation
from .searchers import RandomSearcher as RandomSearcher
from .searchers import Searcher as Searcher
from .searchers import SobolSearcher as SobolSearcher
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
from .trial import from_iter as from_iter
from .trial import load_checkpoint as load_checkpoint
from .trial import report as report
from .trial import trial_config as trial_config
from .trial import trial_folder as trial_folder
from .trial import trial_id as trial_id
from .tuner import Tuner as Tuner

"""Searchers of ours as samplers of Optuna. The other way round it is `searchers/optuna_searcher.py`.

sampler     what users call, without Optuna loaded
with_optuna the sampler: what Optuna asks, and how its trials and distributions are read
following   a searcher that follows the trials of a study; knows nothing of Optuna
"""

from .sampler import optuna_sampler as optuna_sampler

"""`syne_tune.experiments`."""

from ..experiment import load_experiment as load_experiment
from .missing import refuses_names

__getattr__ = refuses_names(__name__)

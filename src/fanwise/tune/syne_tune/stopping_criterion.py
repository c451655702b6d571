"""`syne_tune.stopping_criterion`."""

from ..stopping import StoppingCriterion as StoppingCriterion
from .missing import refuses_names

__getattr__ = refuses_names(__name__)

"""Search spaces: which values hyperparameters may take, how they are drawn, checked and kept.

domains   what one hyperparameter may be
space     names for domains and constants: configurations are drawn, completed and checked here
"""

from .domains import Domain as Domain
from .domains import choice as choice
from .domains import finrange as finrange
from .domains import lograndint as lograndint
from .domains import loguniform as loguniform
from .domains import randint as randint
from .domains import uniform as uniform
from .space import Constant as Constant
from .space import Space as Space
from .space import constant as constant

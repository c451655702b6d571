"""Search spaces: hyperparameters with their domains, conditions and priors."""

from .domains import Domain as Domain
from .domains import choice as choice
from .domains import finrange as finrange
from .domains import logfinrange as logfinrange
from .domains import logordinal as logordinal
from .domains import lograndint as lograndint
from .domains import loguniform as loguniform
from .domains import ordinal as ordinal
from .domains import qlograndint as qlograndint
from .domains import qloguniform as qloguniform
from .domains import qrandint as qrandint
from .domains import quniform as quniform
from .domains import randint as randint
from .domains import reverseloguniform as reverseloguniform
from .domains import uniform as uniform
from .parameters import parameter as parameter
from .space import Constant as Constant
from .space import Space as Space
from .space import check_partial_config as check_partial_config
from .space import constant as constant
from .space import object_categories as object_categories
from .space import space_from_json as space_from_json
from .space import space_priors as space_priors
from .space import space_to_json as space_to_json

"""`syne_tune.config_space`."""

from ..spaces import choice as choice
from ..spaces import finrange as finrange
from ..spaces import logfinrange as logfinrange
from ..spaces import logordinal as logordinal
from ..spaces import lograndint as lograndint
from ..spaces import loguniform as loguniform
from ..spaces import ordinal as ordinal
from ..spaces import qlograndint as qlograndint
from ..spaces import qloguniform as qloguniform
from ..spaces import qrandint as qrandint
from ..spaces import quniform as quniform
from ..spaces import randint as randint
from ..spaces import reverseloguniform as reverseloguniform
from ..spaces import uniform as uniform
from .missing import refuses_names

__getattr__ = refuses_names(__name__)

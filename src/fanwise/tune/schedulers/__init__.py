"""Schedulers, which decide which trial runs next, and which trials stop or pause after a report."""

from .asha import ASHA as ASHA
from .asha import MOASHA as MOASHA
from .median import MedianStopping as MedianStopping
from .pbt import PBT as PBT
from .scheduler import FIFO as FIFO
from .scheduler import Clone as Clone
from .scheduler import Decision as Decision
from .scheduler import Done as Done
from .scheduler import New as New
from .scheduler import NextTrial as NextTrial
from .scheduler import Resume as Resume
from .scheduler import Scheduler as Scheduler
from .scheduler import Status as Status
from .scheduler import Stop as Stop
from .scheduler import Wait as Wait
from .successive_halving import BOHB as BOHB
from .successive_halving import Hyperband as Hyperband
from .successive_halving import SuccessiveHalving as SuccessiveHalving

"""Schedulers, which decide which trial runs next and which trials end early."""

from .asha import ASHA as ASHA
from .base import Clone as Clone
from .base import Decision as Decision
from .base import Done as Done
from .base import New as New
from .base import NextTrial as NextTrial
from .base import Resume as Resume
from .base import Scheduler as Scheduler
from .base import Status as Status
from .base import Stop as Stop
from .base import Wait as Wait
from .fifo import FIFO as FIFO
from .halving import BOHB as BOHB
from .halving import Hyperband as Hyperband
from .halving import SuccessiveHalving as SuccessiveHalving
from .median import MedianStopping as MedianStopping
from .moasha import MOASHA as MOASHA
from .pbt import PBT as PBT

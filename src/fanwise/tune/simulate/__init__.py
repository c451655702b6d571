"""Searches without the training: the scheduler itself, on tables of learning curves and a virtual clock.

searches    one search, or the same with several seeds
tables      what trials would report and when; readers: out of files, data frames and recorded experiments
faults      crashes, lost workers and slow ones
workers     the workers and the clock, around the state machine of every search
result      the incumbent over virtual time, counts, attempts and reports
"""

from .faults import Faults as Faults
from .readers import fcnet_final as fcnet_final
from .readers import from_experiment as from_experiment
from .readers import from_frame as from_frame
from .readers import lcbench_curves as lcbench_curves
from .result import Incumbent as Incumbent
from .result import SimulatedSearch as SimulatedSearch
from .result import Spread as Spread
from .result import incumbent_spread as incumbent_spread
from .searches import repeat as repeat
from .searches import simulate as simulate
from .tables import Curve as Curve
from .tables import CurveTable as CurveTable
from .tables import FunctionTable as FunctionTable
from .tables import Step as Step
from .tables import Table as Table

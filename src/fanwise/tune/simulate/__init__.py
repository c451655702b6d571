"""Simulation of searches with real schedulers and searchers, tables of learning curves, and a virtual clock."""

from .simulation import SimulatedSearch as SimulatedSearch
from .simulation import simulate as simulate
from .tables import Curve as Curve
from .tables import CurveTable as CurveTable
from .tables import FunctionTable as FunctionTable
from .tables import Step as Step
from .tables import Table as Table
from .tables import from_frame as from_frame
from .workers import Faults as Faults
from .workers import Incumbent as Incumbent

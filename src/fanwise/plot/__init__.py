"""Figures of searches, drawn from plain data.

    from fanwise.plot import SearchData, incumbent, learning_curves, save_figure, workers

    data                SearchData, and values computed from it: incumbents, learning curves
    worker_intervals    activity of the workers, and the utilization
    rung_levels         which trials continued at each rung, and the figure `rungs`
    incumbents, curves, timeline, fronts, importances    the other figures
    canvas, scales      figures without pyplot; limits, units and labels of axes

Figures are matplotlib `Figure` objects that pyplot does not know; a notebook shows the last one of a cell. They can be
drawn at any time, also before the first report. Importing this package does not import matplotlib; drawing does.
"""

from .canvas import save_figure as save_figure
from .curves import learning_curves as learning_curves
from .data import ReportPoint as ReportPoint
from .data import SearchData as SearchData
from .data import Span as Span
from .fronts import FrontData as FrontData
from .fronts import pareto_front as pareto_front
from .importances import importance as importance
from .incumbents import incumbent as incumbent
from .rung_levels import rungs as rungs
from .timeline import workers as workers

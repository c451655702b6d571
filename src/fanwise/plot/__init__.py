"""Figures of searches, drawn from plain data.

    from fanwise.plot import incumbent, save_figure, workers

    data           SearchData and everything that is computed from it, also for the board and the HTML report
    canvas         figures without pyplot; limits, units and labels of axes
    incumbents, curves, timeline, rungs, fronts, importances    one figure each

Figures are matplotlib `Figure` objects that pyplot does not know; a notebook shows the last one of a cell. They can be
drawn at any time, also before the first report. Importing this package does not import matplotlib; drawing does.
"""

from .canvas import save_figure as save_figure
from .curves import learning_curves as learning_curves
from .data import SearchData as SearchData
from .incumbents import incumbent as incumbent
from .rungs import rungs as rungs
from .timeline import workers as workers

"""Figures of searches, from plain data.

    from fanwise.plot import SearchData, incumbent, learning_curves, save_figure, workers

The data classes and what is computed from them are in `data`, `rung_figure` and `crowds`; the figures over time in
`figures`, the others in `ladder`, `fronts` and `importances`. Importing this package does not load matplotlib; drawing
does. It knows nothing of tuners and records: they make a `SearchData`.
"""

from .canvas import save_figure as save_figure
from .data import ReportPoint as ReportPoint
from .data import SearchData as SearchData
from .data import Span as Span
from .figures import incumbent as incumbent
from .figures import learning_curves as learning_curves
from .figures import workers as workers
from .fronts import FrontData as FrontData
from .fronts import pareto_front as pareto_front
from .importances import importance as importance
from .ladder import rungs as rungs

"""Figures of searches, from plain data.

    from fanwise.plot import SearchData, incumbent, learning_curves, save_figure, workers

The data classes and what is computed of them are in `data`; the three figures in `figures`. Importing this package
does not load matplotlib; drawing does. It knows nothing of tuners and records: they make a `SearchData`.
"""

from .canvas import save_figure as save_figure
from .data import ReportPoint as ReportPoint
from .data import SearchData as SearchData
from .data import Span as Span
from .figures import incumbent as incumbent
from .figures import learning_curves as learning_curves
from .figures import workers as workers

"""Figures of searches, from plain data.

    from fanwise.plot import SearchData, incumbent, learning_curves, save_figure, workers

The data classes and what is computed of them are in `data`, `halving` and `crowds`; the figures over time in `figures`
and `hypervolumes`, the others in `ladder`, `landscapes`, `fronts`, `importances` and `dependences`. Importing this
package does not load matplotlib; drawing does. It knows nothing of tuners and records: they make a `SearchData`.
"""

from .canvas import save_figure as save_figure
from .data import Hyperparameter as Hyperparameter
from .data import ReportPoint as ReportPoint
from .data import SearchData as SearchData
from .data import Span as Span
from .dependences import DependenceData as DependenceData
from .dependences import partial_dependence as partial_dependence
from .figures import incumbent as incumbent
from .figures import learning_curves as learning_curves
from .figures import workers as workers
from .fronts import FrontData as FrontData
from .fronts import pareto_front as pareto_front
from .hypervolumes import VolumeData as VolumeData
from .hypervolumes import hypervolume as hypervolume
from .importances import importance as importance
from .ladder import rungs as rungs
from .landscapes import hyperparameters as hyperparameters
from .landscapes import parallel_coordinates as parallel_coordinates

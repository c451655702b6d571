"""`syne_tune.backend`."""

from ..missing import refuses_names
from .python_backend import PythonBackend as PythonBackend

__getattr__ = refuses_names(__name__)

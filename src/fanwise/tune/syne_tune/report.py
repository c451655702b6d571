"""`syne_tune.report`."""

from typing import Any

from ..trial import report
from .missing import refuses_names


class Reporter:
    """Called with the metrics of a trial after each epoch, from inside the objective.

    >>> report = Reporter()
    >>> report(epoch=1, validation_error=0.25)
    """

    def __call__(self, **metrics: Any) -> None:  # Any: scalars of any library
        """As `fanwise.tune.report`, with its errors; blocks until the tuner has decided about the trial."""
        report(**metrics)


__getattr__ = refuses_names(__name__)

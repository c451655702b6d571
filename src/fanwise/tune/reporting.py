"""Calls the objective in a worker of a tuner, and reports the number or dict that it returns.

`report` is implemented in `pool/reporting.py`, because every job can report.
"""

import math
import numbers
import reprlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..pool.reporting import forget_reports, has_reported, is_array
from ..pool.reporting import is_plain as is_plain
from ..pool.reporting import plain_metrics as plain_metrics
from .objective import check_place
from .objective import report as report
from .values import with_objects

_NO_OBJECTS: Mapping[str, Mapping[Any, Any]] = MappingProxyType({})


def run_objective(
    objective: Callable[..., Any],  # Any: the user's objective
    metric: str,
    objects: Mapping[str, Mapping[Any, Any]] = _NO_OBJECTS,  # Any: categories of the user's
    /,
    **config: Any,
) -> None:
    """Call the objective in a worker. A number or dict that it returns becomes its last report.

    Any other value is ignored if the objective has reported, for example a model that it has trained.

    Args:
        objective: the user's objective.
        metric: name of a number that the objective returns.
        objects: the objects of the space (`Space.objects`), which replace their names in the configuration.
        config: the configuration.

    Raises:
        TypeError: the objective has not reported and returned a value that is not a metric.
        CheckpointError: this machine cannot access the checkpoint root.
    """
    forget_reports()
    check_place()
    value = objective(**with_objects(config, objects))
    if value is None:
        return
    if isinstance(value, Mapping):
        report(**value)
    elif isinstance(value, numbers.Real) or (is_array(value) and math.prod(value.shape) == 1):
        report(**{metric: value})
    elif not has_reported():
        raise TypeError(
            f"the objective reported nothing and returned {_described(value)}, which is not a metric.\n"
            f"Return a number or a dict of numbers and notes, e.g. {{{metric!r}: 0.12}}, or call report() before."
        )


def _described(value: Any) -> str:  # Any: return value of an objective
    """Return the type and, on one line, the beginning of the value."""
    if is_array(value):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    return f"{' '.join(reprlib.repr(value).split())}, a {type(value).__name__}"

"""`report`: what an objective calls to tell how well it is doing, from anywhere inside it.

    report(epoch=3, validation_error=error)  --> plain numbers --> the current job --> the tuner --> go on, or TrialStopped

Values may be Python, NumPy or torch scalars, or arrays and tensors of one element, on any device; nothing else is a
metric. The call blocks until the tuner has written the report down and decided, usually well under a millisecond.

Outside a tuner's worker - an objective run by hand, or in a test of one's own - the values are checked and nothing is
sent. `run_objective` is what a worker really calls: a number or dict that the objective returns is its last report.
"""

import logging
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from ..base.errors import TrialStopped
from ..pool.current import STOP, current, in_job

_log = logging.getLogger(__name__)

# The result table has columns of these names.
_RESERVED_PREFIXES = ("st_", "config_")
_RESERVED = frozenset(("trial_id",))


def report(**metrics: Any) -> None:  # Any: scalars of any library
    """Report values of this trial and wait for the tuner's decision.

    Args:
        metrics: names and numbers, e.g. `report(epoch=3, validation_error=0.12)`. The scheduler's metric must be there.

    Raises:
        TrialStopped: the trial is to end. A BaseException: clean up if need be, and let it pass.
        TypeError: a value is not a number. ValueError: nothing reported, a reserved name, or the metric is missing.
        ClosedError: called in a fork of the worker, such as a DataLoader's worker.

    >>> report(epoch=1, validation_error=0.25)
    """
    values = plain_metrics(metrics)
    if not in_job():
        _log.info("report outside a tuner: %s", values)
        return
    if current().report(values) == STOP:
        raise TrialStopped("the tuner stopped this trial")


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float | int]:  # Any: scalars of any library
    """The metrics as Python numbers. Raises TypeError and ValueError as `report` does."""
    if not metrics:
        raise ValueError("report() was called without values.\n  right:  report(validation_error=0.12)")
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: Any) -> float | int:  # Any: a scalar of any library
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise ValueError(
            f"report({name}=...): names that begin with st_ or config_, and trial_id, are columns of the result "
            f"table. Report it under another name."
        )
    if type(value) is float or type(value) is int:
        return value
    number = value
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) is not None and hasattr(value, "item"):
        number = _only_element(name, value)
    if isinstance(number, numbers.Integral):
        return int(number)
    if isinstance(number, numbers.Real):
        return float(number)
    raise TypeError(
        f"report({name}={value!r}): a metric must be a number, got {type(value).__name__}.\n"
        f"Report numbers only; print everything else, the output of each trial is kept."
    )


def _only_element(name: str, value: Any) -> Any:  # Any: an array of any library
    size = math.prod(value.shape)
    if size != 1:
        raise TypeError(
            f"report({name}=...): a metric must be one number, got a {type(value).__name__} of shape "
            f"{tuple(value.shape)}. Reduce it first, e.g. with .mean()."
        )
    return value.item()


def run_objective(objective: Callable[..., Any], metric: str, /, **config: Any) -> None:  # Any: the user's objective
    """Call the objective in a worker. A number or dict that it returns becomes its last report."""
    value = objective(**config)
    if value is None:
        return
    if isinstance(value, Mapping):
        report(**value)
    elif isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():
        report(**{metric: value})

"""The function `report`: a job sends metrics to its tuner and gets its decision.

Values are Python, NumPy or torch scalars, arrays or tensors with one element on any device, or strings of up to 1,000
characters. `fanwise.tune.report` and the `report` of a data-parallel run are this function. Outside of a job, for
example in a unit test of an objective, the values are checked and nothing is sent.
"""

import logging
import math
import numbers
import reprlib
from collections.abc import Mapping
from typing import Any, TypeGuard

from ..base.errors import TrialStopped
from .current import Reported, current, in_job

_log = logging.getLogger(__name__)

# Names of columns in the result table.
_RESERVED_PREFIXES = ("st_", "config_")
_RESERVED = frozenset(("trial_id",))

# Larger integers become floats, because tables and plots use 64 bits.
_MAX_INT = (1 << 63) - 1

# Longer strings are cut.
_MAX_NOTE_CHARS = 1000

_reported = False


def forget_reports() -> None:
    """Reset `has_reported` at the start of a function."""
    global _reported
    _reported = False


def has_reported() -> bool:
    """Return whether the function of this process has reported anything."""
    return _reported


def report(**metrics: Any) -> None:
    """Report values of this trial. Blocks until the tuner has recorded them and decided, usually less than 1 ms.

    Args:
        metrics: names and numbers, e.g. `report(epoch=3, validation_error=0.12)`. Every report must contain the
            scheduler's metric. Strings are kept as notes of the trial, and cut after 1,000 characters.

    Raises:
        TrialStopped: the trial should end. A BaseException: do not catch it, except to clean up and raise it again.
        TypeError: a value is neither a number nor a string.
        ValueError: no values, a reserved name, or the metric is missing or not a number.
        ClosedError: called in a process forked from the worker, such as a DataLoader's worker.

    >>> report(epoch=1, validation_error=0.25)
    """
    send_report(metrics)


def send_report(metrics: Mapping[str, Any], *, checkpoint: str | None = None) -> None:
    """Report values like `report`. `checkpoint`: name of the checkpoint that was saved with them."""
    values = plain_metrics(metrics)
    if _has_tuner(values) and current().report(values, checkpoint=checkpoint).ends:
        raise TrialStopped("the tuner stopped this trial")


def begin_report(values: Mapping[str, float | int | str]) -> Reported | None:
    """Report values from `plain_metrics` without waiting. Return None if there is no tuner."""
    return current().begin_report(dict(values)) if _has_tuner(values) else None


def _has_tuner(values: Mapping[str, float | int | str]) -> bool:
    global _reported
    _reported = True
    if not in_job():
        _log.info("report outside a tuner: %s", values)
    return in_job()


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float | int | str]:
    """Return the metrics as Python numbers and strings. Raises TypeError and ValueError like `report`."""
    if not metrics:
        raise ValueError("report() was called without values.\n  right:  report(validation_error=0.12)")
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: Any) -> float | int | str:
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise ValueError(
            f"report({name}=...): names that begin with st_ or config_, and trial_id, are columns of the result "
            f"table. Use another name."
        )
    if type(value) is float or is_plain(value):
        return value
    number = _only_element(name, value) if is_array(value) else value
    if isinstance(number, str):
        note = str.__str__(number)
        return note if len(note) <= _MAX_NOTE_CHARS else f"{note[: _MAX_NOTE_CHARS - 3]}..."
    if isinstance(number, numbers.Integral) and abs(int(number)) <= _MAX_INT:
        return int(number)
    if isinstance(number, numbers.Real):
        try:
            return float(number)
        except OverflowError:
            raise ValueError(f"report({name}=...): the number is too large for a float") from None
    raise TypeError(
        f"report({name}={reprlib.repr(value)}): a value must be a number or a string, got {type(value).__name__}.\n"
        f"Report numbers, and strings as notes; print everything else, the output of each trial is kept."
    )


def is_plain(value: object) -> TypeGuard[float | int | str]:
    """Return True for values that need no conversion: floats, ints of up to 64 bits, and short strings."""
    kind = type(value)
    if kind is str:
        return len(value) <= _MAX_NOTE_CHARS  # type: ignore[arg-type]
    return kind is float or (kind is int and -_MAX_INT <= value <= _MAX_INT)  # type: ignore[operator]


def is_array(value: object) -> bool:
    """Return whether a value is an array or tensor of any library, or a scalar type of NumPy."""
    has_elements = hasattr(value, "item") or hasattr(value, "numpy")  # TensorFlow's tensors have no item
    return not isinstance(value, numbers.Real) and has_elements and getattr(value, "shape", None) is not None


def _only_element(name: str, value: Any) -> Any:
    if math.prod(value.shape) != 1:
        raise TypeError(
            f"report({name}=...): a metric must be one number, got a {type(value).__name__} of shape "
            f"{tuple(value.shape)}. Reduce it first, e.g. with .mean()."
        )
    element = value if hasattr(value, "item") else value.numpy()  # bytes, if it is a string of TensorFlow
    return element.item() if hasattr(element, "item") else element

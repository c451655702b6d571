"""`report`: what a job calls to tell how well it is doing, from anywhere inside it.

    report(epoch=3, validation_error=error) --> plain values --> the current job --> its tuner --> on, or TrialStopped

Values may be Python, NumPy or torch scalars, or arrays and tensors of one element, on any device. Text is kept as a
note of up to 1,000 characters. The call blocks until the submitter, a tuner, has written the report down and decided,
usually well under a millisecond. `fanwise.tune.report` and the `report` of a data-parallel run are this function.

Outside a job - an objective run by hand, or in a test of one's own - the values are checked and nothing is sent.
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

# The result table has columns of these names.
_RESERVED_PREFIXES = ("st_", "config_")
_RESERVED = frozenset(("trial_id",))

# Whole numbers up to here stay whole; tables and plots hold no larger ones.
_LARGEST_INT = (1 << 63) - 1

# Longer notes are cut.
_LONGEST_NOTE = 1000


# Whether the function that this process runs has reported anything.
_reported = False


def forget_reports() -> None:
    """A new function begins: it has not reported anything."""
    global _reported
    _reported = False


def has_reported() -> bool:
    """Whether anything was reported since `forget_reports`."""
    return _reported


def report(**metrics: Any) -> None:  # Any: scalars of any library
    """Report values of this trial and wait for the tuner's decision.

    Args:
        metrics: names and numbers, e.g. `report(epoch=3, validation_error=0.12)`. The scheduler's metric must be in
            every report, also in later ones: a report without it raises here, and fails the trial if it is let pass.
            A string is kept as a note of the trial; one longer than 1,000 characters is cut, and then ends with "...".

    Raises:
        TrialStopped: the trial is to end. A BaseException: clean up if need be, and let it pass.
        TypeError: a value is neither a number nor a string.
        ValueError: nothing reported, a reserved name, or the metric is missing or not a number.
        ClosedError: called in a fork of the worker, such as a DataLoader's worker.

    >>> report(epoch=1, validation_error=0.25)
    """
    send_report(metrics)


def send_report(metrics: Mapping[str, Any], *, checkpoint: str | None = None) -> None:  # Any: scalars of any library
    """As `report`; `checkpoint`: the name of what was saved with it."""
    global _reported
    values = plain_metrics(metrics)
    _reported = True
    if not in_job():
        _log.info("report outside a tuner: %s", values)
        return
    if current().report(values, checkpoint=checkpoint).ends:
        raise TrialStopped("the tuner stopped this trial")


def begin_report(values: Mapping[str, float | int | str]) -> Reported | None:
    """As `report`, with values that `plain_metrics` made: where the reply will be; None if nobody has to decide."""
    global _reported
    _reported = True
    if in_job():
        return current().begin_report(dict(values))
    _log.info("report outside a tuner: %s", values)
    return None


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float | int | str]:  # Any: scalars of any library
    """Return the metrics as Python numbers, and notes as text. Raises TypeError and ValueError as `report` does."""
    if not metrics:
        raise ValueError("report() was called without values.\n  right:  report(validation_error=0.12)")
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: Any) -> float | int | str:  # Any: a scalar of any library
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise ValueError(
            f"report({name}=...): names that begin with st_ or config_, and trial_id, are columns of the result "
            f"table. Report it under another name."
        )
    if type(value) is float or is_plain(value):
        return value
    number = _only_element(name, value) if is_array(value) else value
    if isinstance(number, str):
        note = str.__str__(number)
        return note if len(note) <= _LONGEST_NOTE else f"{note[: _LONGEST_NOTE - 3]}..."
    if isinstance(number, numbers.Integral) and abs(int(number)) <= _LARGEST_INT:
        return int(number)
    if isinstance(number, numbers.Real):
        return _as_float(name, number)
    raise TypeError(
        f"report({name}={reprlib.repr(value)}): a value must be a number or a string, got {type(value).__name__}.\n"
        f"Report numbers, and strings as notes; print everything else, the output of each trial is kept."
    )


def is_plain(value: object) -> TypeGuard[float | int | str]:
    """Return True for values that the tuner takes: floats, ints of up to 64 bits, and short notes."""
    kind = type(value)
    if kind is str:
        return len(value) <= _LONGEST_NOTE  # type: ignore[arg-type]  # a str
    return kind is float or (kind is int and -_LARGEST_INT <= value <= _LARGEST_INT)  # type: ignore[operator]  # an int


def _as_float(name: str, number: numbers.Real) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"report({name}=...): the number is too large for a float") from None


def is_array(value: object) -> bool:
    """Arrays and tensors of any library, of any number of elements; also numpy's scalars that are not Python's."""
    has_elements = hasattr(value, "item") or hasattr(value, "numpy")  # TensorFlow's have no item
    return not isinstance(value, numbers.Real) and has_elements and getattr(value, "shape", None) is not None


def _only_element(name: str, value: Any) -> Any:  # Any: an array of any library
    size = math.prod(value.shape)
    if size != 1:
        raise TypeError(
            f"report({name}=...): a metric must be one number, got a {type(value).__name__} of shape "
            f"{tuple(value.shape)}. Reduce it first, e.g. with .mean()."
        )
    found = value if hasattr(value, "item") else value.numpy()  # bytes, of a text of TensorFlow
    return found.item() if hasattr(found, "item") else found

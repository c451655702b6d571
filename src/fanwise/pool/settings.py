"""What users may set of pools and jobs, checked where it is given: the wrong value is told with its name.

A number that is a bool, NaN or negative is a mistake somewhere else, most often a comparison or a division that went
wrong; taken as it is it would show up far away, in another process. Knows only values.
"""

import math
import numbers


def require_int(name: str, value: object, *, least: int | None = None) -> None:
    """Return if `value` is an int, not a bool, and at least `least`.

    Raises:
        TypeError, ValueError: it is not; the message names it.

    >>> require_int("cpus", 0, least=1)
    Traceback (most recent call last):
    ValueError: cpus must be at least 1, got 0
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_int_or_none(name: str, value: object, *, least: int | None = None) -> None:
    """As `require_int`, and None is right too."""
    if value is not None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int or None, got {value!r} ({type(value).__name__})")
        require_int(name, value, least=least)


def require_bool(name: str, value: object) -> None:
    """Return if `value` is True or False; else TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} ({type(value).__name__})")


def require_callable_or_none(name: str, value: object) -> None:
    """Return if `value` is None or can be called; else TypeError."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, got {value!r} ({type(value).__name__})")


def grace_of(grace_s: object) -> float:
    """The seconds that a stopped job gets, finite and not negative.

    >>> grace_of(float("nan"))
    Traceback (most recent call last):
    ValueError: grace_s must be a number of seconds of at least 0, got nan
    """
    seconds = _number("grace_s", grace_s, "a number of seconds")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"grace_s must be a number of seconds of at least 0, got {grace_s!r}")
    return seconds


def limit_of(within_s: object) -> float | None:
    """How long to wait, in seconds; None: for ever, also for infinity. Time that has run out already is 0.

    >>> limit_of(None), limit_of(3), limit_of(float("inf")), limit_of(-0.001)
    (None, 3.0, None, 0.0)
    """
    if within_s is None:
        return None
    seconds = _number("within_s", within_s, "a number of seconds or None")
    if math.isnan(seconds):
        raise ValueError(f"within_s must be a number of seconds or None, got {within_s!r}")
    return None if seconds == math.inf else max(0.0, seconds)


def _number(name: str, value: object, what: str) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be {what}, got {value!r} ({type(value).__name__})")
    return float(value)

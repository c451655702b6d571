"""Limits, units and labels of axes, as pure functions.

The value axis is robust: one diverged trial with a loss of 1e6 must not flatten all other curves. It always contains
the best value. At its other end outliers may be cut off; figures show how many.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..base.text import printable_line

MAX_NAME_LENGTH = 60
_LOG_RATIO = 100.0  # values over more than two decades get a logarithmic axis
_TYPICAL_QUANTILE = 0.9
_OUTLIER_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class ValueScale:
    """Limits of the value axis with margins. `n_beyond`: number of finite values outside of the limits."""

    low: float
    high: float
    log: bool
    n_beyond: int

    def position(self, value: float) -> float:
        """Return the position on the axis: 0 at the bottom, 1 at the top, -1 if a logarithmic axis lacks the value."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else -1.0


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time for axes, with its length in seconds."""

    name: str
    seconds: float


def value_scale(values: Iterable[float], mode: str, typical: Iterable[float] | None = None) -> ValueScale:
    """Return limits that contain the best value and all values but outliers.

    Outliers exceed the 0.9 quantile of the typical values by more than ten times the distance from it to the best
    value. Values that are not finite are ignored. Without any value, the limits are 0 and 1.

    Args:
        values: all values that are drawn.
        mode: "min" or "max": which end of the axis is good.
        typical: values that define outliers, by default all.
    """
    sign = 1.0 if mode == "min" else -1.0
    losses = sorted(sign * value for value in values if math.isfinite(value))
    if not losses:
        return ValueScale(0.0, 1.0, log=False, n_beyond=0)
    typical_losses = losses if typical is None else sorted(sign * value for value in typical if math.isfinite(value))
    low, high = sorted((sign * losses[0], sign * _last_within_reach(losses, typical_losses or losses)))
    is_log = low > 0 and high / low > _LOG_RATIO
    if is_log:
        margin = (high / low) ** 0.04
        low, high = low / margin, high * margin
    else:
        margin = 0.05 * (high - low) or 0.1 * abs(low) or 0.5  # equal limits cannot be drawn
        low, high = low - margin, high + margin
    n_beyond = sum(not low <= sign * loss <= high for loss in losses)  # an outlier may lie within the margin
    return ValueScale(low, high, log=is_log, n_beyond=n_beyond)


def _last_within_reach(losses: Sequence[float], typical_losses: Sequence[float]) -> float:
    """Return the largest of the sorted losses that is not an outlier."""
    best, typical = losses[0], typical_losses[int(_TYPICAL_QUANTILE * (len(typical_losses) - 1))]
    reach = max(typical - best, abs(best))
    if reach == 0.0:
        return losses[-1]
    return max(loss for loss in losses if loss <= typical + _OUTLIER_FACTOR * reach)


def sample_steps(times_s: Sequence[float], values: Sequence[float], n_samples: int = 200) -> list[float]:
    """Return a step function at evenly spaced times, so that each value counts in proportion to its duration."""
    if len(times_s) < 2:
        return list(values)
    span_s = times_s[-1] - times_s[0]
    samples_s = [times_s[0] + span_s * i / n_samples for i in range(n_samples)]
    return [values[bisect_right(times_s, t_s) - 1] for t_s in samples_s] + [values[-1]]


def time_unit(last_s: float) -> TimeUnit:
    """Return seconds up to 20 minutes, minutes up to 5 hours, and hours beyond."""
    if last_s <= 20 * 60:
        return TimeUnit("s", 1.0)
    if last_s <= 5 * 3600:
        return TimeUnit("min", 60.0)
    return TimeUnit("h", 3600.0)


def plain(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    r"""Return a user's name as text that matplotlib shows literally.

    Dollar signs are escaped because they start formulas. Unprintable characters become escape sequences. Long names are
    shortened in the middle.

    >>> plain("$lr$")
    '\\$lr\\$'
    """
    shown = printable_line(text)
    if len(shown) > max_length:
        half = (max_length - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    return shown.replace("$", r"\$")


def number(value: float) -> str:
    """Return a value with four significant digits."""
    return f"{value:.4g}"


def thin(n_points: int, max_points: int) -> list[int]:
    """Return at most `max_points` evenly spread indices of `n_points` points, with the first and the last."""
    if n_points <= max_points:
        return list(range(n_points))
    return [round(i * (n_points - 1) / (max_points - 1)) for i in range(max_points)]

"""How values, times and names of users become axes: limits, units and labels, as pure functions.

The range of the values is robust: one diverged trial with a loss of 1e6 must not flatten all other curves. The good
end of the range always holds the best value; only the bad end may be cut, and the figures say how many points lie
beyond it.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..base.text import printable_line

MAX_NAME_LENGTH = 60
_LOG_RATIO = 100.0  # values over more than two decades are drawn on a logarithmic axis
_QUANTILE = 0.9
_REACH = 10.0


@dataclass(frozen=True, slots=True)
class ValueScale:
    """Limits of the value axis, margins included; `n_beyond` counts the finite values outside of them."""

    low: float
    high: float
    log: bool
    n_beyond: int

    def share(self, value: float) -> float:
        """Where the value is drawn: 0 at the bottom of the axis, 1 at its top; -1 for what a logarithm cannot take."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else -1.0


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """Divide seconds by `seconds` to get times in `name`."""

    name: str
    seconds: float


def value_scale(values: Iterable[float], mode: str, usual: Iterable[float] | None = None) -> ValueScale:
    """Limits in which nearly all values lie, and the best one for sure.

    Values are cut when they are worse than nine tenths of the usual ones by more than ten times the distance between
    those and the best. Values that are not finite are ignored; without any value the limits are 0 and 1.

    Args:
        values: all that is drawn.
        mode: "min" or "max"; tells the good end from the bad one.
        usual: the values that say what is usual, by default all.
    """
    sign = 1.0 if mode == "min" else -1.0
    costs = sorted(sign * value for value in values if math.isfinite(value))
    if not costs:
        return ValueScale(0.0, 1.0, log=False, n_beyond=0)
    usual_costs = costs if usual is None else sorted(sign * value for value in usual if math.isfinite(value))
    best, worst = costs[0], _last_within_reach(costs, usual_costs or costs)
    low, high = sorted((sign * best, sign * worst))
    is_log = low > 0 and high / low > _LOG_RATIO
    if is_log:
        margin = (high / low) ** 0.04
        low, high = low / margin, high * margin
    else:
        # Limits that are equal cannot be drawn: a single value gets some room around it.
        margin = 0.05 * (high - low) or 0.1 * abs(low) or 0.5
        low, high = low - margin, high + margin
    # Counted by the limits as they are drawn: an outlier may lie within the margin.
    n_beyond = sum(not low <= sign * cost <= high for cost in costs)
    return ValueScale(low, high, log=is_log, n_beyond=n_beyond)


def _last_within_reach(costs: Sequence[float], usual_costs: Sequence[float]) -> float:
    """The largest of the sorted costs that is not an outlier."""
    best, usual = costs[0], usual_costs[int(_QUANTILE * (len(usual_costs) - 1))]
    reach = max(usual - best, abs(best))
    if reach == 0.0:
        return costs[-1]
    return max(cost for cost in costs if cost <= usual + _REACH * reach)


def sample_steps(times_s: Sequence[float], values: Sequence[float], n_samples: int = 200) -> list[float]:
    """A step function at evenly spaced times from its first to its last, so that values weigh as long as they hold."""
    if len(times_s) < 2:
        return list(values)
    span_s = times_s[-1] - times_s[0]
    samples_s = [times_s[0] + span_s * i / n_samples for i in range(n_samples)]
    return [values[bisect_right(times_s, t_s) - 1] for t_s in samples_s] + [values[-1]]


def time_unit(last_s: float) -> TimeUnit:
    """Seconds up to 20 minutes, minutes up to 5 hours, then hours."""
    if last_s <= 20 * 60:
        return TimeUnit("s", 1.0)
    if last_s <= 5 * 3600:
        return TimeUnit("min", 60.0)
    return TimeUnit("h", 3600.0)


def plain(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    r"""A name of the user's as text that matplotlib shows as it is.

    Dollar signs are escaped (they would start a formula), characters that cannot be printed are shown as escapes, long
    names are cut in the middle.

    >>> plain("$lr$")
    '\\$lr\\$'
    """
    shown = printable_line(text)
    if len(shown) > max_length:
        half = (max_length - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    return shown.replace("$", r"\$")


def number(value: float) -> str:
    """A value for a title or label: four significant digits."""
    return f"{value:.4g}"


def thin(n_points: int, max_points: int) -> list[int]:
    """Indices of at most `max_points` of `n_points` points, evenly spread, with the first and the last."""
    if n_points <= max_points:
        return list(range(n_points))
    return [round(i * (n_points - 1) / (max_points - 1)) for i in range(max_points)]

"""Many learning curves as a few: the best ones, and what all the others were like. Quiet: no drawing.

curves --best_curves--> a few whole curves
reports --crowd_of----> median and the middle of all reports, in bins of time
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .data import Curve


@dataclass(frozen=True, slots=True)
class Crowd:
    """Median, and the tenth and ninetieth percentile, of the reports in bins of time that are not empty."""

    times_s: list[float]
    median: list[float]
    low: list[float]
    high: list[float]


def best_curves(curves: Sequence[Curve], mode: str, number: int) -> list[Curve]:
    """The curves with the best values, the best first; of equal ones the older trial."""
    sign = 1.0 if mode == "min" else -1.0
    return sorted(curves, key=lambda c: (min(sign * value for value in c.values), c.trial_id))[:number]


def crowd_of(curves: Sequence[Curve], n_bins: int) -> Crowd:
    """What all reports together were like, in `n_bins` equal bins from the first report to the last."""
    times_s = [t_s for curve in curves for t_s in curve.times_s]
    crowd = Crowd([], [], [], [])
    if not times_s:
        return crowd
    begin_s, end_s = min(times_s), max(times_s)
    width_s = (end_s - begin_s) / n_bins or 1.0
    bins: dict[int, list[float]] = {}
    for curve in curves:
        for t_s, value in zip(curve.times_s, curve.values, strict=True):
            bins.setdefault(min(int((t_s - begin_s) / width_s), n_bins - 1), []).append(value)
    for number in sorted(bins):
        values = sorted(bins[number])
        crowd.times_s.append(begin_s + (number + 0.5) * width_s)
        crowd.median.append(values[len(values) // 2])
        crowd.low.append(values[int(0.1 * (len(values) - 1))])
        crowd.high.append(values[-1 - int(0.1 * (len(values) - 1))])
    return crowd

"""Who went on at the rungs of a search that stops or pauses trials, as plain data. Quiet: no drawing.

    SearchData --rungs_of--> RungArrivals(level, arrivals), lowest first, then the ends of the longest trials

A rung is where trials were stopped or paused, read from the answers to their reports; no scheduler is asked. So it
holds for halving, ASHA, Hyperband, PBT, the median rule, and for schedulers of users.

A trial arrives at a rung with its first report at the rung's level or beyond; one that began from the checkpoint of
another trial does not arrive where that one had been. It went on if it was let continue, or was taken up again later.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from .data import ReportPoint, SearchData


@dataclass(frozen=True, slots=True)
class Arrival:
    """A trial at a rung: its report there, and whether it went on."""

    point: ReportPoint
    went_on: bool


@dataclass(frozen=True, slots=True)
class RungArrivals:
    """One level, and who came there, in order of time."""

    level: float
    arrivals: list[Arrival]

    @property
    def n_went_on(self) -> int:
        """How many went on."""
        return sum(arrival.went_on for arrival in self.arrivals)


def levels_of(search: SearchData) -> list[float]:
    """Where trials were stopped or paused, upwards; empty if none was.

    A value that is not finite ends its trial anywhere, and so does the end of the search: these make no rung.
    """
    return sorted(
        {
            point.reached
            for point in search.reports
            if point.decision != "CONTINUE" and math.isfinite(point.value) and point.t_s != search.stop_s
        }
    )


def rungs_of(search: SearchData) -> list[RungArrivals]:
    """The rungs with their arrivals; empty if no trial was stopped or paused."""
    levels = levels_of(search)
    if not levels:
        return []
    end = max(point.reached for point in search.reports)
    if end > levels[-1]:
        levels.append(end)
    found: list[list[Arrival]] = [[] for _ in levels]
    last_started_s: dict[int, float] = {}
    for span in search.spans:
        last_started_s[span.trial_id] = max(span.started_s, last_started_s.get(span.trial_id, -math.inf))
    trials: dict[int, list[ReportPoint]] = {}
    for point in sorted(search.reports, key=lambda p: (p.t_s, p.iter)):
        trials.setdefault(point.trial_id, []).append(point)
    for trial_id, points in trials.items():
        first = points[0]
        # A clone goes on where its source was: what is below its first report it has not passed itself.
        place = bisect_left(levels, first.reached) if first.iter > 1 else 0
        for i, point in enumerate(points):
            reached = bisect_right(levels, point.reached)
            if reached > place:
                taken_up = i + 1 < len(points) or last_started_s.get(trial_id, -math.inf) > point.t_s
                went_on = reached < len(levels) and (point.decision == "CONTINUE" or taken_up)
                for level in range(place, reached):  # of several levels at once all but the highest were passed
                    found[level].append(Arrival(point, went_on if level == reached - 1 else True))
                place = reached
    return [
        RungArrivals(level, sorted(arrivals, key=lambda a: (a.point.t_s, a.point.trial_id)))
        for level, arrivals in zip(levels, found, strict=True)
    ]

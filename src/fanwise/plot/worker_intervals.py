"""The activity of the workers over time, and their utilization. Nothing here draws."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .data import SearchData, Span

IntervalKind = Literal["busy", "start-up", "idle"]
_Windows = Sequence[tuple[float, float, int]]


@dataclass(frozen=True, slots=True)
class WorkerInterval:
    """The activity of a worker from `begin_s` to `end_s`. Idle intervals have neither trial nor status."""

    slot: int
    kind: IntervalKind
    begin_s: float
    end_s: float
    trial_id: int | None = None
    status: str | None = None

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """The activity of all workers. The sums count only the windows of the search, in which its tuner started trials.

    `capacity_s` is the sum of the lengths of all windows times their numbers of workers. It equals `busy_s + startup_s
    + idle_s`, unless trials ran in addition to those of the workers.
    """

    intervals: list[WorkerInterval]
    n_workers: int
    capacity_s: float
    busy_s: float
    startup_s: float
    idle_s: float

    @property
    def utilization(self) -> float | None:
        """Share of the workers' time that was spent in objectives, from 0 to 1, or None if there is no time yet."""
        return self._share(self.busy_s)

    @property
    def startup_share(self) -> float | None:
        """Share of the workers' time that was spent on starting trials, or None if there is no time yet."""
        return self._share(self.startup_s)

    @property
    def idle_share(self) -> float | None:
        """Idle share of the workers' time, or None if there is no time yet."""
        return self._share(self.idle_s)

    def utilization_in_words(self) -> str | None:
        """Return the three shares as text, or None if there is no time yet.

        >>> Timeline([], 1, 10.0, busy_s=9.5, startup_s=0.25, idle_s=0.25).utilization_in_words()
        '95.0 % (start-up 2.5 %, idle 2.5 %)'
        """
        busy, startup, idle = self.utilization, self.startup_share, self.idle_share
        if busy is None or startup is None or idle is None:
            return None
        return f"{100 * busy:.1f} % (start-up {100 * startup:.1f} %, idle {100 * idle:.1f} %)"

    def _share(self, seconds: float) -> float | None:
        return min(1.0, seconds / self.capacity_s) if self.capacity_s > 0 else None


def worker_timeline(search: SearchData) -> Timeline:
    """Return the activity of all workers.

    Start-up lasts from the start of a trial to the start of its objective. Busy is the time in the objective as the
    worker measured it. Both are also listed outside of the search's windows. Idle is the rest of the windows, which
    includes the time in which a worker is cleaned up after a trial. If spans of a worker overlap, the earlier one has
    precedence.
    """
    windows = _windows(search)
    n_slots = max([search.n_workers, *(span.slot + 1 for span in search.spans), *(window[2] for window in windows)])
    spans: dict[int, list[Span]] = {slot: [] for slot in range(n_slots)}
    for span in sorted(search.spans, key=lambda s: s.started_s):
        spans[span.slot].append(span)
    intervals: list[WorkerInterval] = []
    for slot in range(n_slots):
        occupied = _occupied(spans[slot], search.last_s)
        intervals += occupied
        for begin_s, end_s, n_workers in windows:
            if slot < n_workers:
                intervals += _idle(slot, occupied, begin_s, end_s)
    capacity_s = math.fsum(n_workers * (end_s - begin_s) for begin_s, end_s, n_workers in windows)
    busy_s, startup_s = _sum_inside("busy", intervals, windows), _sum_inside("start-up", intervals, windows)
    # Not the sum of the idle intervals: after the number of workers is lowered, trials of the last slots still run
    # while lower slots are free and must not be used.
    idle_s = max(0.0, capacity_s - busy_s - startup_s)
    return Timeline(intervals, n_slots, capacity_s, busy_s=busy_s, startup_s=startup_s, idle_s=idle_s)


def _windows(search: SearchData) -> _Windows:
    end_s = search.last_s if search.stop_s is None else search.stop_s
    if search.windows or search.first_objective_s is None or end_s <= search.first_objective_s:
        return search.windows
    return [(search.first_objective_s, end_s, search.n_workers)]


def _occupied(spans: Iterable[Span], last_s: float) -> list[WorkerInterval]:
    """Return the start-up and busy intervals of a worker. A trial that has not ended lasts until `last_s`."""
    intervals: list[WorkerInterval] = []
    occupied_until_s = -math.inf
    for span in spans:
        ended_s = last_s if span.ended_s is None else span.ended_s
        ready_s = ended_s if span.ready_s is None else min(span.ready_s, ended_s)
        if span.ready_s is not None and span.objective_s is not None:
            ended_s = ready_s + span.objective_s
        kinds: tuple[tuple[IntervalKind, float, float], ...] = (
            ("start-up", span.started_s, ready_s),
            ("busy", ready_s, ended_s),
        )
        for kind, begin_s, end_s in kinds:
            begin_s = max(begin_s, occupied_until_s)
            if end_s > begin_s:
                intervals.append(WorkerInterval(span.slot, kind, begin_s, end_s, span.trial_id, span.status))
                occupied_until_s = end_s
    return intervals


def _idle(slot: int, occupied: Iterable[WorkerInterval], begin_s: float, end_s: float) -> list[WorkerInterval]:
    """Return the gaps between the occupied intervals, from `begin_s` to `end_s`."""
    gaps = []
    for interval in [*occupied, WorkerInterval(slot, "idle", end_s, end_s)]:
        gap_end_s = min(interval.begin_s, end_s)
        if gap_end_s > begin_s:
            gaps.append(WorkerInterval(slot, "idle", begin_s, gap_end_s))
        begin_s = max(begin_s, interval.end_s)
    return gaps


def _sum_inside(kind: IntervalKind, intervals: Iterable[WorkerInterval], windows: _Windows) -> float:
    """Return the total length of the intervals of a kind inside the windows."""
    chosen = [interval for interval in intervals if interval.kind == kind]
    return math.fsum(
        max(0.0, min(interval.end_s, end_s) - max(interval.begin_s, begin_s))
        for begin_s, end_s, _ in windows
        for interval in chosen
    )

"""Reduces data to the amount that a page can show. Curves are thinned by `plot.data.thin_curve`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..plot.data import WorkerInterval


def select_trials(losses: Mapping[int, float], running: Collection[int], max_trials: int) -> list[int]:
    """Return at most `max_trials` of the trials with a loss, in ascending order.

    A quarter are the best trials, at most half are the latest running trials, and the rest is an even sample of the
    others.
    """
    if len(losses) <= max_trials:
        return sorted(losses)
    ranked = sorted(losses, key=lambda trial_id: (losses[trial_id], trial_id))
    selected = set(ranked[: max(1, max_trials // 4)])
    latest = sorted((trial_id for trial_id in running if trial_id in losses and trial_id not in selected), reverse=True)
    selected.update(latest[: min(max_trials // 2, max_trials - len(selected))])
    rest, n_free = [trial_id for trial_id in sorted(losses) if trial_id not in selected], max_trials - len(selected)
    selected.update(rest[i * len(rest) // n_free] for i in range(min(n_free, len(rest))))
    return sorted(selected)


@dataclass(frozen=True, slots=True)
class MergedInterval:
    """The activity of one worker from `begin_s` to `end_s`: one interval, or several short ones.

    `busy_s` and `startup_s` are the times in objectives and in starting trials. `trial_id` and `status` are None if
    there is no trial or more than one.
    """

    slot: int
    begin_s: float
    end_s: float
    busy_s: float
    startup_s: float
    num_trials: int
    trial_id: int | None = None
    status: str | None = None


def merge_intervals(intervals: Iterable[WorkerInterval], min_length_s: float) -> list[MergedInterval]:
    """Return the intervals of all workers by worker and time. Adjacent short ones are merged up to `min_length_s`."""
    merged: list[MergedInterval] = []
    ordered = sorted(intervals, key=lambda interval: (interval.slot, interval.begin_s, interval.end_s))
    for _, of_worker in groupby(ordered, key=lambda interval: interval.slot):
        short: list[WorkerInterval] = []
        for interval in of_worker:
            if interval.length_s >= min_length_s:
                merged += [_merge(short)] if short else []
                merged.append(_merge([interval]))
                short = []
                continue
            short.append(interval)
            if interval.end_s - short[0].begin_s >= min_length_s:
                merged.append(_merge(short))
                short = []
        merged += [_merge(short)] if short else []
    return merged


def _merge(intervals: Sequence[WorkerInterval]) -> MergedInterval:
    trial_ids = {interval.trial_id for interval in intervals if interval.trial_id is not None}
    statuses = [interval.status for interval in intervals if interval.status is not None]
    return MergedInterval(
        intervals[0].slot,
        intervals[0].begin_s,
        max(interval.end_s for interval in intervals),
        sum(interval.length_s for interval in intervals if interval.kind == "busy"),
        sum(interval.length_s for interval in intervals if interval.kind == "start-up"),
        len(trial_ids),
        next(iter(trial_ids)) if len(trial_ids) == 1 else None,
        statuses[-1] if len(trial_ids) == 1 and statuses else None,
    )

"""Reduces data to the amount that a page can show. Curves are thinned by `plot.data.thin_curve`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

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


def merge_intervals(intervals: Iterable[WorkerInterval], min_length_s: float) -> list[dict[str, Any]]:
    """Return the intervals of all workers by worker and time, as JSON values.

    Adjacent short ones are merged up to `min_length_s`. `trial` and `status` are None if there is no trial or more than
    one. `busy` and `startup` are the seconds in objectives and in starting trials.
    """
    merged: list[dict[str, Any]] = []
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


def _merge(intervals: Sequence[WorkerInterval]) -> dict[str, Any]:
    trial_ids = {interval.trial_id for interval in intervals if interval.trial_id is not None}
    statuses = [interval.status for interval in intervals if interval.status is not None]
    is_one_trial = len(trial_ids) == 1
    return {
        "slot": intervals[0].slot,
        "begin": round(intervals[0].begin_s, 4),
        "end": round(max(interval.end_s for interval in intervals), 4),
        "busy": round(sum(interval.length_s for interval in intervals if interval.kind == "busy"), 4),
        "startup": round(sum(interval.length_s for interval in intervals if interval.kind == "start-up"), 4),
        "trials": len(trial_ids),
        "trial": trial_ids.pop() if is_one_trial else None,
        "status": statuses[-1] if is_one_trial and statuses else None,
    }

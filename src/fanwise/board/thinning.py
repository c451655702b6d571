"""Much, made as little as a screen can show, without hiding what matters. Quiet: no numpy, no clock.

    trials    --chosen-----> whose curves are drawn: those that run, the best, and an even sample of all others
    intervals --merged-----> what a worker did, where stretches that are too short to be seen are one with its shares

Points of curves are thinned by `columns.thin`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..plot.worker_intervals import WorkerInterval


def chosen(losses: Mapping[int, float], running: Collection[int], most: int) -> list[int]:
    """The trials, upwards, whose curves are drawn: at most `most`, of those that have a loss.

    The best one is among them. Half of the room at most is for those that run (the latest) and a quarter for the best;
    the rest is an even sample, so that what most trials were like is seen too.
    """
    if len(losses) <= most:
        return sorted(losses)
    ranked = sorted(losses, key=lambda trial_id: (losses[trial_id], trial_id))
    kept = set(ranked[: max(1, most // 4)])
    at_work = sorted(trial_id for trial_id in running if trial_id in losses and trial_id not in kept)
    kept.update(at_work[len(at_work) - min(len(at_work), most // 2, most - len(kept)) :])
    others, room = [trial_id for trial_id in sorted(losses) if trial_id not in kept], most - len(kept)
    kept.update(others[number * len(others) // room] for number in range(min(room, len(others))))
    return sorted(kept)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one worker did from `begin_s` to `end_s`: one interval, or several that are too short to be told apart.

    `busy_s` and `startup_s` of it went into objectives and into starting trials; the rest was idle. `trial_id` and
    `status` are None where it was idle, and where it is more than one trial.
    """

    slot: int
    begin_s: float
    end_s: float
    busy_s: float
    startup_s: float
    num_trials: int
    trial_id: int | None = None
    status: str | None = None


def merged(intervals: Iterable[WorkerInterval], shortest_s: float) -> list[Stretch]:
    """The intervals of all workers, worker by worker, in order of time.

    Neighbours that are shorter than `shortest_s` become one, until that is as long.
    """
    found: list[Stretch] = []
    ordered = sorted(intervals, key=lambda one: (one.slot, one.begin_s, one.end_s))
    for _, of_slot in groupby(ordered, key=lambda one: one.slot):
        short: list[WorkerInterval] = []
        for one in of_slot:
            if one.end_s - one.begin_s >= shortest_s:
                found += [_joined(short)] if short else []
                found.append(_joined([one]))
                short = []
                continue
            short.append(one)
            if one.end_s - short[0].begin_s >= shortest_s:
                found.append(_joined(short))
                short = []
        found += [_joined(short)] if short else []
    return found


def _joined(intervals: Sequence[WorkerInterval]) -> Stretch:
    trials = {one.trial_id for one in intervals if one.trial_id is not None}
    statuses = [one.status for one in intervals if one.status is not None]
    return Stretch(
        intervals[0].slot,
        intervals[0].begin_s,
        max(one.end_s for one in intervals),
        sum(one.end_s - one.begin_s for one in intervals if one.kind == "busy"),
        sum(one.end_s - one.begin_s for one in intervals if one.kind == "start-up"),
        len(trials),
        next(iter(trials)) if len(trials) == 1 else None,
        statuses[-1] if len(trials) == 1 and statuses else None,
    )

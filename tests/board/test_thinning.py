"""Thinned curves keep ends and extremes, selections the best trials, and merged intervals all worker time."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.board.views import merge_intervals, select_trials
from fanwise.plot.data import IntervalKind, WorkerInterval, thin_curve

VALUES = st.lists(st.floats(allow_nan=False), max_size=300)
ALL_KINDS: tuple[IntervalKind, ...] = ("busy", "start-up", "idle")
KINDS = st.sampled_from(ALL_KINDS)


@given(VALUES, st.integers(0, 80))
def test_ends_and_extremes_are_kept(values: list[float], most: int) -> None:
    places = thin_curve(values, most)
    assert places == sorted(set(places)) and len(places) <= max(4, most)
    assert all(0 <= place < len(values) for place in places)
    if values:
        selected = [values[place] for place in places]
        assert (places[0], places[-1]) == (0, len(values) - 1)
        assert (min(selected), max(selected)) == (min(values), max(values))


@given(VALUES, st.integers(300, 400))
def test_short_curves_are_not_thinned(values: list[float], most: int) -> None:
    assert thin_curve(values, most) == list(range(len(values)))


@given(st.integers(5, 2_000), st.integers(4, 100), st.data())
def test_a_single_spike_is_kept(count: int, most: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count - 1))
    assert at in thin_curve([float(i == at) for i in range(count)], most)


@given(st.integers(100, 2_000), st.integers(10, 100))
def test_points_are_kept_everywhere(count: int, most: int) -> None:
    places = thin_curve([math.sin(i) for i in range(count)], most)
    longest = max(after - before for before, after in pairwise(places))
    assert longest <= 2 * math.ceil(count / ((most - 2) // 2)) + 1


LOSSES = st.dictionaries(st.integers(0, 500), st.floats(allow_nan=False), max_size=120)


@given(LOSSES, st.sets(st.integers(0, 500)), st.integers(1, 60))
def test_the_best_trial_is_selected_and_no_more_than_the_maximum(
    losses: dict[int, float], running: set[int], most: int
) -> None:
    selected = select_trials(losses, running, most)
    assert selected == sorted(set(selected)) and set(selected) <= set(losses)
    assert len(selected) == min(most, len(losses)), "all room is used"
    if losses:
        assert min(losses, key=lambda trial_id: (losses[trial_id], trial_id)) in selected


def test_running_trials_and_a_sample_of_all_ages_are_selected() -> None:
    losses = {trial_id: float(trial_id) for trial_id in range(10_000)}
    selected = select_trials(losses, {9_998, 9_999}, 160)
    assert selected[:40] == list(range(40)) and {9_998, 9_999} <= set(selected)
    assert max(after - before for before, after in pairwise(selected)) < 200


@st.composite
def timelines(draw: st.DrawFn) -> list[WorkerInterval]:
    intervals = []
    for slot in range(draw(st.integers(0, 3))):
        at_s, trial_id = 0.0, 0
        for _ in range(draw(st.integers(0, 40))):
            begin_s, kind = at_s + draw(st.sampled_from([0.0, 0.0, 1.0])), draw(KINDS)
            at_s = begin_s + draw(st.integers(1, 200)) / 64
            is_idle = kind == "idle"
            intervals.append(
                WorkerInterval(slot, kind, begin_s, at_s, None if is_idle else trial_id, None if is_idle else "Stopped")
            )
            trial_id += draw(st.integers(0, 1))
    return intervals


@given(timelines(), st.sampled_from([0.0, 0.25, 1.0, 5.0, 1e6]))
def test_no_worker_time_is_lost_or_invented(intervals: list[WorkerInterval], shortest_s: float) -> None:
    stretches = merge_intervals(intervals, shortest_s)
    for slot in {one.slot for one in intervals}:
        before = [one for one in intervals if one.slot == slot]
        after = [one for one in stretches if one["slot"] == slot]
        assert (after[0]["begin"], after[-1]["end"]) == (round(before[0].begin_s, 4), round(before[-1].end_s, 4))
        assert all(one["end"] <= following["begin"] for one, following in pairwise(after))
        assert sum(one["busy"] for one in after) == pytest.approx(_sum(before, "busy"), abs=0.01)
        assert sum(one["startup"] for one in after) == pytest.approx(_sum(before, "start-up"), abs=0.01)
        short = [one for one in after if one["end"] - one["begin"] < shortest_s - 0.001]
        long = len(after) - len(short)
        assert len(short) <= long + 1, "short intervals are between long ones"


@given(timelines())
def test_long_intervals_are_unchanged(intervals: list[WorkerInterval]) -> None:
    stretches = merge_intervals(intervals, 0.0)
    assert [(one["slot"], one["begin"], one["end"], one["trial"], one["status"]) for one in stretches] == [
        (one.slot, round(one.begin_s, 4), round(one.end_s, 4), one.trial_id, one.status) for one in intervals
    ]


def _sum(intervals: list[WorkerInterval], kind: IntervalKind) -> float:
    return sum(one.end_s - one.begin_s for one in intervals if one.kind == kind)

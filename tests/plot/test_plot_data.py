"""What the figures show: incumbents, repetitions, learning curves and worker timelines, as plain data."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.plot.data import (
    ReportPoint,
    SearchData,
    Span,
    best_point,
    curves_by_trial,
    from_first_objective,
    incumbent_band,
    incumbent_curve,
    incumbent_steps,
    num_not_finite,
    typical_values,
)
from fanwise.plot.worker_intervals import WorkerInterval, worker_timeline


def search_of(
    reports: Sequence[tuple[int, float, float]] = (),
    *,
    mode: str = "min",
    spans: Sequence[Span] = (),
    n_workers: int = 1,
    first_objective_s: float | None = None,
    stop_s: float | None = None,
    last_s: float = 100.0,
) -> SearchData:
    """Reports as (trial, time, value), numbered as they come."""
    points = [ReportPoint(trial, t_s, i + 1, value) for i, (trial, t_s, value) in enumerate(reports)]
    return SearchData("s", "error", mode, n_workers, True, points, spans, first_objective_s, stop_s, last_s)


def test_only_a_strictly_better_report_becomes_the_incumbent() -> None:
    search = search_of([(0, 1.0, 0.5), (1, 2.0, 0.5), (2, 3.0, 0.4), (0, 4.0, 0.45)])
    assert [(p.trial_id, p.t_s) for p in incumbent_steps(search)] == [(0, 1.0), (2, 3.0)]


def test_mode_max_takes_the_largest_value() -> None:
    search = search_of([(0, 1.0, 0.5), (1, 2.0, 0.9), (2, 3.0, 0.7)], mode="max")
    best = best_point(search)
    assert best is not None
    assert (best.trial_id, best.value) == (1, 0.9)


def test_values_that_are_not_finite_are_never_incumbents_and_are_counted() -> None:
    search = search_of([(0, 1.0, math.nan), (1, 2.0, -math.inf), (2, 3.0, 0.5), (3, 4.0, math.inf), (4, 5.0, 0.4)])
    assert [p.value for p in incumbent_steps(search)] == [0.5, 0.4]
    assert num_not_finite(search) == 3


def test_reports_out_of_order_give_the_same_incumbents() -> None:
    reports = [(0, 1.0, 0.5), (1, 2.0, 0.3), (2, 3.0, 0.4)]
    assert [p.value for p in incumbent_steps(search_of(reports[::-1]))] == [0.5, 0.3]


def test_the_incumbent_is_held_until_the_last_event() -> None:
    assert incumbent_curve(search_of([(0, 1.0, 0.5), (1, 2.0, 0.4)], last_s=9.0)) == ([1.0, 2.0, 9.0], [0.5, 0.4, 0.4])


def test_a_search_without_a_finite_report_has_no_incumbent() -> None:
    for search in (search_of(), search_of([(0, 1.0, math.nan)])):
        assert incumbent_curve(search) == ([], [])
        assert best_point(search) is None
        assert incumbent_band([search]) is None


def test_repetitions_have_mean_and_standard_deviation_at_every_change() -> None:
    a = search_of([(0, 1.0, 1.0), (1, 4.0, 0.4)], last_s=10.0)
    b = search_of([(0, 2.0, 0.8), (1, 6.0, 0.2)], last_s=8.0)
    c = search_of([(0, 2.0, 0.6)], last_s=10.0)
    band = incumbent_band([a, b, c])
    assert band is not None
    assert band.n_searches == 3
    assert band.times_s == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert band.mean == pytest.approx([0.8, 0.6, 0.4, 0.4, 0.4])
    assert band.low == pytest.approx([0.6, 0.4, 0.2, 0.2, 0.2])
    assert band.high == pytest.approx([1.0, 0.8, 0.6, 0.6, 0.6])


def test_the_spread_never_leaves_the_values_it_was_computed_from() -> None:
    # Mean 0.325, sample deviation 0.45: the plain band would begin below zero, where no value is.
    band = incumbent_band([search_of([(0, 1.0, value)]) for value in (0.1, 0.1, 0.1, 1.0)])
    assert band is not None
    assert band.low[0] == 0.1
    assert band.high[0] == pytest.approx(0.775)


def test_repetitions_of_different_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="one mode"):
        incumbent_band([search_of(mode="min"), search_of(mode="max")])


def test_learning_curves_keep_wall_clock_order_and_drop_what_cannot_be_drawn() -> None:
    search = search_of([(1, 5.0, 0.5), (0, 2.0, 0.8), (0, 1.0, 0.9), (1, 6.0, math.nan), (2, 7.0, math.inf)])
    curves = curves_by_trial(search)
    assert [(c.trial_id, c.times_s, c.values) for c in curves] == [(0, [1.0, 2.0], [0.9, 0.8]), (1, [5.0], [0.5])]


def test_typical_values_leave_out_the_first_report_of_each_trial() -> None:
    assert typical_values(search_of([(0, 1.0, 1e6), (0, 2.0, 0.5), (1, 3.0, 1e7), (1, 4.0, 0.4)])) == [0.5, 0.4]
    assert typical_values(search_of([(0, 1.0, 1e6), (1, 3.0, 1e7)])) == [1e6, 1e7]


def test_a_timeline_holds_startup_busy_and_idle_time_of_each_worker() -> None:
    spans = [
        Span(0, 0, 0.0, 1.0, 4.0, 4.5, "Completed"),
        Span(0, 2, 5.0, 5.5, 12.0, 12.1, "Completed"),
        Span(1, 1, 0.0, 2.0, 6.0, 6.0, "Failed"),
    ]
    timeline = worker_timeline(search_of(spans=spans, n_workers=2, first_objective_s=1.0, stop_s=10.0, last_s=12.1))
    assert timeline.intervals == [
        WorkerInterval(0, "start-up", 0.0, 1.0, 0, "Completed"),
        WorkerInterval(0, "busy", 1.0, 4.0, 0, "Completed"),
        WorkerInterval(0, "start-up", 5.0, 5.5, 2, "Completed"),
        WorkerInterval(0, "busy", 5.5, 12.0, 2, "Completed"),
        WorkerInterval(0, "idle", 4.0, 5.0),
        WorkerInterval(1, "start-up", 0.0, 2.0, 1, "Failed"),
        WorkerInterval(1, "busy", 2.0, 6.0, 1, "Failed"),
        WorkerInterval(1, "idle", 6.0, 10.0),
    ]
    assert timeline.capacity_s == 2 * 9.0
    # Busy time after the stop and start-up before the first objective do not count.
    assert (timeline.busy_s, timeline.startup_s, timeline.idle_s) == (3.0 + 4.5 + 4.0, 0.5 + 1.0, 5.0)
    assert timeline.idle_share == pytest.approx(5.0 / 18.0)


def test_a_running_search_is_busy_until_its_last_event() -> None:
    spans = [Span(0, 0, 0.0, 1.0, None, None, "InProgress"), Span(1, 1, 0.0, None, None, None, "InProgress")]
    timeline = worker_timeline(search_of(spans=spans, n_workers=3, first_objective_s=1.0, last_s=5.0))
    assert (timeline.busy_s, timeline.startup_s, timeline.idle_s) == (4.0, 4.0, 4.0)


def test_a_trial_that_died_before_its_objective_was_only_start_up() -> None:
    spans = [Span(0, 0, 0.0, 1.0, 2.0, 2.0, "Completed"), Span(0, 1, 2.0, None, 3.0, 3.0, "Failed")]
    timeline = worker_timeline(search_of(spans=spans, first_objective_s=1.0, stop_s=3.0, last_s=3.0))
    assert (timeline.busy_s, timeline.startup_s, timeline.idle_s) == (1.0, 1.0, 0.0)


def test_time_outside_of_the_objective_is_idle_where_the_worker_measured_it() -> None:
    spans = [Span(0, 0, 0.0, 1.0, 5.0, 5.5, "Completed", 3.0)]
    timeline = worker_timeline(search_of(spans=spans, first_objective_s=1.0, stop_s=6.0, last_s=6.0))
    assert (timeline.busy_s, timeline.startup_s, timeline.idle_s) == (3.0, 0.0, 2.0)
    assert timeline.utilization == pytest.approx(0.6)
    assert timeline.utilization_in_words() == "60.0 % (start-up 0.0 %, idle 40.0 %)"


def test_without_a_first_objective_there_is_no_idle_share() -> None:
    timeline = worker_timeline(search_of(spans=[Span(0, 0, 0.0, None, None, None, "InProgress")], last_s=2.0))
    assert timeline.capacity_s == 0.0
    assert (timeline.utilization, timeline.idle_share, timeline.utilization_in_words()) == (None, None, None)
    assert [i.kind for i in timeline.intervals] == ["start-up"]


def test_only_the_runs_of_the_tuner_count_each_with_its_workers() -> None:
    spans = [Span(0, 0, 0.0, 0.0, 4.0, 4.0, "Completed"), Span(1, 1, 9.0, 10.0, 13.0, 13.0, "Completed")]
    search = search_of(spans=spans, n_workers=1, first_objective_s=0.0, stop_s=14.0, last_s=14.0)
    timeline = worker_timeline(replace(search, windows=[(0.0, 4.0, 1), (10.0, 14.0, 2)]))
    idle = [(i.slot, i.begin_s, i.end_s) for i in timeline.intervals if i.kind == "idle"]
    assert idle == [(0, 10.0, 14.0), (1, 13.0, 14.0)]
    assert (timeline.n_workers, timeline.capacity_s) == (2, 4.0 + 2 * 4.0)
    assert (timeline.busy_s, timeline.startup_s, timeline.idle_s) == (4.0 + 3.0, 0.0, 5.0)


def test_wrong_mode_and_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="mode must be 'min' or 'max', got 'minimum'"):
        search_of(mode="minimum")
    with pytest.raises(ValueError, match="n_workers must be at least 1, got 0"):
        search_of(n_workers=0)


@st.composite
def searches(draw: st.DrawFn) -> SearchData:
    """Spans that may overlap, begin late, never begin or never end."""
    n_workers = draw(st.integers(1, 3))
    times = st.integers(0, 40).map(float)
    spans = []
    for trial_id in range(draw(st.integers(0, 6))):
        started, ready, ended = sorted(draw(st.tuples(times, times, times)))
        shape = draw(st.sampled_from(["ended", "running", "starting", "never ready"]))
        ready_s = None if shape in ("starting", "never ready") else ready
        ended_s = ended if shape in ("ended", "never ready") else None
        spans.append(Span(draw(st.integers(0, n_workers - 1)), trial_id, started, ready_s, ended_s, ended_s, shape))
    *runs, begin_s, end_s = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    stop_s = draw(st.sampled_from([end_s, None]))
    search = search_of(spans=spans, n_workers=n_workers, first_objective_s=begin_s, stop_s=stop_s, last_s=40.0)
    windows = [(runs[0], runs[1], n_workers), (begin_s, end_s, n_workers)]
    return replace(search, first_objective_s=runs[0], windows=windows) if draw(st.booleans()) else search


@given(searches())
def test_busy_startup_and_idle_time_add_up_to_the_window_of_every_worker(search: SearchData) -> None:
    timeline = worker_timeline(search)
    assert timeline.busy_s + timeline.startup_s + timeline.idle_s == pytest.approx(timeline.capacity_s)


@given(searches())
def test_the_intervals_of_a_worker_never_overlap(search: SearchData) -> None:
    for slot in range(search.n_workers):
        row = sorted((i for i in worker_timeline(search).intervals if i.slot == slot), key=lambda i: i.begin_s)
        assert all(i.end_s > i.begin_s for i in row)
        assert all(first.end_s <= second.begin_s for first, second in pairwise(row))


def test_a_search_seen_from_its_first_ready_worker_counts_the_same() -> None:
    spans = [Span(0, 0, 0.0, 8.0, 18.0, 18.0, "Completed"), Span(1, 1, 0.0, 9.0, None, None, "InProgress")]
    before = SearchData("s", "e", "min", 2, True, [ReportPoint(0, 10.0, 1, 0.5)], spans, 8.0, 17.0, 18.0)
    moved = from_first_objective(before)
    assert (moved.first_objective_s, moved.stop_s, moved.last_s) == (0.0, 9.0, 10.0)
    assert [span.started_s for span in moved.spans] == [0.0, 0.0] and [point.t_s for point in moved.reports] == [2.0]
    for share in ("busy_s", "startup_s", "idle_s"):
        assert getattr(worker_timeline(moved), share) == pytest.approx(getattr(worker_timeline(before), share))
    unready = SearchData("s", "e", "min", 2, True, [], [], None, None, 1.0)
    assert from_first_objective(unready) is unready

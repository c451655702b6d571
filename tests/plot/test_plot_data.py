"""Plain data of figures: incumbents, repetitions, learning curves, worker timelines, rungs and limits of axes."""

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
    WorkerInterval,
    best_of_trials,
    best_point,
    bin_reports,
    curves_by_trial,
    finite_reports,
    incumbent_band,
    incumbent_steps,
    rungs_of,
    thin,
    value_scale,
    worker_timeline,
)


def search_of(
    reports: Sequence[tuple[int, float, float]] = (),
    *,
    mode: str = "min",
    spans: Sequence[Span] = (),
    n_workers: int = 1,
    stop_s: float | None = None,
    last_s: float = 100.0,
    windows: Sequence[tuple[float, float, int]] = (),
) -> SearchData:
    """Reports as (trial, time, value), numbered as they come."""
    points = [ReportPoint(trial, t_s, i + 1, value) for i, (trial, t_s, value) in enumerate(reports)]
    return SearchData("s", "error", mode, n_workers, points, spans, 0.0, stop_s, last_s, windows=windows)


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
    assert len(finite_reports(search)) == 2


def test_reports_out_of_order_give_the_same_incumbents() -> None:
    reports = [(0, 1.0, 0.5), (1, 2.0, 0.3), (2, 3.0, 0.4)]
    assert [p.value for p in incumbent_steps(search_of(reports[::-1]))] == [0.5, 0.3]


def test_a_search_without_a_finite_report_has_no_incumbent() -> None:
    for search in (search_of(), search_of([(0, 1.0, math.nan)])):
        assert incumbent_steps(search) == []
        assert best_point(search) is None
        assert incumbent_band([search]).times_s == []


def test_repetitions_have_mean_and_standard_deviation_at_every_change() -> None:
    a = search_of([(0, 1.0, 1.0), (1, 4.0, 0.4)], last_s=10.0)
    b = search_of([(0, 2.0, 0.8), (1, 6.0, 0.2)], last_s=8.0)
    c = search_of([(0, 2.0, 0.6)], last_s=10.0)
    band = incumbent_band([a, b, c])
    assert band.times_s == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert band.middle == pytest.approx([0.8, 0.6, 0.4, 0.4, 0.4])
    assert band.low == pytest.approx([0.6, 0.4, 0.2, 0.2, 0.2])
    assert band.high == pytest.approx([1.0, 0.8, 0.6, 0.6, 0.6])


def test_the_spread_never_leaves_the_values_it_was_computed_from() -> None:
    # Mean 0.325, sample deviation 0.45: the plain band would begin below zero, where no value is.
    band = incumbent_band([search_of([(0, 1.0, value)]) for value in (0.1, 0.1, 0.1, 1.0)])
    assert band.low[0] == 0.1
    assert band.high[0] == pytest.approx(0.775)


def test_learning_curves_keep_wall_clock_order_and_drop_what_cannot_be_drawn() -> None:
    search = search_of([(1, 5.0, 0.5), (0, 2.0, 0.8), (0, 1.0, 0.9), (1, 6.0, math.nan), (2, 7.0, math.inf)])
    curves = curves_by_trial(search)
    assert {trial_id: (curve.t_s.tolist(), curve.value.tolist()) for trial_id, curve in curves.items()} == {
        0: ([1.0, 2.0], [0.9, 0.8]),
        1: ([5.0], [0.5]),
    }
    assert list(curves_by_trial(search, [1, 2])) == [1]


def test_a_timeline_holds_startup_busy_and_idle_time_of_each_worker() -> None:
    spans = [
        Span(0, 0, 0.0, 0.0, 3.0, "Completed"),
        Span(0, 2, 4.0, 4.5, 11.0, "Completed"),
        Span(1, 1, 0.0, 1.0, 5.0, "Failed"),
    ]
    timeline = worker_timeline(search_of(spans=spans, n_workers=2, stop_s=9.0, last_s=12.0, windows=[(0.0, 9.0, 2)]))
    assert timeline.intervals == [
        WorkerInterval(0, "busy", 0.0, 3.0, 0, "Completed"),
        WorkerInterval(0, "start-up", 4.0, 4.5, 2, "Completed"),
        WorkerInterval(0, "busy", 4.5, 11.0, 2, "Completed"),
        WorkerInterval(0, "idle", 3.0, 4.0),
        WorkerInterval(1, "start-up", 0.0, 1.0, 1, "Failed"),
        WorkerInterval(1, "busy", 1.0, 5.0, 1, "Failed"),
        WorkerInterval(1, "idle", 5.0, 9.0),
    ]
    # Busy time after the stop does not count.
    assert (timeline.capacity_s, timeline.busy_s, timeline.startup_s) == (18.0, 3.0 + 4.5 + 4.0, 0.5 + 1.0)
    assert timeline.shares == pytest.approx((11.5 / 18, 1.5 / 18, 5 / 18))


def test_a_trial_that_has_not_ended_lasts_until_the_last_event() -> None:
    spans = [Span(0, 0, 0.0, 0.0, None, "InProgress"), Span(1, 1, 0.0, None, None, "InProgress")]
    timeline = worker_timeline(search_of(spans=spans, n_workers=3, last_s=4.0, windows=[(0.0, 4.0, 3)]))
    assert (timeline.busy_s, timeline.startup_s) == (4.0, 4.0)


def test_a_trial_that_died_before_its_objective_was_only_start_up() -> None:
    spans = [Span(0, 0, 0.0, 0.0, 1.0, "Completed"), Span(0, 1, 1.0, None, 2.0, "Failed")]
    timeline = worker_timeline(search_of(spans=spans, stop_s=2.0, last_s=2.0, windows=[(0.0, 2.0, 1)]))
    assert (timeline.busy_s, timeline.startup_s) == (1.0, 1.0)


def test_time_outside_of_the_objective_is_idle_where_the_worker_measured_it() -> None:
    spans = [Span(0, 0, 0.0, 0.0, 4.0, "Completed", 3.0)]
    timeline = worker_timeline(search_of(spans=spans, stop_s=5.0, last_s=5.0, windows=[(0.0, 5.0, 1)]))
    assert timeline.utilization_in_words() == "60.0 % (start-up 0.0 %, idle 40.0 %)"


def test_without_a_first_objective_there_are_no_shares() -> None:
    timeline = worker_timeline(search_of(spans=[Span(0, 0, 0.0, None, None, "InProgress")], last_s=2.0))
    assert (timeline.shares, timeline.utilization_in_words()) == (None, None)
    assert [i.kind for i in timeline.intervals] == ["start-up"]


def test_only_the_runs_of_the_tuner_count_each_with_its_workers() -> None:
    spans = [Span(0, 0, 0.0, 0.0, 4.0, "Completed"), Span(1, 1, 9.0, 10.0, 13.0, "Completed")]
    windows = [(0.0, 4.0, 1), (10.0, 14.0, 2)]
    timeline = worker_timeline(search_of(spans=spans, stop_s=14.0, last_s=14.0, windows=windows))
    idle = [(i.slot, i.begin_s, i.end_s) for i in timeline.intervals if i.kind == "idle"]
    assert idle == [(0, 10.0, 14.0), (1, 13.0, 14.0)]
    assert (timeline.n_workers, timeline.capacity_s) == (2, 4.0 + 2 * 4.0)
    assert (timeline.busy_s, timeline.startup_s) == (4.0 + 3.0, 0.0)


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
        spans.append(Span(draw(st.integers(0, n_workers - 1)), trial_id, started, ready_s, ended_s, shape))
    begin, pause, resume, end = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    windows = [(begin, pause, n_workers), (resume, end, n_workers)]
    return search_of(spans=spans, n_workers=n_workers, last_s=40.0, windows=windows)


@given(searches())
def test_busy_startup_and_idle_time_add_up_to_the_windows(search: SearchData) -> None:
    timeline = worker_timeline(search)
    idle_s = sum(interval.length_s for interval in timeline.intervals if interval.kind == "idle")
    assert timeline.busy_s + timeline.startup_s + idle_s == pytest.approx(timeline.capacity_s)


@given(searches())
def test_the_intervals_of_a_worker_never_overlap(search: SearchData) -> None:
    for slot in range(search.n_workers):
        row = sorted((i for i in worker_timeline(search).intervals if i.slot == slot), key=lambda i: i.begin_s)
        assert all(i.end_s > i.begin_s for i in row)
        assert all(first.end_s <= second.begin_s for first, second in pairwise(row))


# -- rungs -------------------------------------------------------------------------------------------------------------

# Trial, time, resource, value, answer.
Told = tuple[int, float, float, float, str]


def halving_of(told: Sequence[Told], spans: Sequence[Span] = (), *, stop_s: float | None = None) -> SearchData:
    """Reports of trials that report once a unit of the resource."""
    points = [ReportPoint(trial, t_s, int(at), value, at, said) for trial, t_s, at, value, said in told]
    return SearchData("s", "error", "min", 2, points, spans, 0.0, stop_s, 100.0, "epoch")


def shape(search: SearchData) -> list[tuple[float, list[int], list[int]]]:
    """Return (level, trials that arrived, trials that continued) of each rung."""
    return [
        (
            rung.level,
            [a.point.trial_id for a in rung.arrivals],
            [a.point.trial_id for a in rung.arrivals if a.has_continued],
        )
        for rung in rungs_of(search)
    ]


# Three trials pause at 1; trials 0 and 2 go on, 0 to the end and 2 to where it is stopped.
HALVING: list[Told] = [
    (0, 1.0, 1, 0.5, "PAUSE"),
    (1, 2.0, 1, 0.9, "PAUSE"),
    (2, 3.0, 1, 0.6, "PAUSE"),
    (2, 4.0, 2, 0.55, "CONTINUE"),
    (0, 5.0, 2, 0.4, "CONTINUE"),
    (2, 6.0, 3, 0.5, "STOP"),
    (0, 7.0, 3, 0.3, "CONTINUE"),
    (0, 9.0, 5, 0.2, "CONTINUE"),
]


def test_rungs_are_where_trials_were_stopped_or_paused_and_the_end() -> None:
    assert shape(halving_of(HALVING)) == [(1, [0, 1, 2], [0, 2]), (3, [2, 0], [0]), (5, [0], [])]


def test_a_paused_trial_has_continued_once_it_has_a_worker_again() -> None:
    told = HALVING[:3]
    assert shape(halving_of(told)) == [(1, [0, 1, 2], [])]
    spans = [Span(0, 1, 0.0, 0.5, 2.0, "Paused"), Span(0, 1, 3.0, None, None, "InProgress")]
    assert shape(halving_of(told, spans)) == [(1, [0, 1, 2], [])], "the farthest level has nothing beyond it"
    told = [*told, (0, 4.0, 2, 0.4, "CONTINUE")]
    assert shape(halving_of(told, spans))[0] == (1, [0, 1, 2], [0, 1])


def test_a_search_that_stops_nobody_has_no_rungs() -> None:
    assert rungs_of(halving_of([(0, 1.0, 1, 0.5, "CONTINUE"), (0, 2.0, 2, 0.4, "CONTINUE")])) == []
    assert rungs_of(halving_of([])) == []


def test_what_ended_for_other_reasons_makes_no_rung() -> None:
    told = [*HALVING, (3, 8.0, 2, math.nan, "STOP"), (4, 20.0, 4, 0.3, "STOP")]
    assert [rung.level for rung in rungs_of(halving_of(told, stop_s=20.0))] == [1, 3, 5]


def test_a_report_that_passes_several_levels_passes_the_lower_ones() -> None:
    known = halving_of(HALVING)
    points = [*known.reports.tolist(), ReportPoint(7, 10.0, 1, 0.3, 4.0, "STOP")]
    rungs = {level: (came, on) for level, came, on in shape(replace(known, reports=points))}
    assert rungs == {1: ([0, 1, 2, 7], [0, 2, 7]), 3: ([2, 0, 7], [0, 7]), 4: ([0, 7], [0]), 5: ([0], [])}


def test_a_clone_does_not_arrive_where_its_source_had_been() -> None:
    told = [*HALVING, (8, 10.0, 4, 0.3, "CONTINUE"), (8, 11.0, 5, 0.25, "CONTINUE")]
    assert shape(halving_of(told)) == [(1, [0, 1, 2], [0, 2]), (3, [2, 0], [0]), (5, [0, 8], [])]


def test_reports_are_counted_where_no_resource_is_reported() -> None:
    points = [ReportPoint(0, 1.0, 1, 0.5, decision="STOP"), ReportPoint(1, 2.0, 1, 0.4), ReportPoint(1, 3.0, 2, 0.3)]
    search = SearchData("s", "error", "min", 1, points, [], None, None, 9.0)
    assert shape(search) == [(1, [0, 1], [1]), (2, [1], [])]


@given(st.permutations(HALVING))
def test_reports_may_come_in_any_order(told: list[Told]) -> None:
    assert shape(halving_of(told)) == shape(halving_of(HALVING))


# -- bins --------------------------------------------------------------------------------------------------------------


def test_bins_have_median_and_percentiles() -> None:
    reports = [(trial, 0.0, float(trial)) for trial in range(11)]
    bins = bin_reports(search_of([*reports, (20, 10.0, 5.0), (21, 99.0, math.nan)]), 5)
    assert bins.times_s == [1.0, 9.0], "a bin without reports is left out"
    assert (bins.middle, bins.low, bins.high) == ([5.0, 5.0], [1.0, 5.0], [9.0, 5.0])
    assert bin_reports(search_of()).times_s == []
    assert bin_reports(search_of([(0, 3.0, 0.5)])).middle == [0.5]


@pytest.mark.parametrize(("mode", "best"), [("min", {0: 0.2, 1: 0.3}), ("max", {0: 0.9, 1: 0.3})])
def test_each_trial_counts_with_its_best_finite_value(mode: str, best: dict[int, float]) -> None:
    told = [(0, 0.9), (0, 0.2), (0, math.nan), (1, 0.3), (2, math.inf)]
    search = search_of([(trial, float(i), value) for i, (trial, value) in enumerate(told)], mode=mode)
    assert {trial: point.value for trial, point in best_of_trials(search).items()} == best


# -- axes --------------------------------------------------------------------------------------------------------------


def test_ordinary_values_all_lie_within_a_linear_axis() -> None:
    scale = value_scale([0.9, 0.5, 0.3, 0.14, 0.2], "min")
    assert not scale.log
    assert scale.n_beyond == 0
    assert 0.0 < scale.low < 0.14
    assert 0.9 < scale.high < 1.0


def test_one_huge_value_does_not_set_the_limits() -> None:
    scale = value_scale([1e6, 0.9, 0.5, 0.4], "min")
    assert scale.high < 2.0
    assert scale.n_beyond == 1


def test_a_hugely_bad_value_is_cut_at_the_bottom_when_larger_is_better() -> None:
    scale = value_scale([-1e6, 0.1, 0.5, 0.9], "max")
    assert scale.low > -1.0
    assert scale.high > 0.9
    assert scale.n_beyond == 1


def test_huge_first_reports_of_all_trials_are_cut_when_the_later_ones_are_usual() -> None:
    later = [0.5, 0.4, 0.3, 0.2]
    assert value_scale([1e5, 2e5, 3e5, *later], "min", later).high < 1.0


def test_where_nearly_all_values_are_zero_nothing_is_cut() -> None:
    assert value_scale([0.0] * 50 + [5.0], "min").n_beyond == 0


def test_positive_values_over_more_than_two_decades_get_a_logarithmic_axis() -> None:
    values = [10.0 ** -(i / 4) for i in range(20)]
    assert value_scale(values, "min").log
    assert not value_scale([*values, 0.0], "min").log
    assert not value_scale([0.9, 0.01], "min").log


def test_a_single_value_and_equal_values_get_room_around_them() -> None:
    for values in ([0.5], [0.0, 0.0], [-3.0]):
        scale = value_scale(values, "min")
        assert scale.low < values[0] < scale.high


def test_without_a_finite_value_the_axis_is_empty_but_valid() -> None:
    scale = value_scale([math.nan, math.inf], "min")
    assert scale == (0.0, 1.0, False, 0)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1), st.sampled_from(["min", "max"]))
def test_the_best_value_is_always_shown(values: list[float], mode: str) -> None:
    scale = value_scale(values, mode)
    best = min(values) if mode == "min" else max(values)
    assert scale.low <= best <= scale.high
    assert scale.low < scale.high
    assert scale.n_beyond == sum(not scale.low <= value <= scale.high for value in values)


@given(st.integers(0, 5000), st.integers(2, 100))
def test_thinning_keeps_the_first_and_the_last_point(n_points: int, max_points: int) -> None:
    kept = thin(n_points, max_points)
    assert len(kept) == min(n_points, max_points)
    assert kept == sorted(set(kept))
    if n_points:
        assert (kept[0], kept[-1]) == (0, n_points - 1)

"""Arrivals at rungs, times since the first objective, and the bins of many learning curves."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.plot.data import (
    ReportPoint,
    SearchData,
    Span,
    best_of_trials,
    bin_reports,
    from_first_objective,
)
from fanwise.plot.rung_levels import levels_of, rungs_of

# Trial, time, resource, value, answer.
Told = tuple[int, float, float, float, str]


def search_of(told: Sequence[Told], spans: Sequence[Span] = (), *, stop_s: float | None = None) -> SearchData:
    """Reports of trials that report once a unit of the resource."""
    points = [ReportPoint(trial, t_s, int(at), value, at, said) for trial, t_s, at, value, said in told]
    return SearchData("s", "error", "min", 2, True, points, spans, None, stop_s, 100.0, "epoch")


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
    assert shape(search_of(HALVING)) == [(1, [0, 1, 2], [0, 2]), (3, [2, 0], [0]), (5, [0], [])]


def test_a_paused_trial_has_continued_once_it_has_a_worker_again() -> None:
    told = HALVING[:3]
    assert shape(search_of(told)) == [(1, [0, 1, 2], [])]
    spans = [Span(0, 1, 0.0, 0.5, 2.0, 2.0, "Paused"), Span(0, 1, 3.0, None, None, None, "InProgress")]
    assert shape(search_of(told, spans)) == [(1, [0, 1, 2], [])], "the farthest level has nothing beyond it"
    told = [*told, (0, 4.0, 2, 0.4, "CONTINUE")]
    assert shape(search_of(told, spans))[0] == (1, [0, 1, 2], [0, 1])


def test_a_search_that_stops_nobody_has_no_rungs() -> None:
    assert rungs_of(search_of([(0, 1.0, 1, 0.5, "CONTINUE"), (0, 2.0, 2, 0.4, "CONTINUE")])) == []
    assert rungs_of(search_of([])) == []


def test_what_ended_for_other_reasons_makes_no_rung() -> None:
    told = [*HALVING, (3, 8.0, 2, math.nan, "STOP"), (4, 20.0, 4, 0.3, "STOP")]
    assert levels_of(search_of(told, stop_s=20.0)) == [1, 3]


def test_a_report_that_passes_several_levels_passes_the_lower_ones() -> None:
    known = search_of(HALVING)
    points = [*known.reports, ReportPoint(7, 10.0, 1, 0.3, 4.0, "STOP")]
    rungs = {level: (came, on) for level, came, on in shape(replace(known, reports=points))}
    assert rungs == {1: ([0, 1, 2, 7], [0, 2, 7]), 3: ([2, 0, 7], [0, 7]), 4: ([0, 7], [0]), 5: ([0], [])}


def test_a_clone_does_not_arrive_where_its_source_had_been() -> None:
    told = [*HALVING, (8, 10.0, 4, 0.3, "CONTINUE"), (8, 11.0, 5, 0.25, "CONTINUE")]
    assert shape(search_of(told)) == [(1, [0, 1, 2], [0, 2]), (3, [2, 0], [0]), (5, [0, 8], [])]


def test_reports_are_counted_where_no_resource_is_reported() -> None:
    points = [ReportPoint(0, 1.0, 1, 0.5, None, "STOP"), ReportPoint(1, 2.0, 1, 0.4), ReportPoint(1, 3.0, 2, 0.3)]
    search = SearchData("s", "error", "min", 1, True, points, [], None, None, 9.0)
    assert shape(search) == [(1, [0, 1], [1]), (2, [1], [])]


@given(st.permutations(HALVING))
def test_reports_may_come_in_any_order(told: list[Told]) -> None:
    assert shape(search_of(told)) == shape(search_of(HALVING))


# -- from the first ready worker ---------------------------------------------------------------------------------------


def test_time_is_counted_from_the_first_ready_worker() -> None:
    spans = [Span(0, 0, 0.5, 3.0, 9.0, 9.5, "Completed", 6.0), Span(1, 1, 0.5, None, None, None, "InProgress")]
    points = [ReportPoint(0, 4.0, 1, 0.5, 7.0, "STOP")]
    search = SearchData("s", "error", "max", 2, True, points, spans, 3.0, 8.0, 10.0, "epoch")
    moved = from_first_objective(search)
    assert list(moved.reports) == [ReportPoint(0, 1.0, 1, 0.5, 7.0, "STOP")]
    assert moved.spans == [
        Span(0, 0, 0.0, 0.0, 6.0, 6.5, "Completed", 6.0),
        Span(1, 1, 0.0, None, None, None, "InProgress"),
    ]
    assert (moved.first_objective_s, moved.stop_s, moved.last_s) == (0.0, 5.0, 7.0)


def test_before_any_worker_is_ready_time_is_that_of_the_search() -> None:
    search = search_of(HALVING)
    assert from_first_objective(search) is search


# -- bins --------------------------------------------------------------------------------------------------------------


def test_bins_have_median_and_percentiles() -> None:
    points = [ReportPoint(trial, 0.0, 1, float(trial)) for trial in range(11)]
    points += [ReportPoint(20, 10.0, 1, 5.0), ReportPoint(21, 99.0, 1, math.nan)]
    bins = bin_reports(SearchData("s", "error", "min", 1, True, points, [], None, None, 99.0), 5)
    assert bins.times_s == [1.0, 9.0], "a bin without reports is left out"
    assert (bins.median, bins.low, bins.high) == ([5.0, 5.0], [1.0, 5.0], [9.0, 5.0])


def test_bins_without_reports_and_with_one_report() -> None:
    empty = SearchData("s", "error", "min", 1, True, [], [], None, None, 9.0)
    assert bin_reports(empty).times_s == []
    assert bin_reports(replace(empty, reports=[ReportPoint(0, 3.0, 1, 0.5)])).median == [0.5]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 50), st.floats(-1e6, 1e6)), min_size=1))
def test_bins_lie_within_the_reported_values(told: list[tuple[int, float, float]]) -> None:
    points = [ReportPoint(trial, t_s, 1, value) for trial, t_s, value in told]
    search = SearchData("s", "error", "min", 1, True, points, [], None, None, 50.0)
    bins = bin_reports(search, 7)
    values = [value for _, _, value in told]
    for low, median, high in zip(bins.low, bins.median, bins.high, strict=True):
        assert min(values) <= low <= median <= high <= max(values)


@pytest.mark.parametrize(("mode", "best"), [("min", {0: 0.2, 1: 0.3}), ("max", {0: 0.9, 1: 0.3})])
def test_each_trial_counts_with_its_best_finite_value(mode: str, best: dict[int, float]) -> None:
    told = [(0, 0.9), (0, 0.2), (0, math.nan), (1, 0.3), (2, math.inf)]
    points = [ReportPoint(trial, float(i), i, value) for i, (trial, value) in enumerate(told)]
    search = SearchData("s", "error", mode, 1, True, points, [], None, None, 50.0)
    assert {trial: point.value for trial, point in best_of_trials(search).items()} == best

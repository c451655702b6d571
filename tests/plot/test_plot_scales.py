"""Limits, units and labels of the axes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.plot.scales import number, plain, sample_steps, thin, time_unit, value_scale


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
    assert (scale.low, scale.high, scale.log, scale.n_beyond) == (0.0, 1.0, False, 0)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1), st.sampled_from(["min", "max"]))
def test_the_best_value_is_always_shown(values: list[float], mode: str) -> None:
    scale = value_scale(values, mode)
    best = min(values) if mode == "min" else max(values)
    assert scale.low <= best <= scale.high
    assert scale.low < scale.high
    assert scale.n_beyond == sum(not scale.low <= value <= scale.high for value in values)


def test_shares_follow_the_axis_also_where_it_is_logarithmic() -> None:
    linear = value_scale([0.0, 10.0], "min")
    assert linear.position(5.0) == pytest.approx(0.5)
    log = value_scale([0.001, 0.01, 0.1, 1.0], "min")
    assert log.log
    assert log.position(0.1) - log.position(0.01) == pytest.approx(log.position(1.0) - log.position(0.1))
    assert log.position(0.0) == -1.0


def test_a_value_weighs_as_long_as_it_holds() -> None:
    sampled = sample_steps([0.0, 1.0, 100.0], [9.0, 0.5, 0.5], n_samples=100)
    assert sampled.count(9.0) == 1
    assert sampled[-1] == 0.5
    assert sample_steps([3.0], [0.25]) == [0.25]


@pytest.mark.parametrize(
    ("last_s", "name", "seconds"), [(60.0, "s", 1.0), (1200.0, "s", 1.0), (3600.0, "min", 60.0), (86400.0, "h", 3600.0)]
)
def test_time_is_shown_in_a_unit_that_suits_the_length_of_the_search(last_s: float, name: str, seconds: float) -> None:
    unit = time_unit(last_s)
    assert (unit.name, unit.seconds) == (name, seconds)


def test_names_are_shown_as_they_are() -> None:
    assert plain("a_b $x$") == r"a_b \$x\$"
    assert plain("two\nlines\x1b[0m") == r"two\nlines\x1b[0m"
    assert len(plain("x" * 500)) <= 60
    assert plain("start" + "x" * 500 + "end").startswith("start")
    assert plain("x" * 500 + "end").endswith("end")


def test_numbers_have_four_significant_digits() -> None:
    assert number(0.1377706) == "0.1378"


@given(st.integers(0, 5000), st.integers(2, 100))
def test_thinning_keeps_the_first_and_the_last_point(n_points: int, max_points: int) -> None:
    kept = thin(n_points, max_points)
    assert len(kept) == min(n_points, max_points)
    assert kept == sorted(set(kept))
    if n_points:
        assert (kept[0], kept[-1]) == (0, n_points - 1)

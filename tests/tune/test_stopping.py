"""StoppingCriterion: the meaning of each limit, precedence, and invalid limits."""

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune import Objective
from fanwise.tune.stopping import Counts, ReachedLimit, StoppingCriterion, limits_of, reached_limit, reference_losses


def counts_after(*reports: float, **fields: float) -> Counts:
    counts = Counts("loss")
    for value in reports:
        counts.add_result(0, 0.0, (value,), value)
    for name, number in fields.items():
        setattr(counts, name, number)
    return counts


@pytest.mark.parametrize(
    ("criterion", "field", "limit", "reason", "lets_finish"),
    [
        (StoppingCriterion(max_wallclock_time=720), "wallclock_s", 720, "max_wallclock_time=720 s is over", False),
        (
            StoppingCriterion(max_num_trials_started=4),
            "num_trials_started",
            4,
            "max_num_trials_started=4 reached",
            True,
        ),
        (
            StoppingCriterion(max_num_trials_completed=4),
            "num_trials_completed",
            4,
            "max_num_trials_completed=4 reached",
            False,
        ),
        (StoppingCriterion(max_num_evaluations=9), "num_evaluations", 9, "max_num_evaluations=9 reached", False),
        (
            StoppingCriterion(max_num_trials_without_improvement=4),
            "num_trials_without_improvement",
            4,
            "max_num_trials_without_improvement=4 reached",
            True,
        ),
    ],
)
def test_a_limit_is_reached_at_its_value_and_not_before(
    criterion: StoppingCriterion, field: str, limit: int, reason: str, lets_finish: bool
) -> None:
    assert reached_limit(criterion, counts_after(**{field: limit - 1})) is None
    for number in (limit, limit + 1):
        assert reached_limit(criterion, counts_after(**{field: number})) == ReachedLimit(reason, lets_finish)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.floats(allow_nan=False, allow_infinity=False))
def test_metric_limits_are_reached_when_some_report_reaches_them(reports: list[float], limit: float) -> None:
    above, below = StoppingCriterion(max_metric_value=limit), StoppingCriterion(min_metric_value=limit)
    assert (reached_limit(above, counts_after(*reports)) is not None) == any(value >= limit for value in reports)
    assert (reached_limit(below, counts_after(*reports)) is not None) == any(value <= limit for value in reports)


def test_infinite_values_and_infeasible_reports_reach_no_metric_limit() -> None:
    counts = counts_after(math.inf, -math.inf)
    counts.add_result(0, 0.5, (0.0,), 0.0)
    assert reached_limit(StoppingCriterion(max_metric_value=0, min_metric_value=0), counts) is None


def test_a_metric_limit_says_what_was_reached() -> None:
    low = StoppingCriterion(min_metric_value=0.1)
    assert reached_limit(low, counts_after(0.5, 0.08)) == ReachedLimit(
        "loss 0.08 is at or below min_metric_value=0.1", False
    )
    high = StoppingCriterion(max_metric_value=0.5)
    assert reached_limit(high, counts_after(0.5)) == ReachedLimit("loss 0.5 is at or above max_metric_value=0.5", False)


def test_trials_that_end_count_until_one_reports_something_better_than_ever() -> None:
    criterion = StoppingCriterion(max_num_trials_without_improvement=3)
    counts = counts_after()
    counts.add_result(0, 0.0, (0.5,), 0.5)
    for trial_id, loss in ((1, math.inf), (2, 0.5), (3, 0.4)):
        counts.add_end(trial_id - 1)  # also of trial 0, which is the best
        assert reached_limit(criterion, counts) is None
        counts.add_result(trial_id, 0.0, (loss,), loss)
    assert (counts.best_key, counts.best_trial_id, counts.num_trials_without_improvement) == ((0.0, 0.4), 3, 0)
    for trial_id in (2, 3, 4, 5):
        assert reached_limit(criterion, counts) is None
        counts.add_end(trial_id)
    reason = "max_num_trials_without_improvement=3 reached"
    assert reached_limit(criterion, counts) == ReachedLimit(reason, lets_running_finish=True)


def test_a_report_nearer_to_its_bounds_is_an_improvement_and_a_better_loss_farther_from_them_is_none() -> None:
    counts = counts_after()
    for trial_id, (infeasibility, loss) in enumerate([(0.5, 0.1), (0.25, 0.9), (0.5, 0.0), (0.0, 2.0)]):
        counts.add_result(trial_id, infeasibility, (loss,), loss)
        counts.add_end(trial_id)
    assert (counts.best_key, counts.best_trial_id) == ((0.0, 2.0), 3)


def test_the_hypervolume_of_feasible_reports_is_a_limit() -> None:
    objectives = (Objective("error"), Objective("speed", "max"))
    criterion = StoppingCriterion(max_hypervolume=0.5, reference_point={"speed": 1.0, "error": 1.0})
    assert StoppingCriterion(**limits_of(criterion)) == criterion  # type: ignore[arg-type]
    counts = counts_after()
    counts.track_hypervolume(reference_losses(criterion, objectives))
    for infeasibility, values in [(0.0, (0.5, 1.5)), (1.0, (0.1, 9.0)), (0.0, (0.8, 2.0))]:
        assert reached_limit(criterion, counts) is None
        losses = [objective.loss(value) for objective, value in zip(objectives, values, strict=True)]
        counts.add_result(0, infeasibility, losses, values[0])
    assert reached_limit(criterion, counts) is None
    counts.add_result(0, 0.0, (0.5, -2.0), 0.5)
    counts.track_hypervolume(reference_losses(criterion, objectives))
    reason = "hypervolume 0.5 is at or above max_hypervolume=0.5"
    assert reached_limit(criterion, counts) == ReachedLimit(reason, lets_running_finish=False)


def test_of_several_objectives_a_report_that_no_earlier_one_dominates_or_equals_is_an_improvement() -> None:
    counts = counts_after()
    reports = [
        (0.5, (9.0, 9.0), 0),  # nearer to the constraints than nothing
        (0.0, (2.0, 2.0), 0),
        (0.0, (2.0, 2.0), 1),  # equal
        (0.0, (3.0, 2.0), 2),
        (0.0, (3.0, 1.0), 0),  # better in the second alone
        (0.5, (0.0, 0.0), 1),  # infeasible
        (0.0, (1.0, math.inf), 2),  # better in the first, and something went wrong
        (0.0, (1.0, 3.0), 0),
    ]
    for trial_id, (infeasibility, losses, expected) in enumerate(reports):
        counts.add_end(99)
        counts.add_result(trial_id, infeasibility, losses, losses[0])
        assert (counts.num_trials_without_improvement, counts.best_trial_id == trial_id) == (expected, not expected)


def test_with_a_reference_point_the_hypervolume_must_grow() -> None:
    criterion = StoppingCriterion(max_num_trials_without_improvement=9, reference_point={"error": 4.0, "time": 4.0})
    assert StoppingCriterion(**limits_of(criterion)) == criterion  # type: ignore[arg-type]
    counts = counts_after()
    counts.track_hypervolume(reference_losses(criterion, (Objective("error"), Objective("time"))))
    reports = [
        (0.5, (9.0, 9.0), 0),
        (0.0, (9.0, 5.0), 0),  # the first that is feasible
        (0.0, (0.0, 5.0), 1),  # beyond the point
        (0.0, (1.0, 3.0), 0),
        (0.0, (2.0, 3.0), 1),
    ]
    for infeasibility, losses, expected in reports:
        counts.add_end(99)
        counts.add_result(0, infeasibility, losses, losses[0])
        assert counts.num_trials_without_improvement == expected, losses


def test_a_reference_point_that_comes_later_counts_what_was_reported_before() -> None:
    two: list[tuple[float, ...]] = [(2.0, 2.0), (3.0, 1.0)]
    one: list[tuple[float, ...]] = [(2.0,), (1.0,)]
    for reports, point, volume in [(two, (4.0, 4.0), 5.0), (one, (4.0,), 3.0)]:
        counts = counts_after()
        for losses in reports:
            counts.add_result(0, 0.0, losses, losses[0])
        counts.track_hypervolume(point)
        assert counts.hypervolume_front is not None and counts.hypervolume_front.volume == volume


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_hypervolume": 1.0}, "max_hypervolume requires a reference_point"),
        (
            {"max_wallclock_time": 1.0, "reference_point": {"error": 1.0}},
            "reference_point requires max_hypervolume or max_num_trials_without_improvement",
        ),
        ({"max_hypervolume": -1.0, "reference_point": {"error": 1.0}}, "must be above 0, got -1.0"),
        ({"max_hypervolume": "1", "reference_point": {"error": 1.0}}, "must be a number, got '1'"),
        ({"max_hypervolume": 1.0, "reference_point": [1.0]}, r"must be {objective: number}, got \[1.0\]"),
        ({"max_hypervolume": 1.0, "reference_point": {"error": math.inf}}, "must be finite, got inf"),
    ],
)
def test_a_wrong_limit_of_the_hypervolume_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        StoppingCriterion(**options)


def test_a_reference_point_names_every_objective() -> None:
    criterion = StoppingCriterion(max_hypervolume=0.5, reference_point={"error": 1.0})
    with pytest.raises(ValueError, match="a value for each objective, 'error', 'speed', but got 'error'"):
        reference_losses(criterion, (Objective("error"), Objective("speed", "max")))


def test_a_search_in_which_nothing_is_ever_reported_ends_too() -> None:
    criterion = StoppingCriterion(max_num_trials_without_improvement=3)
    counts = counts_after()
    for trial_id in range(3):
        assert reached_limit(criterion, counts) is None
        counts.add_result(trial_id, 0.0, (-math.inf,), -math.inf)
        counts.add_end(trial_id)
    assert reached_limit(criterion, counts) is not None


def test_a_limit_that_stops_the_running_goes_before_one_that_lets_them_finish() -> None:
    criterion = StoppingCriterion(max_num_trials_started=1, max_num_evaluations=1)
    counts = counts_after(num_trials_started=1, num_evaluations=1)
    assert reached_limit(criterion, counts) == ReachedLimit("max_num_evaluations=1 reached", lets_running_finish=False)


def test_a_search_without_end_must_be_asked_for() -> None:
    with pytest.raises(ValueError, match=r"never end the search; set a limit, or max_wallclock_time=math.inf"):
        StoppingCriterion()
    endless = StoppingCriterion(max_wallclock_time=math.inf)
    assert reached_limit(endless, counts_after(wallclock_s=1e12)) is None


def test_a_criterion_can_be_copied_and_pickled() -> None:
    criterion = StoppingCriterion(max_num_evaluations=3, min_metric_value=0.5)
    assert copy.deepcopy(criterion) == criterion == pickle.loads(pickle.dumps(criterion))
    assert dataclasses.replace(criterion, max_num_evaluations=4).max_num_evaluations == 4


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: StoppingCriterion(max_wallclock_time=0), ValueError, "above 0, got 0"),
        (lambda: StoppingCriterion(max_wallclock_time=-1), ValueError, "got -1"),
        (lambda: StoppingCriterion(max_wallclock_time=math.nan), ValueError, "got nan"),
        (lambda: StoppingCriterion(max_wallclock_time="12 min"), TypeError, "got '12 min'"),  # type: ignore[arg-type]
        (lambda: StoppingCriterion(max_num_trials_started=0), ValueError, "started must be at least 1, got 0"),
        (lambda: StoppingCriterion(max_num_trials_completed=-2), ValueError, "completed must be at least 1, got -2"),
        (lambda: StoppingCriterion(max_num_evaluations=1.5), TypeError, "must be an int"),  # type: ignore[arg-type]
        (lambda: StoppingCriterion(max_num_evaluations=True), TypeError, "must be an int, got True"),
        (lambda: StoppingCriterion(max_metric_value=math.nan), ValueError, "max_metric_value must be finite, got nan"),
        (lambda: StoppingCriterion(min_metric_value="0.1"), TypeError, "must be a number"),  # type: ignore[arg-type]
        (lambda: StoppingCriterion(720), TypeError, "positional"),  # type: ignore[call-arg]
        (
            lambda: StoppingCriterion(max_wallclock_time_s=720),  # type: ignore[call-arg]
            TypeError,
            r"^StoppingCriterion has no option 'max_wallclock_time_s'; did you mean 'max_wallclock_time'\?$",
        ),
    ],
)
def test_wrong_limits_are_refused_at_once(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()

"""Constraints: their syntax, their violations, and the decisions of schedulers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.tune import (
    ASHA,
    FIFO,
    MOASHA,
    PBT,
    MedianStopping,
    Observation,
    Space,
    SuccessiveHalving,
)
from fanwise.tune.constraints import Constraint, checked_constraints, constraints_of, infeasibility_of
from fanwise.tune.schedulers.scheduler import Decision, Resume, Scheduler
from fanwise.tune.searchers import SuggestContext

SPACE = Space({"depth": 3})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latency_ms <= 20", Constraint("latency_ms", "<=", 20)),
        ("accuracy>=0.9", Constraint("accuracy", ">=", 0.9)),
        ("  val/loss of fold 2 <=  -1e-3 ", Constraint("val/loss of fold 2", "<=", -1e-3)),
    ],
)
def test_constraint_is_parsed(text: str, expected: Constraint) -> None:
    assert checked_constraints([text]) == (expected,)
    assert checked_constraints([str(expected)]) == (expected,)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("latency_ms <= 20", TypeError, r"a list of strings, got 'latency_ms <= 20'.\n  right:  constraints=\["),
        ([20], TypeError, "a list of strings, got [20]"),
        (["latency_ms < 20"], ValueError, "'latency_ms < 20' is not of the form metric <= number or metric >= number"),
        (["latency_ms == 20"], ValueError, "is not of the form"),
        (["latency_ms =< 20"], ValueError, "is not of the form"),
        (["20 >= latency_ms"], ValueError, "is not of the form"),
        (["latency_ms <= 0.9 * baseline"], ValueError, "is not of the form"),
        (["latency_ms <="], ValueError, "is not of the form"),
        (["<= 20"], ValueError, "is not of the form"),
        (["latency_ms"], ValueError, "'latency_ms' is not of the form metric <= number"),
        (["1 <= latency_ms <= 20"], ValueError, "is not of the form metric <= number"),
        (["latency_ms <= inf"], ValueError, "is not of the form"),
        (["latency_ms <= nan"], ValueError, "is not of the form"),
    ],
)
def test_invalid_constraint_is_refused(texts: Any, error: type[Exception], message: str) -> None:
    pattern = message if "\\" in message else "".join(f"[{c}]" if c in "[]().*" else c for c in message)
    with pytest.raises(error, match=pattern.replace("[[]", r"\[").replace("[]]", r"\]")):
        checked_constraints(texts)


@given(st.lists(st.tuples(st.sampled_from(["<=", ">="]), st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), max_size=4))
def test_report_is_infeasible_if_it_violates_a_bound(bounds: list[Any]) -> None:
    them = [Constraint(f"m{i}", relation, bound) for i, (relation, bound, _) in enumerate(bounds)]
    violations = [one.violation(value) for one, (_, _, value) in zip(them, bounds, strict=True)]
    is_feasible = all(value <= bound if relation == "<=" else value >= bound for relation, bound, value in bounds)
    assert (infeasibility_of(them, violations) == 0.0) == is_feasible


# Schedulers rank a trial that violates a constraint behind all feasible trials.

Make = Callable[..., Scheduler]
BOUND = ["latency_ms <= 20"]
HALVING: dict[str, Make] = {
    "ASHA": lambda **more: ASHA(metric="loss", max_t=9, **more),
    "promotion": lambda **more: ASHA(metric="loss", max_t=9, type="promotion", **more),
    "halving": lambda **more: SuccessiveHalving(metric="loss", max_t=9, **more),
    "MOASHA": lambda **more: MOASHA(metric=["loss", "size"], max_t=9, **more),
}


def observation(trial_id: int, loss: float, latency_ms: float, *, iter: int = 1, losses: int = 1) -> Observation:
    bound = checked_constraints(BOUND)
    violations = tuple(one.violation(latency_ms) for one in bound)
    infeasibility = infeasibility_of(bound, violations)
    return Observation(trial_id, {"depth": 3}, iter, float(iter), (loss,) * losses, {}, violations, infeasibility)


def begun(make: Make, **more: Any) -> Scheduler:
    scheduler = make(constraints=BOUND, **more)
    scheduler.begin(SPACE, seed=0)
    return scheduler


@pytest.mark.parametrize("name", HALVING)
def test_feasible_trials_continue_before_infeasible_ones(name: str) -> None:
    scheduler = begun(HALVING[name])
    number = len(scheduler.objectives)
    for trial_id in range(9):
        scheduler.next(SuggestContext(trial_id, trial_id, SPACE, purpose="next"))
    # The infeasible ones have the better losses, and the farther from the bound the better.
    reports = [(trial_id, 0.1 - trial_id / 100, 21.0 + trial_id) for trial_id in range(6)]
    reports += [(6, 0.9, 20.0), (7, 0.8, 1.0), (8, math.inf, 5.0)]
    answers = [
        scheduler.on_report(observation(i, loss, latency_ms, losses=number))
        for i, loss, latency_ms in reversed(reports)
    ]
    on = [report[0] for report, answer in zip(reversed(reports), answers, strict=True) if answer is Decision.CONTINUE]
    for number_of_ask in range(9, 20):
        answer = scheduler.next(SuggestContext(number_of_ask, 9, SPACE, purpose="next"))
        on += [answer.trial_id] if isinstance(answer, Resume) else []
    assert set(on) >= {7} and set(on) <= {6, 7, 8}


@pytest.mark.parametrize("name", ["ASHA", "MOASHA"])
def test_infeasible_trial_nearest_to_the_bound_continues(name: str) -> None:
    scheduler = begun(HALVING[name])
    number = len(scheduler.objectives)
    far = scheduler.on_report(observation(0, 0.1, 40.0, losses=number))
    near = scheduler.on_report(observation(1, 0.9, 22.0, losses=number))
    farther = scheduler.on_report(observation(2, 0.0, 80.0, losses=number))
    assert (far, near, farther) == (Decision.CONTINUE, Decision.CONTINUE, Decision.STOP)


def test_violation_is_an_infinite_loss_for_the_median_rule() -> None:
    scheduler = begun(lambda **more: MedianStopping(metric="loss", grace_population=2, **more))
    assert constraints_of(scheduler) == checked_constraints(BOUND)
    answers = [scheduler.on_report(observation(i, 0.5, 10.0)) for i in range(3)]
    assert answers == [Decision.CONTINUE] * 3
    assert scheduler.on_report(observation(3, 0.1, 30.0)) is Decision.STOP
    assert scheduler.on_report(observation(4, 0.4, 20.0)) is Decision.CONTINUE


def test_infeasible_member_is_replaced_by_a_feasible_one() -> None:
    scheduler = begun(
        lambda **more: PBT(
            metric="loss", max_t=9, perturbation_interval=1, population_size=2, quantile_fraction=0.5, **more
        )
    )
    for trial_id in range(2):
        scheduler.next(SuggestContext(trial_id, trial_id, SPACE, purpose="next"))
    assert scheduler.on_report(observation(0, 0.9, 10.0)) is Decision.CONTINUE
    assert scheduler.on_report(observation(1, 0.1, 30.0)) is Decision.STOP
    assert getattr(scheduler.next(SuggestContext(2, 2, SPACE, purpose="next")), "trial_id", None) == 0


def test_constraints_of_scheduler_and_search_are_refused_together() -> None:
    assert constraints_of(FIFO(metric="loss"), BOUND) == checked_constraints(BOUND)
    with pytest.raises(ValueError, match="given twice: the scheduler has 'latency_ms <= 20'"):
        constraints_of(FIFO(metric="loss", constraints=BOUND), BOUND)


@pytest.mark.parametrize("name", HALVING)
def test_the_constraints_are_part_of_a_schedulers_description(name: str) -> None:
    assert HALVING[name](constraints=BOUND).describe()["constraints"] == BOUND
    assert "constraints" not in HALVING[name]().describe()

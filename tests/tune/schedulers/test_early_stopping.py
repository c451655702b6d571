"""Schedulers that stop early: settings, error messages, and an example of each rule."""

import functools
import json
import math
import operator
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from fanwise.tune.core.actions import Answer, SetStatus
from fanwise.tune.schedulers import (
    ASHA,
    PBT,
    Decision,
    Hyperband,
    MedianStopping,
    Scheduler,
    SuccessiveHalving,
)
from fanwise.tune.schedulers.asha import _bracket_bounds
from fanwise.tune.searchers import Observation, RandomSearcher
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.space import Space, choice, randint, uniform
from fanwise.tune.stopping import StoppingCriterion

SPACE = Space({"depth": randint(1, 8), "max_epochs": 10, "kind": choice(["a", "b"]), "epochs": randint(5, 20)})
CONTINUE, STOP, PAUSE = Decision.CONTINUE, Decision.STOP, Decision.PAUSE
PRESETS: list[Callable[..., Scheduler]] = [ASHA, SuccessiveHalving, Hyperband]


def report(trial_id: int, resource: float, loss: float, iter: int | None = None) -> Observation:
    return Observation(trial_id, {}, int(resource) if iter is None else iter, resource, (loss,), {"loss": loss})


def begun(scheduler: Scheduler) -> Scheduler:
    scheduler.check(SPACE)
    scheduler.begin(SPACE, 0)
    return scheduler


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError, "one of max_t (the resource at which trials end) and max_resource_attr"),
        ({"max_t": 9, "max_resource_attr": "max_epochs"}, ValueError, "one of max_t"),
        ({"max_t": "9"}, TypeError, "max_t must be a number, got '9' of type str"),
        ({"max_t": math.inf}, ValueError, "max_t must be above 0 and finite, got inf"),
        ({"max_t": 9, "grace_period": 0}, ValueError, "grace_period must be above 0 and finite, got 0"),
        ({"max_t": 9, "reduction_factor": 1}, ValueError, "reduction_factor must be above 1, got 1"),
        ({"max_t": 9, "resource_attr": 3}, TypeError, "resource_attr must be a name or None, got 3 of type int"),
        ({"max_t": 9, "mode": "least"}, ValueError, "mode must be 'min' or 'max'"),
        ({"max_t": 9, "metric": ["a", "b"]}, TypeError, "needs one metric, got"),
        ({"max_t": 9, "grace": 1}, TypeError, "has no option 'grace'"),
        ({"max_t": 9, "searcher": "tpo"}, ValueError, "got 'tpo'; did you mean 'tpe'"),
    ],
)
def test_invalid_setting_of_an_early_stopping_scheduler_is_refused(
    preset: Callable[..., Scheduler], options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        preset(**{"metric": "loss", **options})
    assert text in str(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_resource_attr": "max_epoch"}, "'max_epoch' is not in the space; did you mean 'max_epochs'?"),
        ({"max_resource_attr": "kind"}, "max_resource_attr='kind' must be a number above 0 in the space, got None"),
        ({"max_resource_attr": "max_epochs", "grace_period": 11}, "grace_period=11 is above the maximum, 10"),
        ({"max_t": 9, "grace_period": 10}, "grace_period=10 is above the maximum, 9"),
    ],
)
def test_space_that_does_not_fit_is_refused_by_check_and_begin(
    preset: Callable[..., Scheduler], options: dict[str, object], text: str
) -> None:
    scheduler = preset(metric="loss", **options)
    with pytest.raises(ValueError) as checked:
        scheduler.check(SPACE)
    with pytest.raises(ValueError) as begun:
        scheduler.begin(SPACE, 0)
    assert text in str(checked.value) and str(checked.value) == str(begun.value)


def test_more_brackets_than_there_are_levels_are_refused() -> None:
    scheduler = ASHA(metric="loss", max_t=9, brackets=4)
    with pytest.raises(ValueError) as caught:
        scheduler.check(SPACE)
    assert str(caught.value) == (
        "brackets=4 must be at most 3, because the number of rung levels below the maximum 9 is 2 (1, 3)"
    )
    ASHA(metric="loss", max_t=9, brackets=3).check(SPACE)


def test_another_type_of_asha_is_refused() -> None:
    with pytest.raises(ValueError, match="type must be 'stopping', 'promotion' or 'quantile', got 'pasha'"):
        ASHA(metric="loss", max_t=9, type="pasha")  # type: ignore[arg-type]


def test_the_levels_are_the_grace_period_times_powers_of_eta_below_the_maximum() -> None:
    def levels(max_t: float, **options: float) -> tuple[float, ...]:
        return ASHA(metric="loss", max_t=max_t, **options).rung_levels(max_t)  # type: ignore[arg-type]  # only numbers

    assert levels(81) == (1, 3, 9, 27)
    assert levels(100, grace_period=2, reduction_factor=2) == (2, 4, 8, 16, 32, 64)
    assert levels(5, grace_period=5) == ()
    assert len(levels(1000, reduction_factor=10)) == 3
    assert len(levels(1.1**3, reduction_factor=1.1)) == 3


def test_hyperbands_brackets_are_those_of_the_paper() -> None:
    """Table 1 of arXiv 1603.06560: R = 81, eta = 3."""
    brackets = Hyperband(metric="loss", max_t=81).brackets(81)
    assert [list(zip(bracket.sizes, bracket.levels, strict=True)) for bracket in brackets] == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(("r_max", "eta", "num_brackets"), [(1000, 10, 4), (243, 3, 6), (10, 2, 4), (1, 3, 1)])
def test_rounding_of_a_logarithm_loses_no_bracket(r_max: int, eta: int, num_brackets: int) -> None:
    brackets = Hyperband(metric="loss", max_t=r_max, reduction_factor=eta).brackets(r_max)
    assert len(brackets) == num_brackets
    assert brackets[-1].levels == (r_max,)


def test_rounds_of_successive_halving_begin_with_a_power_of_eta() -> None:
    scheduler = SuccessiveHalving(metric="loss", max_t=10, grace_period=2, reduction_factor=2)
    assert scheduler.brackets(10)[0].sizes == (8, 4, 2, 1)


def test_brackets_are_drawn_as_hyperband_begins_trials_and_by_seed_and_trial_alone() -> None:
    assert _bracket_bounds(5, 4, 3.0) == pytest.approx([0.569, 0.807, 0.912, 0.965], abs=1e-3)  # 81, 33.75, 15, 7.5, 5

    def brackets(seed: int, order: range) -> dict[int, int]:
        scheduler = ASHA(metric="loss", max_t=81, brackets=5)
        scheduler.begin(SPACE, seed)
        for trial_id in order:
            scheduler.on_report(report(trial_id, 0.5, 0.0))
        return {trial_id: scheduler._trials[trial_id].bracket for trial_id in order}

    drawn = brackets(0, range(2000))
    shares = [list(drawn.values()).count(bracket) / 2000 for bracket in range(5)]
    assert shares == pytest.approx([0.569, 0.237, 0.105, 0.053, 0.035], abs=0.03)
    assert brackets(0, range(1999, -1, -1)) == drawn
    assert brackets(1, range(2000)) != drawn


@pytest.mark.parametrize("preset", [*PRESETS, functools.partial(ASHA, type="promotion")])
@pytest.mark.parametrize(
    ("options", "decisions"),
    [({"max_t": 10}, [STOP, STOP]), ({"max_resource_attr": "max_epochs"}, [CONTINUE, STOP])],
)
def test_trial_is_stopped_at_max_t_and_ends_by_itself_at_max_resource_attr(
    preset: Callable[..., Scheduler], options: dict[str, object], decisions: list[Decision]
) -> None:
    scheduler = begun(preset(metric="loss", grace_period=10, **options))
    assert scheduler.max_resource == 10
    assert [scheduler.on_report(report(0, resource, 0.5)) for resource in (10, 11)] == decisions


def test_the_maximum_of_a_hyperparameter_is_its_upper_bound() -> None:
    assert begun(ASHA(metric="loss", max_resource_attr="epochs")).max_resource == 20


def test_settings_of_the_median_rule_are_checked() -> None:
    with pytest.raises(ValueError, match="grace_population must be at least 1, got 0"):
        MedianStopping(metric="loss", grace_population=0)
    with pytest.raises(TypeError, match="grace_time must be a number, got 'x' of type str"):
        MedianStopping(metric="loss", grace_time="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
def test_description_has_all_settings_and_accepts_numbers_of_numpy(preset: Callable[..., Scheduler]) -> None:
    searcher = RandomSearcher()
    described = preset(metric="loss", max_t=np.int64(9), grace_period=np.float64(1.5), searcher=searcher).describe()
    assert json.loads(json.dumps(described)) == described
    assert (described["max_t"], described["grace_period"], described["searcher"]) == (9, 1.5, searcher.describe())
    other_settings: list[dict[str, object]] = [
        {"max_t": 10},
        {"grace_period": 2},
        {"reduction_factor": 2},
        {"mode": "max"},
        {"random_seed": 1},
    ]
    for settings in other_settings:
        assert preset(**{"metric": "loss", "max_t": 9, "grace_period": 1.5, **settings}).describe() != described


def test_the_median_rule_compares_trials_that_never_report_at_the_same_resource() -> None:
    scheduler = begun(MedianStopping(metric="loss", resource_attr="seconds", grace_time=2, grace_population=3))
    for trial_id in range(3):
        for step in range(1, 5):
            assert scheduler.on_report(report(trial_id, step + trial_id / 10, 0.5, iter=step)) is CONTINUE
    assert scheduler.on_report(report(3, 1.95, 0.6, iter=1)) is CONTINUE, "the grace time is not over"
    assert scheduler.on_report(report(3, 2.95, 0.6, iter=2)) is STOP
    assert scheduler.on_report(report(4, 4.05, 0.6, iter=1)) is CONTINUE, "only two others have reached 4.05"


def test_the_median_rule_compares_with_averages_up_to_the_resource_of_the_report() -> None:
    scheduler = begun(MedianStopping(metric="loss", resource_attr="seconds", grace_population=1))
    for iter, (seconds, loss) in enumerate([(1.5, 0.8), (2.5, 0.6), (9.0, 0.0)], start=1):
        scheduler.on_report(report(0, seconds, loss, iter))
    assert scheduler.on_report(report(1, 3.0, 0.69)) is CONTINUE, "the average at 2.5 was 0.7"
    assert scheduler.on_report(report(2, 3.25, 0.71)) is STOP
    scheduler.on_rollback(0, 1)
    assert scheduler.on_report(report(3, 1.5, 0.81)) is STOP
    assert scheduler.on_report(report(4, 1.25, 9.0)) is CONTINUE, "nobody has reported before 1.5"


def _sums_of_tenths(config: Mapping[str, object], step: int) -> tuple[dict[str, object], float]:
    x = config["x"]
    assert isinstance(x, float)
    return {"loss": x + 1 / step, "exact": step / 10, "summed": functools.reduce(operator.add, [0.1] * step)}, 1.0


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(ASHA, max_t=0.8, grace_period=0.1, reduction_factor=2),
        functools.partial(ASHA, max_t=0.1 + 0.2, grace_period=0.1),
        functools.partial(ASHA, max_t=0.9, grace_period=0.3, type="promotion"),
        functools.partial(SuccessiveHalving, max_t=0.8, grace_period=0.1, reduction_factor=2),
        functools.partial(Hyperband, max_t=0.9, grace_period=0.1),
        functools.partial(MedianStopping, grace_time=0.3),
        functools.partial(PBT, max_t=1.1, perturbation_interval=0.3),
    ],
)
def test_sums_of_floats_reach_the_level_that_they_round_to(make: Callable[..., Scheduler]) -> None:
    def decisions(resource_attr: str) -> list[object]:
        noted: list[object] = []
        simulate(
            make(metric="loss", resource_attr=resource_attr, random_seed=0),
            FunctionTable(_sums_of_tenths, {"x": uniform(0, 1), "steps": 12}, max_resource_attr="steps"),
            StoppingCriterion(max_num_trials_started=20),
            n_workers=3,
            on_event=lambda event, orders: noted.extend(
                order for order in orders if isinstance(order, Answer | SetStatus)
            ),
        )
        return noted

    assert {answer.decision for answer in decisions("exact") if isinstance(answer, Answer)} >= {CONTINUE, STOP}
    assert decisions("summed") == decisions("exact")

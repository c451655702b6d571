"""Pareto fronts and hypervolumes of experiments: of all reports that count, with constraints and reference points."""

import math
from pathlib import Path

import pytest

from fanwise.tune import (
    FIFO,
    Experiment,
    StoppingCriterion,
    load_experiment,
    open_search,
    replay_experiment,
    uniform,
)
from fanwise.tune.record.overview import read_search

REFERENCE = {"error": 1.0, "speed": 0.0}
REPORTS = [(0.5, 3.0), (0.4, 2.0), (0.6, 2.5), (0.1, math.inf), (0.3, 1.0), (0.4, 2.0)]


pytestmark = pytest.mark.usefixtures("fonts")


def two_objectives(constraints: list[str] | None = None) -> FIFO:
    return FIFO(metric=["error", "speed"], mode=["min", "max"], constraints=constraints or [], random_seed=0)


def experiment_of(name: str, *trials: list[tuple[float, float]], constraints: list[str] | None = None) -> Experiment:
    with open_search({"x": uniform(0, 1)}, two_objectives(constraints), name=name) as opened:
        for reports in trials:
            trial = opened.ask()
            assert trial is not None
            for error, speed in reports:
                opened.report(trial, error=error, speed=speed)
            opened.tell(trial)
    return load_experiment(name)


def test_front_has_every_nondominated_report_once_sorted_by_the_first_objective() -> None:
    experiment = experiment_of("front", REPORTS[:3], REPORTS[3:])
    points = experiment.pareto()
    assert [(point.trial_id, point.iter, dict(point.values)) for point in points] == [
        (1, 2, {"error": 0.3, "speed": 1.0}),
        (0, 2, {"error": 0.4, "speed": 2.0}),
        (0, 1, {"error": 0.5, "speed": 3.0}),
    ]
    assert points[0].config == dict(read_search(experiment.path).search.trials[1].config)


def test_infeasible_reports_are_not_on_the_front() -> None:
    experiment = experiment_of("bound", REPORTS[:3], REPORTS[3:], constraints=["speed >= 1.5"])
    assert [point.values["error"] for point in experiment.pareto()] == [0.4, 0.5]
    assert experiment.hypervolume(REFERENCE) == pytest.approx(0.6 * 2 + 0.5 * 1)
    figure = experiment.plot_pareto_front()
    assert "3 of 5 reports on the Pareto front" in figure.texts[0].get_text(), "two of them are equal"
    assert "\ncrosses: 1 infeasible" in figure.texts[0].get_text()


def test_search_without_feasible_reports_has_no_front() -> None:
    experiment = experiment_of("never", REPORTS[:3], constraints=["speed >= 9"])
    assert (experiment.pareto(), experiment.hypervolume(REFERENCE), experiment.hypervolume()) == ([], 0.0, 0.0)
    assert "no report meets all constraints" in experiment.plot_pareto_front().texts[0].get_text()


def test_default_reference_point_is_a_tenth_of_the_extent_beyond_the_front() -> None:
    experiment = experiment_of("rule", REPORTS[:3], REPORTS[3:])
    assert experiment.hypervolume() == pytest.approx(experiment.hypervolume({"error": 0.52, "speed": 0.8}))
    assert experiment_of("one", [(0.5, 2.0)]).hypervolume() == pytest.approx(0.05 * 0.2)


@pytest.mark.parametrize("point", [{"error": 1.0}, {"error": 1.0, "speed": math.nan}, {"error": 1.0, "sped": 0.0}])
def test_reference_point_must_match_the_objectives(point: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a finite number for each objective, 'error', 'speed'; got"):
        experiment_of("point", REPORTS[:1]).hypervolume(point)


def test_search_with_a_limit_of_the_hypervolume_ends_and_is_replayed() -> None:
    stop = StoppingCriterion(max_hypervolume=1.6, reference_point=REFERENCE)
    with open_search({"x": uniform(0, 1)}, two_objectives(), name="enough", stop=stop) as opened:
        for error, speed in REPORTS[:2]:
            trial = opened.ask()
            assert trial is not None
            opened.tell(trial, {"error": error, "speed": speed})
        assert opened.ask() is None
    assert load_experiment("enough").end_reason == "hypervolume 1.7 is at or above max_hypervolume=1.6"
    assert not replay_experiment("enough").differences


def test_reference_point_that_does_not_match_is_refused_before_the_start(home: Path) -> None:
    stop = StoppingCriterion(max_hypervolume=1.6, reference_point={"error": 1.0})
    with pytest.raises(ValueError, match="a value for each objective, 'error', 'speed', but got 'error'"):
        open_search({"x": uniform(0, 1)}, two_objectives(), name="wrong", stop=stop)
    assert not home.exists()

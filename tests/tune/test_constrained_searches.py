"""Searches with constraints: their best report in all outputs, resumed and replayed."""

import sys
from typing import Any

import pytest

from fanwise.cli.app import main
from fanwise.plot.data import best_of_trials, best_point, incumbent_steps
from fanwise.pool import Pool
from fanwise.tune import (
    FIFO,
    Experiment,
    Space,
    StoppingCriterion,
    Tuner,
    finrange,
    load_experiment,
    open_search,
    replay_experiment,
    uniform,
)
from fanwise.tune.display.table import best_line
from fanwise.tune.record.overview import read_search
from fanwise.tune.simulate import FunctionTable, simulate

BOUND = ["latency_ms <= 20"]
SPACE = {"x": uniform(0, 1)}
# (loss, latency): the best loss violates the bound most, and the second of those that keep it is the better one.
MIXED = [(0.1, 30.0), (0.9, 20.0), (0.5, 10.0), (0.2, 21.0)]
NOWHERE = [(0.1, 40.0), (0.3, 25.0), (0.2, 25.0), (0.0, 26.0)]


def search_with(results: list[tuple[float, float]], name: str = "bound") -> Experiment:
    with open_search(SPACE, "loss", constraints=BOUND, name=name, random_seed=0) as opened:
        for loss, latency_ms in results:
            trial = opened.ask()
            assert trial is not None
            opened.tell(trial, {"loss": loss, "latency_ms": latency_ms})
    return load_experiment(name)


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["fanwise", "tune", *arguments])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_best_is_the_best_feasible_report_everywhere() -> None:
    experiment = search_with(MIXED)
    best = experiment.best
    assert best is not None and best.is_feasible
    assert (best.trial_id, best.value, dict(best.violations)) == (2, 0.5, {})
    assert "violations" not in repr(best)
    assert list(experiment.trials["feasible"]) == [False, True, True, False]
    assert list(experiment.results["st_feasible"]) == [False, True, True, False]
    snapshot = read_search(experiment.path).snapshot()
    assert (snapshot.best, snapshot.violated) == ((0.5, 2), "")
    data = experiment.search_data()
    assert [point.trial_id for point in incumbent_steps(data)] == [1, 2]
    best_result = best_point(data)
    assert best_result is not None and best_result.trial_id == 2
    assert sorted(best_of_trials(data)) == [1, 2]


def test_nearest_report_is_shown_if_none_is_feasible() -> None:
    experiment = search_with(NOWHERE)
    best = experiment.best
    assert best is not None and not best.is_feasible
    assert (best.trial_id, best.value, dict(best.violations)) == (2, 0.2, {"latency_ms <= 20": 5.0})
    assert repr(best).endswith("violations={'latency_ms <= 20': 5.0})")
    snapshot = read_search(experiment.path).snapshot()
    assert (snapshot.best, snapshot.violated) == ((0.2, 2), "latency_ms <= 20 by 5")
    near = "the nearest is 0.2 for trial-id 2, which violates latency_ms <= 20 by 5"
    assert best_line(snapshot) == f"loss: no trial meets all constraints; {near}"
    data = experiment.search_data()
    assert (best_point(data), best_of_trials(data)) == (None, {})
    title = experiment.plot().axes[0].get_title(loc="left")
    assert title == "bound: no report meets all constraints"


def test_command_line_shows_whether_the_best_report_is_feasible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search_with(MIXED, "mixed")
    search_with(NOWHERE, "nowhere")
    listed = typed(monkeypatch, capsys, "ls")
    assert "loss=0.5 (trial 2)" in listed and "none feasible; closest loss=0.2 (trial 2)" in listed
    assert "best configuration: x=" in typed(monkeypatch, capsys, "show", "mixed")
    shown = typed(monkeypatch, capsys, "show", "nowhere")
    assert "no trial meets all constraints; the closest is x=" in shown
    assert ", which violates latency_ms <= 20 by 5\n" in shown
    trial = typed(monkeypatch, capsys, "show", "nowhere", "--trial", "0")
    assert "loss: best 0.1 at report 1 of 1; violates latency_ms <= 20 by 20" in trial
    assert '"feasible": false' in typed(monkeypatch, capsys, "ls", "--json")
    assert '"latency_ms <= 20": 5.0' in typed(monkeypatch, capsys, "show", "nowhere", "--json")


def test_optuna_study_has_the_constraints() -> None:
    pytest.importorskip("optuna")
    study = search_with(MIXED).to_optuna()
    assert study.best_trial.user_attrs["trial_id"] == 2
    assert [trial.system_attrs["constraints"] for trial in study.trials] == [[10.0], [0.0], [-10.0], [1.0]]


def test_search_is_reopened_only_with_the_same_constraints() -> None:
    search_with(MIXED)
    with pytest.raises(ValueError, match=r"constraints: was \['latency_ms <= 20'\], is \[\]"):
        open_search(SPACE, "loss", name="bound")
    with open_search(SPACE, "loss", constraints=BOUND, name="bound") as opened:
        trial = opened.ask()
        assert trial is not None
        with pytest.raises(ValueError, match="not 'latency_ms' of the constraint 'latency_ms <= 20'"):
            opened.report(trial, loss=0.3)
        opened.tell(trial, {"loss": 0.4, "latency_ms": 5})
    best = load_experiment("bound").best
    assert best is not None and best.trial_id == 4
    assert not replay_experiment("bound").differences


def tried(x: float) -> dict[str, float]:
    return {"loss": x, "latency_ms": 30 - 20 * x}


GRID = {"x": finrange(0.0, 1.0, 5)}
EACH = [{"x": number / 4} for number in range(5)]


def tuner(objective: Any, name: str, scheduler: Any = None, **options: Any) -> Tuner:  # Any: as the Tuner takes them
    chosen = FIFO(metric="loss", points_to_evaluate=EACH) if scheduler is None else scheduler
    stop = StoppingCriterion(max_num_trials_started=5)
    return Tuner(objective, GRID, chosen, stop, n_workers=1, name=name, **options)


@pytest.mark.parametrize("where", ["tuner", "scheduler"])
def test_search_is_resumed_and_replayed_with_its_constraints(where: str, pool: Pool) -> None:
    tuner_options: dict[str, Any] = {"constraints": BOUND} if where == "tuner" else {}
    bound = FIFO(metric="loss", constraints=BOUND, points_to_evaluate=EACH) if where == "scheduler" else None
    experiment = tuner(tried, "first", bound, quiet=True, pool=pool, **tuner_options).run()
    assert experiment.metadata["constraints"] == BOUND
    assert experiment.best is not None and experiment.best.config == {"x": 0.5}
    resumed = Tuner.resume("first", stop=StoppingCriterion(max_num_trials_started=7), quiet=True, pool=pool).run()
    assert len(resumed.trials) == 7
    assert resumed.best is not None and resumed.best.is_feasible and resumed.best.value >= 0.5
    assert not replay_experiment("first").differences


def test_summary_names_the_constraints(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    tuner(tried, "tried", constraints=[*BOUND, "loss >= 0.1"], pool=pool).run()
    best = "loss: best 0.5 for trial-id 2, among those that meet latency_ms <= 20 and loss >= 0.1"
    assert best in capsys.readouterr().out.splitlines()


def test_incumbents_of_a_simulated_search_are_feasible() -> None:
    space = Space({"x": finrange(0.0, 1.0, 5), "max_epochs": 1})
    table = FunctionTable(lambda config, epoch: (tried(float(str(config["x"]))), 1.0), space)
    points = [{"x": number / 4} for number in range(4)]
    scheduler = FIFO(metric="loss", constraints=BOUND, points_to_evaluate=points)
    best_result = simulate(scheduler, table, StoppingCriterion(max_num_trials_started=4), n_workers=1)
    assert [(one.value, one.trial_id) for one in best_result.incumbents] == [(0.5, 2)]
    assert best_result.best is not None and (best_result.best.value, best_result.best.infeasibility) == (0.5, 0.0)

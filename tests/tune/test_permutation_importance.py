"""Permutation importances, and the correlation of their model with the results."""

import json
import random
import sys
from typing import Any

import numpy as np
import pytest
from late import Late

from fanwise.cli.app import main
from fanwise.tune import (
    FIFO,
    Experiment,
    choice,
    load_experiment,
    open_search,
    parameter,
    permutation_importance,
    uniform,
)

ensemble: Any = Late("sklearn.ensemble")
SPACE = {
    "matters": uniform(0, 1),
    "noise": uniform(0, 1),
    "kind": choice(["a", "b"]),
    "only_b": parameter(uniform(0, 1), when={"kind": "b"}),
}


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation_importance, "_TREES", 10)


pytestmark = pytest.mark.usefixtures("fonts")


def experiment_of(number: int, *, learns: bool = True) -> Experiment:
    chance = random.Random(0)
    with open_search(SPACE, scheduler=FIFO(metric="loss"), name="told", random_seed=0) as opened:
        for place in range(number):
            trial = opened.ask()
            assert trial is not None
            if place % 10 == 9:
                opened.fail(trial, "no luck")
                continue
            config = trial.config
            loss = 10 ** (3 * config["matters"]) + 20 * config.get("only_b", 0.0) if learns else chance.random()
            opened.tell(trial, loss)
    return load_experiment("told")


def test_hyperparameter_that_decides_the_loss_is_the_most_important_and_noise_is_not() -> None:
    experiment = experiment_of(120)
    importance = experiment.importances()
    assert importance == experiment.importances(), "the same record gives the same importances"
    assert importance.hyperparameters[0].name == "matters"
    by_name = {one.name: one for one in importance.hyperparameters}
    assert by_name["matters"].mean > 5 * max(abs(by_name["noise"].mean), by_name["noise"].deviation)
    assert by_name["only_b"].mean > by_name["noise"].mean
    assert importance.correlation > 0.8
    assert len(importance.trials) == len(importance.predicted) == len(importance.actual) == 108, (
        "failed trials are left out"
    )
    assert (min(importance.actual), max(importance.actual), importance.num_stopped) == (0.0, 1.0, 0)


def test_correlation_is_low_for_random_losses() -> None:
    importance = experiment_of(120, learns=False).importances()
    assert importance.correlation < 0.4
    assert all(one.mean < 0.2 for one in importance.hyperparameters)


def test_error_names_the_number_of_trials_if_there_are_too_few() -> None:
    with pytest.raises(ValueError, match=r"at least 10 trials with a result, .* the experiment has 5 trials"):
        experiment_of(5).importances()


def test_command_line_shows_importances_as_text_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment_of(40)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["fanwise", "tune", "importance", "told", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        out = capsys.readouterr().out
        if more:
            assert json.loads(out)["importances"][0]["name"] == "matters"
        else:
            assert out.startswith("matters") and "of 36 trials; predicted and actual ranks: correlation 0." in out


def test_figure_has_the_bars_and_the_model() -> None:
    figure = experiment_of(40).plot_importances()
    title = "told: importance for loss\n36 trials; predicted and actual ranks: correlation 0."
    assert figure.get_suptitle().startswith(title)


def test_of_many_trials_a_sample_is_used_and_the_figure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation_importance, "_MAX_TRIALS", 30)
    experiment = experiment_of(60)
    importance = experiment.importances()
    assert (len(importance.trials), importance.num_results) == (30, 54)
    assert importance == experiment.importances(), "the sample has a fixed seed"
    assert "\n30 of 54 trials; " in experiment.plot_importances().get_suptitle()


def test_model_is_evaluated_only_for_configurations_of_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, num_trees = experiment_of(40), []
    predict = ensemble.RandomForestRegressor.predict

    def noting(forest: Any, rows: Any) -> Any:
        num_trees.append(rows)
        return predict(forest, rows)

    monkeypatch.setattr(ensemble.RandomForestRegressor, "predict", noting)
    experiment.importances()
    for _, _, is_a, is_b, only_b, has_only_b in np.concatenate(num_trees):  # the columns of Encoder.features
        assert is_a + is_b == 1.0
        assert has_only_b == is_b, "only_b exists beside b alone"
        assert has_only_b or only_b == 0.5


def test_each_objective_has_its_own_importances() -> None:
    scheduler = FIFO(metric=["loss", "speed"], mode=["min", "max"])
    with open_search(
        {"a": uniform(0, 1), "b": uniform(0, 1)}, scheduler=scheduler, name="two", random_seed=0
    ) as opened:
        for _ in range(40):
            trial = opened.ask()
            assert trial is not None
            opened.tell(trial, {"loss": trial.config["a"], "speed": trial.config["b"]})
    experiment = load_experiment("two")
    assert experiment.importances().hyperparameters[0].name == "a"
    assert experiment.importances("speed").hyperparameters[0].name == "b"
    with pytest.raises(ValueError, match=r"no objective 'sped'; it has 'loss', 'speed'$"):
        experiment.importances("sped")

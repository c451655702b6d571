"""What a search has learnt: importances, and whether the model behind them knows anything."""

import doctest
import json
import random
import sys
from pathlib import Path

import pytest

from fanwise.cli.app import main
from fanwise.plot import importances
from fanwise.plot.canvas import png_bytes
from fanwise.tune import Experiment, choice, load_experiment, open_search, parameter, uniform

SPACE = {
    "matters": uniform(0, 1),
    "noise": uniform(0, 1),
    "kind": choice(["a", "b"]),
    "only_b": parameter(uniform(0, 1), when={"kind": "b"}),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib opens the font files at the first drawing and keeps them; so let that be before the tests."""
    png_bytes(importances.importance("fonts", [("lr", 0.5, 0.1)], [0.2], [0.0], 1.0))


def told(number: int, *, learns: bool = True) -> Experiment:
    chance = random.Random(0)
    with open_search(SPACE, "loss", name="told", random_seed=0) as opened:
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


def test_what_decides_the_loss_is_the_most_important_and_noise_is_not() -> None:
    found = told(120).importances()
    assert found.hyperparameters[0].name == "matters"
    by_name = {one.name: one for one in found.hyperparameters}
    assert by_name["matters"].mean > 5 * max(abs(by_name["noise"].mean), by_name["noise"].deviation)
    assert by_name["only_b"].mean > by_name["noise"].mean
    assert found.correlation > 0.8
    assert len(found.trials) == len(found.predicted) == len(found.seen) == 108, "failed trials are left out"
    assert (min(found.seen), max(found.seen), found.num_stopped) == (0.0, 1.0, 0)


def test_a_model_of_chance_says_that_it_knows_nothing() -> None:
    found = told(120, learns=False).importances()
    assert found.correlation < 0.4
    assert all(one.mean < 0.2 for one in found.hyperparameters)


def test_the_same_record_gives_the_same_importances() -> None:
    experiment = told(40)
    assert experiment.importances() == experiment.importances()


def test_too_few_trials_are_an_error_that_counts_them() -> None:
    with pytest.raises(ValueError, match="at least 10 trials with a result, and a hyperparameter; this has 5 trials"):
        told(5).importances()


def test_the_command_line_shows_them_to_people_and_to_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told(40)
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
            assert out.startswith("matters") and "of 36 trials; predicted against seen: correlation 0." in out


def test_the_picture_has_the_bars_and_the_model() -> None:
    figure = told(40).plot_importances()
    assert [axes.get_title(loc="left")[:10] for axes in figure.axes] == ["told: impo", "model: cor"]
    assert doctest.testmod(importances).failed == 0

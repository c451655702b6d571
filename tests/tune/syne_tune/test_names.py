"""Syne Tune's names lead to fanwise's, and what it has besides is an error that names our way."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanwise import tune
from fanwise.tune import simulate
from fanwise.tune import syne_tune as facade
from fanwise.tune.syne_tune import Reporter, StoppingCriterion, Tuner
from fanwise.tune.syne_tune.backend.python_backend import PythonBackend
from fanwise.tune.syne_tune.config_space import loguniform, randint
from fanwise.tune.syne_tune.experiments import load_experiment
from fanwise.tune.syne_tune.missing import OUR_WAY
from fanwise.tune.syne_tune.optimizer import baselines
from fanwise.tune.syne_tune.optimizer.baselines import ASHA, RandomSearch

SPACE = {"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10}
FIRST: list[dict[str, object]] = [{"learning_rate": 0.1, "batch_size": 128}]
STOP = StoppingCriterion(max_num_trials_started=3)


def objective(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    report = Reporter()
    for epoch in range(1, max_epochs + 1):
        report(epoch=epoch, validation_error=learning_rate / epoch)


def a_tuner(**options: Any) -> Tuner:
    backend = PythonBackend(tune_function=objective, config_space=SPACE)
    scheduler = RandomSearch(SPACE, metric="validation_error", mode="min", points_to_evaluate=FIRST)
    return Tuner(trial_backend=backend, scheduler=scheduler, stop_criterion=STOP, n_workers=1, **options)


def test_a_search_of_the_books_form_runs(capsys: pytest.CaptureFixture[str]) -> None:
    tuner = a_tuner(print_update_interval=5)
    tuner.run()
    results = load_experiment(tuner.name).results
    assert results.trial_id.unique().tolist() == [0, 1, 2]
    assert results.validation_error.tolist()[9] == 0.01
    assert results.st_tuner_time.is_monotonic_increasing
    said = capsys.readouterr().out
    assert "Resource summary (last result is reported):" in said and str(tuner.tuner_path) in said


def test_asha_is_ours_with_the_same_settings() -> None:
    settings: dict[str, Any] = {
        "metric": "validation_error",
        "mode": "max",
        "max_resource_attr": "max_epochs",
        "resource_attr": "epoch",
        "grace_period": 2,
        "reduction_factor": 2,
        "brackets": 2,
        "type": "promotion",
        "points_to_evaluate": FIRST,
        "random_seed": 3,
    }
    asked = ASHA(SPACE, **settings)
    assert asked.scheduler.describe() == tune.ASHA(**settings).describe()
    assert asked.config_space == tune.Space(SPACE)


def test_random_search_is_ours_with_the_same_settings() -> None:
    settings: dict[str, Any] = {"metric": "a", "mode": "max", "points_to_evaluate": FIRST, "random_seed": 3}
    assert RandomSearch(SPACE, **settings).scheduler.describe() == tune.RandomSearch(**settings).describe()


def test_points_outside_the_space_are_seen_when_the_scheduler_is_made() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        RandomSearch(SPACE, metric="validation_error", points_to_evaluate=[{"batch_size": 1000}])


def test_a_name_gets_the_time_unless_it_is_the_whole_name() -> None:
    assert re.fullmatch(r"lenet-\d{4}(-\d\d){5}-[0-9a-f]{6}", a_tuner(tuner_name="lenet").name)
    assert a_tuner(tuner_name="lenet", suffix_tuner_name=False).name == "lenet"


def test_what_only_polling_needs_changes_nothing() -> None:
    assert a_tuner(sleep_time=0.1, results_update_interval=10, save_tuner=False).name


@pytest.mark.parametrize(
    ("module", "name", "way"),
    [
        ("optimizer.baselines", "TPE", "use fanwise.tune.TPE with fanwise.tune.Tuner"),
        ("optimizer.baselines", "CQR", "use fanwise.tune.CQR with fanwise.tune.Tuner"),
        ("optimizer.baselines", "DyHPO", "BayesianOptimization is the searcher here that learns a model"),
        ("backend", "simulator_backend", "use fanwise.tune.simulate"),
        ("optimizer.baselines", "GridSearch", "use fanwise.tune.GridSearch with fanwise.tune.Tuner"),
        ("backend", "LocalBackend", "give a function, not a script"),
        ("experiments", "load_experiments_df", "use fanwise.tune.load_experiment"),
        ("config_space", "to_dict", "fanwise explain from-syne-tune"),
    ],
)
def test_a_name_that_is_not_here_says_what_there_is(module: str, name: str, way: str) -> None:
    with pytest.raises(ImportError, match=f"syne_tune.{module} has no '{name}'.*{re.escape(way)}"):
        getattr(importlib.import_module(f"{facade.__name__}.{module}"), name)


@pytest.mark.parametrize("module", ["blackbox_repository", "tuner_callback"])
def test_a_module_that_is_not_here_says_what_there_is(module: str) -> None:
    with pytest.raises(ImportError, match=rf"has no '{module}': (use|give an object).* fanwise\.tune"):
        getattr(facade, module)


def test_python_may_look_for_what_modules_may_have() -> None:
    assert not hasattr(baselines, "__wrapped__")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RandomSearch(SPACE, metric="a", search_options={}),
            "RandomSearch has no option 'search_options': giv",
        ),
        (lambda: ASHA(SPACE, metric="a", resource_attr="b", resourceattr=1), "; did you mean 'resource_attr'"),
        (lambda: PythonBackend(objective, SPACE, rotate_gpus=False), "each trial has a GPU of its own"),
        (
            lambda: StoppingCriterion(max_cost=3),
            r"StoppingCriterion has no option 'max_cost': nothing is counted in cost",
        ),
        (lambda: StoppingCriterion(max_wallclock=3), "did you mean 'max_wallclock_time'"),
        (lambda: a_tuner(max_failures=3), r"use fanwise.tune.Tuner\(max_equal_failures=\)"),
    ],
)
def test_an_option_that_is_not_here_says_what_there_is(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_parts_of_fanwise_are_sent_to_its_tuner() -> None:
    with pytest.raises(TypeError, match=r"go to fanwise\.tune\.Tuner"):
        Tuner(PythonBackend(objective, SPACE), tune.RandomSearch(metric="a"), STOP, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="trial_backend must be a PythonBackend"):
        Tuner(objective, RandomSearch(SPACE, metric="a"), STOP, 1)  # type: ignore[arg-type]


def test_back_end_and_scheduler_have_one_space() -> None:
    other = RandomSearch({**SPACE, "max_epochs": 3}, metric="validation_error")
    with pytest.raises(ValueError, match="different spaces"):
        Tuner(PythonBackend(objective, SPACE), other, STOP, 1)


def test_the_ways_that_are_named_exist() -> None:
    named = {name for way in OUR_WAY.values() for name in re.findall(r"fanwise\.tune\.(\w+)", way)}
    assert named and named - {"simulate"} <= vars(tune).keys() and simulate.__doc__


def test_the_guide_has_what_there_is(repository: Path) -> None:
    guide = (repository / "docs" / "guides" / "from-syne-tune.md").read_text()
    assert [name for name in ("PythonBackend", "RandomSearch", "ASHA", "load_experiment") if name not in guide] == []

"""Results as files of other programs, and as a study of Optuna."""

import json
import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fanwise.base.errors import NotInstalled
from fanwise.tune import (
    ASHA,
    FIFO,
    Experiment,
    choice,
    constant,
    loguniform,
    open_search,
    parameter,
    uniform,
)
from fanwise.tune.frames import write_results


@pytest.fixture
def experiment() -> Experiment:
    """Trial 0 completes, 1 is stopped, 2 fails before it has reported, 3 is in flight."""
    space = {
        "lr": loguniform(0.001, 1),
        "optimizer": choice(["sgd", "adam"]),
        "momentum": parameter(uniform(0, 0.99), when={"optimizer": "sgd"}),
        "epochs": 4,
    }
    scheduler = ASHA(metric="loss", max_t=4, grace_period=1, reduction_factor=2, random_seed=0)
    with open_search(space, scheduler, name="mixed") as search:
        search.enqueue({"lr": 0.1, "optimizer": "sgd", "momentum": 0.5})
        search.enqueue({"lr": 0.2, "optimizer": "adam"})
        trials = [search.ask() for _ in range(4)]
        first, second, third, _ = (trial for trial in trials if trial is not None)
        search.report(first, loss=0.5, note=1.5)
        search.tell(first, 0.25)
        search.report(second, loss=0.75)
        search.fail(third, "no luck")
    return search.experiment


def test_error_message_with_an_undecodable_file_name_is_escaped(tmp_path: Path) -> None:
    with open_search({"x": uniform(0, 1)}, "loss") as search:
        search.fail(search.ask(), "no such file: caf\udce9.csv")  # type: ignore[arg-type]  # not None
    assert search.experiment.trials.reason_text.tolist() == ["no such file: caf\\udce9.csv"]
    for name in ("r.csv", "r.json", "r.sqlite"):
        search.experiment.export(tmp_path / name)


def test_csv_json_and_parquet_have_the_same_rows(experiment: Experiment, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    results = experiment.results
    for name in ("r.csv", "r.json", "r.parquet"):
        experiment.export(tmp_path / name)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "r.parquet"), results)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "r.csv"), results, check_dtype=False)
    rows = json.loads((tmp_path / "r.json").read_text())
    assert [row["loss"] for row in rows] == [0.5, 0.25, 0.75]
    assert [row["note"] for row in rows] == [1.5, None, None]
    assert [row["config_optimizer"] for row in rows] == ["sgd", "sgd", "adam"]
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["r.csv", "r.json", "r.parquet"]


def test_sqlite_has_both_tables(experiment: Experiment, tmp_path: Path) -> None:
    experiment.export(tmp_path / "r.sqlite")
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as database:
        results = pd.read_sql_query("SELECT * FROM results", database)
        trials = pd.read_sql_query("SELECT * FROM trials", database)
    pd.testing.assert_frame_equal(results, experiment.results, check_dtype=False)
    assert list(trials["trial_id"]) == list(experiment.trials["trial_id"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            [f"loss_{number}" for number in range(2001)],
            "results has 2,001 columns, and a table of SQLite has at most 2,0",
        ),
        (["loss", "lr", "Loss"], "results has the columns 'loss' and 'Loss', which are one column for SQLite"),
    ],
)
def test_columns_that_sqlite_cannot_store_are_refused_and_leave_no_file(
    names: list[str], message: str, tmp_path: Path
) -> None:
    frame = pd.DataFrame({name: [0.5] for name in names})
    with pytest.raises(ValueError, match=message):
        write_results(frame, frame, tmp_path / "r.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_json_has_all_digits_and_null_for_nan_and_infinity(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1 / 3, 1e-20 / 3, 5e300, math.nan, math.inf]
    frame = pd.DataFrame({"x": values, "n": range(6), "layers": [[1, 2.5]] * 6, "flag": [True] * 6})
    write_results(frame, frame, tmp_path / "r.json")
    rows = json.loads((tmp_path / "r.json").read_text())
    assert [row["x"] for row in rows] == [*values[:4], None, None]
    assert rows[2] == {"x": 1e-20 / 3, "n": 2, "layers": [1, 2.5], "flag": True}


def test_lists_are_json_text_in_sqlite(tmp_path: Path) -> None:
    frame = pd.DataFrame({"layers": [[1, 2.5]]})
    write_results(frame, frame, tmp_path / "r.sqlite")
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as database:
        assert database.execute("SELECT layers FROM results").fetchall() == [("[1,2.5]",)]


def test_column_of_numbers_and_text_is_text_in_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"loss": [0.5, 0.25, 1.0], "config_depth": [3, "auto", None]})
    write_results(frame, frame, tmp_path / "r.parquet")
    read = pd.read_parquet(tmp_path / "r.parquet")
    assert list(read["config_depth"][:2]) == ["3", "auto"] and read["config_depth"].isna()[2]
    assert list(read["loss"]) == [0.5, 0.25, 1.0]


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotInstalled, match=r"pip install 'fanwise\[parquet\]'"):
        write_results(pd.DataFrame(), pd.DataFrame(), tmp_path / "r.parquet")
    assert not any(tmp_path.iterdir())


def test_unknown_suffix_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.csv, \.json, \.parquet, \.sqlite, got 'r\.xlsx'"):
        write_results(pd.DataFrame(), pd.DataFrame(), tmp_path / "r.xlsx")
    assert not any(tmp_path.iterdir())


def test_optuna_study_has_the_trials_with_their_distributions(experiment: Experiment) -> None:
    optuna: Any = pytest.importorskip("optuna")
    study = experiment.to_optuna()
    assert study.study_name == "mixed" and study.direction.name == "MINIMIZE"
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL", "PRUNED"]
    first, second, third, _ = study.trials
    assert first.params == {"lr": 0.1, "optimizer": "sgd", "momentum": 0.5, "epochs": 4}
    assert first.distributions["lr"] == optuna.distributions.FloatDistribution(0.001, 1, log=True)
    assert (first.value, first.intermediate_values) == (0.25, {1: 0.5, 2: 0.25})
    assert "momentum" not in second.params and second.intermediate_values == {1: 0.75}
    assert third.user_attrs == {"trial_id": 2, "reason": "exception: no luck"}
    assert first.datetime_complete >= first.datetime_start
    assert study.best_trial.number == 0


def test_optuna_study_has_only_reports_that_count() -> None:
    pytest.importorskip("optuna")
    for loss in (0.75, 0.5):  # reports without a checkpoint are void when the trial resumes
        with open_search({"x": uniform(0, 1)}, "loss", name="void") as search:
            trial = search.ask()
            assert trial is not None and trial.trial_id == 0
            search.report(trial, loss=loss)
            if trial.attempt:
                search.tell(trial)
            else:
                search.report(trial, loss=loss)
    (only,) = search.experiment.to_optuna().trials
    assert (only.value, only.intermediate_values) == (0.5, {1: 0.5})


def test_optuna_study_has_the_direction_of_each_objective() -> None:
    pytest.importorskip("optuna")
    scheduler = FIFO(metric=["error", "accuracy"], mode=["min", "max"])
    with open_search({"x": uniform(0, 1)}, scheduler, name="two") as search:
        trial = search.ask()
        assert trial is not None
        search.tell(trial, {"error": 0.25, "accuracy": 0.75})
    study = search.experiment.to_optuna()
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.trials[0].values == [0.25, 0.75]


def test_constant_without_an_optuna_type_is_refused() -> None:
    pytest.importorskip("optuna")
    with open_search({"x": uniform(0, 1), "layers": constant([8, 8])}, "loss", name="lists") as search:
        pass
    with pytest.raises(ValueError, match="the constant 'layers' cannot be converted"):
        search.experiment.to_optuna()

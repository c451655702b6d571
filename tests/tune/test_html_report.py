"""The HTML report of an experiment."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from recorded_search import RecordedSearch

from fanwise.tune import html_report
from fanwise.tune.experiment import Experiment
from fanwise.tune.record.log import Record
from fanwise.tune.record.trials import Failure

pytestmark = pytest.mark.usefixtures("fonts")

ATTACK = "<b>bold</b><script>alert(1)</script><img src=x>"


def record(folder: Path, write: Callable[[RecordedSearch], None], **meta: object) -> Experiment:
    settings = {
        "name": folder.name,
        "objective": "train",
        "metric": "error",
        "mode": "min",
        "objectives": [["error", "min"]],
        "n_workers": 2,
        "seed": 1,
        "stop": {"max_num_trials_started": 20},
        "space": {"x": {"domain": "uniform", "lower": 0.0, "upper": 1.0}, "epochs": {"constant": 2}},
        "versions": {"fanwise": "9.8.7"},
    }
    with Record.create(folder, {**settings, **meta}) as log:
        write(RecordedSearch(log.append))
        log.commit()
    return Experiment(folder)


def write_trials(search: RecordedSearch) -> None:
    for trial_id in range(4):
        search.start(trial_id, trial_id, {"x": trial_id / 8, "epochs": 2}, slot=trial_id % 2)
        search.ready(trial_id + 0.1, trial_id)
        decision = "STOP" if trial_id == 1 else "CONTINUE"
        search.report(trial_id + 0.5, trial_id, 1, {"error": 0.5 / (1 + trial_id), "size": 1.0}, decision=decision)
        if trial_id == 3:
            reason = {"kind": "exception", "text": ATTACK, "traceback": f"{ATTACK}\nline", "last_output": ""}
            search.end(trial_id + 0.6, trial_id, "Failed", 0.5, reason=reason)
        else:
            search.end(trial_id + 0.6, trial_id, "Completed", 0.5)
        search.free(trial_id + 0.6, trial_id)
    search.finish(20.0, ATTACK)


def report_of(experiment: Experiment) -> str:
    path = experiment.path.parent / "report.html"
    experiment.report(path)
    return path.read_text()


def test_a_report_contains_best_configuration_figures_trials_failures_and_environment(tmp_path: Path) -> None:
    text = report_of(record(tmp_path / "search", write_trials))
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == [
        "Best configuration",
        "Search",
        "Incumbent",
        "Learning curves",
        "Workers",
        "Rungs",
        "Trials",
        "Failures",
        "Environment",
    ]
    assert text.count("<svg") == 4
    assert "0.125" in text and "trial 3, report 1" in text
    assert re.findall("<tr><td>([0-9]+)</td>", text) == ["3", "2", "1", "0"], "the best trial is first"
    assert "<dt>fanwise</dt><dd>9.8.7</dd>" in text


def test_a_report_contains_no_script_and_loads_nothing(tmp_path: Path) -> None:
    space = {ATTACK: {"domain": "choice", "categories": [ATTACK, "b"]}}
    meta = {"name": ATTACK, "objective": ATTACK, "metric": ATTACK, "objectives": [[ATTACK, "min"]], "space": space}

    def write(search: RecordedSearch) -> None:
        write_trials(search)
        search.start(30.0, 9, {ATTACK: ATTACK})
        search.ready(30.1, 9)
        search.report(30.5, 9, 1, {ATTACK: 0.5})

    text = report_of(record(tmp_path / "search", write, **meta))
    assert "<script" not in text and "<b>" not in text and "<img" not in text
    assert "default-src 'none'" in text
    loaded = re.findall(r"""<[a-z][^>]* (?:xlink:)?(?:src|href)=["']([^"']+)""", text)
    assert loaded and all(address.startswith(("#", "data:image/png;base64,")) for address in loaded)


def test_a_search_without_reports_has_a_report(tmp_path: Path) -> None:
    text = report_of(record(tmp_path / "empty", lambda search: None))
    assert "no report" in text and "Failures" not in text


def test_several_objectives_add_the_pareto_front(tmp_path: Path) -> None:
    objectives = [["error", "min"], ["size", "max"]]
    text = report_of(record(tmp_path / "search", write_trials, objectives=objectives))
    assert "<h2>Pareto front</h2>" in text


def test_thousands_of_trials_make_a_small_report(tmp_path: Path) -> None:
    def write(search: RecordedSearch) -> None:
        for trial_id in range(3_000):
            search.start(trial_id, trial_id, {"x": trial_id / 3_000, "epochs": 2}, slot=trial_id % 2)
            search.ready(trial_id, trial_id)
            for number in range(1, 6):
                search.report(trial_id + number / 8, trial_id, number, {"error": 1 / number + trial_id})
            search.end(trial_id + 0.9, trial_id, "Completed", 0.9)
            search.free(trial_id + 0.9, trial_id)

    meta = {"space": {"epochs": {"constant": 2}}}  # without hyperparameters, no importances are computed
    text = report_of(record(tmp_path / "many", write, **meta))
    assert len(text) < 1_000_000 and text.count("<tr>") == 1 + 500
    assert "The 500 best of 3,000 trials" in text


def test_a_report_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    experiment = record(tmp_path / "search", write_trials)
    with pytest.raises(ValueError, match=r"end in \.html, got .*report\.pdf"):
        experiment.report(tmp_path / "report.pdf")
    with pytest.raises(FileNotFoundError, match=r"none/report\.html"):
        experiment.report(tmp_path / "none" / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OSError, match=r"folder\.html"):
        experiment.report(tmp_path / "folder.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "search"]


def test_a_trial_id_of_a_damaged_record_is_escaped() -> None:
    failure = Failure("exception", "no", None, None)
    assert "<script" not in "".join(html_report._failures([(cast(Any, ATTACK), failure)]))

"""On a full machine some of the reports that pour in are passed over; what is told of the search stays right."""

import time
from pathlib import Path
from typing import Any

import pytest

from fanwise.board.watching import Home
from fanwise.testing.recorded_search import RecordedSearch
from fanwise.tune.record.writer import Record

META = {
    "name": "poured",
    "objective": "train",
    "metric": "error",
    "mode": "min",
    "objectives": [["error", "min"]],
    "n_workers": 1,
    "seed": 1,
    "stop": {"max_num_evaluations": 100_000},
    "space": {"lr": {"domain": "uniform", "lower": 0.0, "upper": 1.0}},
}
POURED = 3_001  # by chance a multiple of nothing


@pytest.mark.parametrize("busy", [0.5, 1.0])
def test_reports_that_pour_in_are_all_read_when_the_search_has_ended(tmp_path: Path, busy: float) -> None:
    watched = None
    with Record.create(tmp_path / "poured", META) as record:

        def add(t_s: float, kind: str, trial_id: int | None, body: dict[str, Any]) -> None:  # Any: JSON
            record.append(t_s, kind, trial_id, body)

        search = RecordedSearch(add)
        search.start(0.0, 0, {"lr": 0.5})
        search.ready(0.1, 0)
        record.commit()
        watched = Home(tmp_path, busy=lambda: busy).watched("poured")
        assert watched.summary()["best"] is None
        for number in range(1, POURED + 1):
            search.report(0.1 + number * 1e-4, 0, number, {"error": 1.0 if number != 1_501 else 0.25})
        best = {"finished": False, "best": [0.25, 0, ""], "num_trials": 1, "num_running": 1, "num_paused": 0}
        summary = {**best, "num_over": {}, "last_s": 1.0, "reason": None}
        record.set_meta({"summary": summary})
        record.commit()
        watched.hurry()
        running = watched.summary()
        assert running["state"] == "running" and running["best"]["value"] == 0.25
        assert running["num_reports"] == pytest.approx(POURED, abs=20)
        assert (running["num_read"] is not None and running["num_read"] < POURED / 5) == (busy == 1.0)
        search.end(2.0, 0, "Completed", 1.9)
        search.free(2.0, 0)
        search.finish(2.0, "done")
        record.commit()
    watched.hurry()
    over = watched.summary()
    assert (over["state"], over["num_reports"], over["num_read"]) == ("finished", POURED, None)
    assert (over["best"]["value"], watched.trial(0)["reports"]) == (0.25, POURED)
    assert min(watched.view("curves")["curves"][0]["v"]) == 0.25


@pytest.mark.parametrize("age_s", [1.0, 1_000.0])
def test_a_page_that_is_opened_late_reads_no_more_than_one_that_was_open_from_the_beginning(
    tmp_path: Path, age_s: float
) -> None:
    with Record.create(tmp_path / "poured", {**META, "created_s": time.time() - age_s}) as record:
        search = RecordedSearch(record.append)
        search.start(0.0, 0, {"lr": 0.5})
        search.ready(0.1, 0)
        for number in range(1, POURED + 1):
            search.report(0.1 + number * 1e-4, 0, number, {"error": 1.0})
        record.commit()
        running = Home(tmp_path, busy=lambda: 1.0).watched("poured").summary()
        assert (running["num_read"] is not None) == (age_s == 1.0)
    over = Home(tmp_path, busy=lambda: 1.0).watched("poured").summary()
    assert (over["state"], over["num_reports"], over["num_read"]) == ("broken-off", POURED, None)

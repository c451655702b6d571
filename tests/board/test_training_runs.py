"""Training runs on the board, from their status files."""

from typing import Any

import pytest
from program_statuses import run_status

from fanwise.board.training_runs import list_runs
from fanwise.links.status_files import Status


def test_a_run_counts_the_ranks_that_are_left() -> None:
    (line,) = list_runs([run_status()])
    assert (line["name"], line["host"], line["world_size"], line["num_devices"]) == ("train", "node7", 1, 2)


def test_the_newest_run_comes_first() -> None:
    old, new = run_status("run-1-a", elapsed_s=50.0), run_status("run-2-b", elapsed_s=1.0)
    assert [run["key"] for run in list_runs([old, new])] == ["run-2-b", "run-1-a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": 3},
        {"elapsed_s": "long"},
        {"devices": None},
        {"ranks": [{}]},
    ],
)
def test_a_status_of_another_form_is_left_out(changes: dict[str, Any]) -> None:
    statuses = [run_status("run-2-b", **changes), run_status()]
    assert [run["key"] for run in list_runs(statuses)] == ["run-1-a"]


def test_other_kinds_of_status_are_left_out() -> None:
    assert list_runs([Status("x-1-a", "x", "h", 1, 1.0, {})]) == []

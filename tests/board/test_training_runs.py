"""Training runs on the board, from their status files."""

from typing import Any

import pytest
from program_statuses import run_status

from fanwise.board.experiments import training_runs
from fanwise.links.status_files import Status


def test_a_run_counts_the_ranks_that_are_left() -> None:
    (line,) = training_runs([run_status()])
    assert (line["name"], line["host"], line["world_size"], line["pid"]) == ("train", "node7", 1, 4711)


def test_the_newest_run_comes_first() -> None:
    old, new = run_status(name="old", elapsed_s=50.0), run_status(name="new", elapsed_s=1.0)
    assert [run["name"] for run in training_runs([old, new])] == ["new", "old"]


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": 3},
        {"elapsed_s": "long"},
        {"ranks": [{}]},
    ],
)
def test_a_status_of_another_form_is_left_out(changes: dict[str, Any]) -> None:
    statuses = [run_status(name="other", **changes), run_status()]
    assert [run["name"] for run in training_runs(statuses)] == ["train"]


def test_other_kinds_of_status_are_left_out() -> None:
    assert training_runs([Status("x", "h", 1, 1.0, {})]) == []

"""Trainings and groups that run, as the board puts together what their processes say."""

import hashlib
from typing import Any

import pytest

from fanwise.board.programs import program_of, programs_of
from fanwise.links.status_files import Status
from fanwise.testing.program_statuses import RATES, run_status, worker_status


def test_a_run_counts_the_ranks_that_are_left() -> None:
    (line,) = programs_of([run_status()])["runs"]
    assert (line["name"], line["host"], line["world_size"], line["num_devices"]) == ("train", "node7", 1, 2)
    assert "past" not in line and "ranks" not in line
    whole = program_of([run_status()], "run-1-a")
    assert whole is not None and whole["past"] == [[100.0, 12.5, None]]
    assert [rank["state"] for rank in whole["ranks"]] == ["running", "lost"]


def test_the_newest_run_comes_first() -> None:
    old, new = run_status("run-1-a", elapsed_s=50.0), run_status("run-2-b", elapsed_s=1.0)
    assert [run["key"] for run in programs_of([old, new])["runs"]] == ["run-2-b", "run-1-a"]


def test_the_workers_of_a_group_are_added_up() -> None:
    said = [worker_status(2), worker_status(0), worker_status(1, said_s=104.5), worker_status(0, group="file:/x")]
    first, second = programs_of(said)["groups"]
    assert (first["name"], second["name"]) == ("file:/x", "localhost:29500")
    assert second["a_second"] == dict.fromkeys(RATES, 60.0) and second["calls_waiting"] == 3
    assert (second["workers"], second["workers_here"]) == (3, 3) and first["workers_here"] == 1
    whole = program_of(said, f"group-{hashlib.sha256(b'port:29500').hexdigest()[:16]}")
    assert whole is not None and [one["name"] for one in whole["members"]] == ["w0", "w1", "w2"]
    assert whole["past"] == [[102.0, 60.0, 3.0, 3.0], [103.0, 60.0, 3.0, 3.0], [104.0, 60.0, 3.0, 3.0]]


def test_a_worker_that_has_said_nothing_for_long_adds_nothing_to_the_curve() -> None:
    silent = worker_status(1, said_s=105.0, past=[[90.0, 20.0, 1.0, 1], [105.0, 20.0, 1.0, 1]])
    (group,) = programs_of([worker_status(0, said_s=105.0), silent])["groups"]
    whole = program_of([worker_status(0, said_s=105.0), silent], group["key"])
    assert whole is not None
    made = {point[0]: point[1] for point in whole["past"]}
    assert made[95.0] == 20.0 and made[101.0] == 0.0 and made[104.0] == 10.0 and made[105.0] == 30.0


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": 3},
        {"past": [[1.0]]},
        {"past": [["x", 1.0, 1.0]]},
        {"past": [[None, 1.0, 1.0]]},
        {"elapsed_s": "long"},
        {"devices": None},
        {"ranks": [{}]},
    ],
)
def test_what_another_version_says_is_left_out(changes: dict[str, Any]) -> None:
    said = [run_status("run-2-b", **changes), run_status()]
    assert [run["key"] for run in programs_of(said)["runs"]] == ["run-1-a"]
    assert program_of(said, "run-2-b") is None


def test_unknown_kinds_and_keys_are_nothing() -> None:
    assert programs_of([Status("x-1-a", "x", "h", 1, 1.0, {})]) == {"runs": [], "groups": []}
    assert program_of([run_status(), worker_status(0)], "group-0") is None

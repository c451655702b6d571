"""The status file of a run, which boards read."""

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from fanwise.links.status_files import ask_for_statuses, statuses
from fanwise.parallel.progress import Display, RunSnapshot

SNAPSHOT = RunSnapshot("train", ("cpu", "cpu"), 1, 3, 40, 100, 12.5, 0.5, 9.0, 4.0)


@pytest.fixture(autouse=True)
def folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="r-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        yield


def test_a_board_hears_of_a_run_that_is_shown_nowhere() -> None:
    ask_for_statuses()
    published = Display(False)
    published.rank_states = lambda: ["running", "lost"]
    published.show(SNAPSHOT)
    (status,) = statuses()
    body: dict[str, Any] = dict(status.body)  # Any: JSON
    assert (body["name"], body["samples_per_s"], body["loss"], body["epoch"]) == ("train", 12.5, 0.5, 1)
    assert body["ranks"] == [{"state": "running"}, {"state": "lost"}]
    published.close()
    assert statuses() == []

"""The status file of a run, which boards read."""

import functools
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.links.status_files import Status, ask_for_statuses, statuses
from fanwise.parallel import Run
from fanwise.parallel.progress import Display, RankStatus, RunSnapshot
from fanwise.testing import within

SNAPSHOT = RunSnapshot("train", ("cpu", "cpu"), 1, 3, 40, 100, 12.5, 0.5, 9.0, 4.0)
RANKS = [RankStatus(0, 4711, ("cpu",), "running"), RankStatus(1, 0, ("cpu",), "starting")]


@pytest.fixture(autouse=True)
def folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="r-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        yield


def test_a_board_hears_of_a_run_that_is_shown_nowhere() -> None:
    ask_for_statuses()
    published = Display(False)
    published.ranks = lambda: RANKS
    published.show(SNAPSHOT)
    (status,) = statuses()
    body: dict[str, Any] = dict(status.body)  # Any: JSON
    assert (body["name"], body["samples_per_s"], body["loss"], body["epoch"]) == ("train", 12.5, 0.5, 1)
    assert [(rank["rank"], rank["pid"], rank["state"]) for rank in body["ranks"]] == [
        (0, 4711, "running"),
        (1, 0, "starting"),
    ]
    published.show(SNAPSHOT)
    assert [point[1:] for point in statuses()[0].body["past"]] == [[12.5, 0.5]] * 2
    published.close()
    assert statuses() == []


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().mean(dim=1)


def train_until_it_is_seen(run: Run, seen: list[Status]) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.01), losses)

    def look() -> bool:
        for batch in run.batches((torch.ones(32, 3),), 8):
            step(batch)
        seen[:] = statuses()
        return bool(seen)

    within(30.0, look, "the run is seen")


def test_a_run_on_one_device_is_seen_while_it_trains() -> None:
    ask_for_statuses()
    seen: list[Status] = []
    fanwise.run(functools.partial(train_until_it_is_seen, seen=seen), devices=1, progress=False)
    assert seen[0].pid == os.getpid() and seen[0].body["name"] == "train_until_it_is_seen"
    assert seen[0].body["samples_per_s"] > 0 and [rank["pid"] for rank in seen[0].body["ranks"]] == [os.getpid()]
    assert statuses() == []

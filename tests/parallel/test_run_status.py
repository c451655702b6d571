"""The status file of a run, which boards read, and the screen that is shown beside it."""

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
from fanwise.parallel.progress import NoScreen, RankStatus, RunSnapshot, StatusScreen
from fanwise.testing import within

SNAPSHOT = RunSnapshot("train", ("cpu", "cpu"), 1, 3, 40, 100, 12.5, 0.5, 9.0, 4.0)
RANKS = [RankStatus(0, 4711, ("cpu",), "running"), RankStatus(1, 0, ("cpu",), "starting")]


@pytest.fixture(autouse=True)
def folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="r-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        yield


class LogOfElapsed:
    """A screen that wants to be shown every 10 s."""

    first_s, every_s = 10.0, 10.0

    def __init__(self) -> None:
        self.shown: list[tuple[float, bool]] = []

    def show(self, snapshot: RunSnapshot) -> None:
        self.shown.append((snapshot.elapsed_s, snapshot.is_over))

    def close(self) -> None:
        self.shown.append((-1.0, True))


def at(elapsed_s: float, *, is_over: bool = False) -> RunSnapshot:
    return RunSnapshot("train", (), None, None, 1, None, None, None, None, elapsed_s, is_over=is_over)


def test_a_board_hears_of_a_run_that_is_shown_nowhere() -> None:
    ask_for_statuses()
    published = StatusScreen(NoScreen(), lambda: RANKS)
    assert (published.first_s, published.every_s) == (1.0, 1.0)
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


def test_the_screen_of_a_run_is_shown_as_often_as_without_a_board() -> None:
    screen = LogOfElapsed()
    published = StatusScreen(screen, list)
    for second in range(1, 26):
        published.show(at(second))
    published.show(at(25.5, is_over=True))
    published.close()
    assert screen.shown == [(10, False), (20, False), (25.5, True), (-1.0, True)]
    assert statuses() == []


def test_a_run_that_was_too_short_for_its_screen_shows_no_end_either() -> None:
    screen = LogOfElapsed()
    published = StatusScreen(screen, list)
    published.show(at(1.0))
    published.show(at(2.0, is_over=True))
    published.close()
    assert screen.shown == [(-1.0, True)]


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

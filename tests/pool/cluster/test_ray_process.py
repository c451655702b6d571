"""The process that calls Ray: its start, and the reaction of the pool to its end."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanwise.links.hub import Hub
from fanwise.pool.cluster import starting
from fanwise.pool.cluster.starting import ClusterStart, Event, RayProcess
from fanwise.pool.settings import ClusterSettings


def test_modules_in_the_working_folder_do_not_shadow_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    events: list[Event] = []
    ended = threading.Event()

    def record(news: Event) -> None:
        events.append(news)
        if news["kind"] == "gone":
            ended.set()

    process = RayProcess({"address": "127.0.0.1:1", "folder": str(tmp_path / "pool")}, tmp_path / "log", record)
    try:
        assert ended.wait(60)
    finally:
        process.close()
    assert [news["kind"] for news in events] == ["fatal", "gone"]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[ClusterStart]:
    """The starts of a driver process, which is not started, without pauses."""
    starts: list[ClusterStart] = []
    monkeypatch.setattr(ClusterStart, "_start_process", lambda self: starts.append(self))
    monkeypatch.setattr(starting, "_PAUSE_S", 0.0)
    return starts


@pytest.fixture
def started(starts: list[ClusterStart], tmp_path: Path) -> Iterator[ClusterStart]:
    """A pool that had begun on a cluster."""
    hub = Hub(name="test")
    start = ClusterStart(hub, tmp_path, ClusterSettings("10.0.0.1:6379", (), None, 60.0), seed=0)
    start._on_event({"kind": "settled", "hosts": ["node 1"]})
    yield start
    hub.close()


def lose_the_cluster(start: ClusterStart) -> None:
    start._on_event({"kind": "fatal", "why": "no-cluster", "text": "connection refused"})
    start._on_event({"kind": "gone", "text": "exit code 0"})


def test_a_lost_cluster_is_tried_again_with_one_warning_until_it_answers(
    started: ClusterStart, starts: list[ClusterStart], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        lose_the_cluster(started)
    assert len(starts) == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "connection refused" in caplog.text
    started._on_event({"kind": "settled", "hosts": ["node 2"]})
    lose_the_cluster(started)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_process_that_cannot_be_started_is_tried_again(
    started: ClusterStart, starts: list[ClusterStart], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OSError(errno.EAGAIN, "no more processes")]

    def fails_once() -> None:
        if errors:
            raise errors.pop()
        starts.append(started)

    monkeypatch.setattr(started, "_start_process", fails_once)
    lose_the_cluster(started)
    assert not errors and starts == [started]

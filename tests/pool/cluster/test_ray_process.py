"""The process that calls Ray: its start, and the reaction of the pool to its end."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest

from fanwise.base.errors import ClusterError
from fanwise.links.hub import Hub
from fanwise.pool.cluster import starting
from fanwise.pool.cluster.starting import ClusterStart, Event, RayProcess
from fanwise.pool.contract import JobEvents, JobRequest
from fanwise.pool.functions import pack
from fanwise.pool.leases import Resources
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


class Clock:
    """Time in which `Event.wait` of the same object passes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        self.pauses.append(seconds)
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(starting, "time", clock)
    return clock


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="test")
    yield hub
    hub.close()


@pytest.fixture
def started(hub: Hub, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterStart:
    """A pool that had begun on a cluster; no process is started again."""
    monkeypatch.setattr(ClusterStart, "_start_process", lambda self: None)
    start = ClusterStart(hub, tmp_path, ClusterSettings("10.0.0.1:6379", (), None, 60.0), seed=0)
    monkeypatch.setattr(start, "_closing", clock)
    start._on_event({"kind": "settled", "hosts": ["node 1"]})
    return start


def lose_the_cluster(start: ClusterStart) -> None:
    start._on_event({"kind": "fatal", "why": "no-cluster", "text": "connection refused"})
    start._on_event({"kind": "gone", "text": "exit code 0"})


def test_a_cluster_that_stays_away_is_given_up_with_one_warning_and_one_error(
    started: ClusterStart, hub: Hub, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    tries = -1
    while tries < len(clock.pauses) < 1000:  # the process is started again after each pause
        tries = len(clock.pauses)
        lose_the_cluster(started)
    hub.turn()
    assert clock.pauses[:6] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert 1700 < clock.now_s <= 1800
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert all("connection refused" in record.getMessage() for record in caplog.records)
    with pytest.raises(ClusterError, match="has not answered for 30 minutes"):
        started.engine.submit(JobRequest(pack(int, ()), Resources()), cast(JobEvents, None))


def test_a_process_that_cannot_be_started_is_another_try(
    started: ClusterStart, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> NoReturn:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(started, "_start_process", fails)
    lose_the_cluster(started)
    assert len(clock.pauses) > 50


def test_a_cluster_that_comes_back_after_minutes_is_used_again_and_its_next_loss_is_another(
    started: ClusterStart, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        lose_the_cluster(started)
    assert clock.now_s > 200
    started._on_event({"kind": "settled", "hosts": ["node 2"]})
    clock.now_s += 3600
    lose_the_cluster(started)
    assert clock.pauses[-1] == 2.0
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_cluster_that_is_lost_again_at_once_is_not_warned_of_each_time(
    started: ClusterStart, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        lose_the_cluster(started)
        started._on_event({"kind": "settled", "hosts": ["node 2"]})
    assert [record.levelname for record in caplog.records] == ["WARNING"]

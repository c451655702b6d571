"""Closing a pool, and pools whose processes cannot be started."""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from gates import Gate
from job_functions import local_engine, submitted

from fanwise.base.errors import ClosedError, WorkerLostError
from fanwise.pool import JobHandle, Pool, current
from fanwise.pool.contract import JobRequest
from fanwise.testing import within


def test_an_unused_pool_starts_no_engine() -> None:
    pool = Pool(cpus=1)
    assert pool._life.engine is None and pool._life.hub is None
    pool.close()
    with pytest.raises(ClosedError, match="this pool is closed"):
        pool.submit(int)


def test_close_ends_running_and_queued_jobs_and_may_be_called_twice(gate: Gate) -> None:
    pool = Pool(cpus=1, seed=1)
    running, queued = (submitted(pool.submit(gate.wait)) for _ in range(2))
    assert running.wait_began(60)
    threads = [threading.Thread(target=pool.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    for handle in (running, queued):
        assert handle.done()
        assert handle.outcome(0).kind == "stopped"
        assert "was ended because its pool was closed" in handle.outcome(0).text
    for use in (lambda: pool.submit(int), lambda: pool._engine):
        with pytest.raises(ClosedError, match="this pool is closed"):
            use()
    running.stop()
    queued.kill()
    assert not pool._life.folder.exists()


def test_a_job_that_fails_while_the_pool_closes_is_not_retried(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("always")

    pool = Pool(cpus=1)
    handles = [submitted(pool.needs(retries=1_000_000).submit(fail)) for _ in range(2)]
    within(60, lambda: handles[0].attempt > 3, "some retries were made")
    pool.close()
    assert all(handle.done() for handle in handles)


def test_the_error_of_a_refused_retry_is_raised(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        gate.wait()
        raise ValueError("always")

    def refuse(request: JobRequest, events: object) -> NoReturn:
        raise ClosedError("the engine is closed.")

    with Pool(cpus=1) as pool:
        handle = submitted(pool.needs(retries=3).submit(fail))
        monkeypatch.setattr(local_engine(pool), "submit", refuse)
        gate.open()
        with pytest.raises(ClosedError, match="the engine is closed"):
            handle.result(within_s=60)


def test_submits_that_race_with_close_end_or_are_refused() -> None:
    pool = Pool(cpus=2)
    pool.submit(int).result(within_s=60)
    handles: list[JobHandle] = []
    refused = threading.Event()

    def submit() -> None:
        try:
            while True:
                handles.append(submitted(pool.submit(int)))
        except ClosedError:
            refused.set()

    thread = threading.Thread(target=submit)
    thread.start()
    within(30, lambda: len(handles) > 20, "jobs are submitted")
    pool.close()
    thread.join()
    assert refused.is_set()
    assert all(handle.done() for handle in handles)


def test_finished_jobs_leave_nothing_in_tables_and_folder() -> None:
    with Pool(cpus=2, seed=1) as pool:
        handles = [submitted(pool.submit(lambda value, number=number: value + number, 1)) for number in range(50)]
        assert [handle.result(within_s=60) for handle in handles] == [number + 1 for number in range(50)]
        engine = local_engine(pool)
        within(30, lambda: engine.ledger.leases == {} and len(engine._workers._workers) == 0, "all leases are back")
        assert (engine._jobs, engine._backlog._queues, engine._unsettled) == ({}, {}, set())
        workers, interpreters = engine.worker_set, engine.worker_set.interpreters
        assert (workers._starts, workers._processes, len(interpreters._all)) == ({}, {}, 1)
        warm = workers._warm
        assert warm is not None and (warm.pids, warm.loading, warm.unanswered, warm.when_linked) == ({}, {}, 0, [])
        assert len(warm.prepared) <= 32
        within(30, lambda: len(interpreters._links) == 2, "only the links of supervisor and warm process are left")
        assert engine.finished == 50
        folder = pool._life.folder
        within(30, lambda: len(os.listdir(folder)) == 3, "only the socket and two logs are left in the folder")
        assert all(handle._job is None and handle._request is None for handle in handles)


@pytest.mark.parametrize("error", ["nowhere/python", "no such library"])
def test_every_job_reports_that_no_process_can_be_started(
    error: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executable = tmp_path / "nowhere" / "python"
    if error == "no such library":
        executable = tmp_path / "python"
        executable.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
        executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    with Pool(cpus=1) as pool:
        for _ in range(2):
            with pytest.raises(WorkerLostError, match=rf"supervisor(.|\n)*{error}"):
                pool.submit(int).result(within_s=30)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_callback_that_is_added_during_closing_is_called() -> None:
    added, was_done = threading.Event(), []

    def hold(_: object) -> str:
        assert added.wait(30)
        return "CONTINUE"

    pool = Pool(cpus=1)
    job = pool.needs(on_report=hold).submit(lambda: current().report(1))
    assert isinstance(job, JobHandle) and job.wait_began(within_s=60)
    closing = threading.Thread(target=pool.close)
    closing.start()
    within(30, lambda: pool._life.closed, "the pool closes")
    job.add_done_callback(lambda job: was_done.append(job.done()))
    added.set()
    closing.join(30)
    assert was_done == [True]

"""The end of a pool, what is left of its jobs then and before, and pools that cannot begin."""

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from gates import Gate
from job_functions import local_engine, submitted

from fanwise.base.errors import ClosedError, WorkerLostError
from fanwise.pool import JobHandle, Pool, current
from fanwise.pool.contract import JobRequest
from fanwise.pool.functions import pack
from fanwise.pool.leases import Resources
from fanwise.testing import within


def closure(offset: int) -> Callable[[int], int]:
    return lambda value: value + offset


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_pool_that_was_never_used_takes_no_process_from_the_next_one() -> None:
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
    for use in (lambda: pool.submit(int), lambda: pool._engine, lambda: pool._hub):
        with pytest.raises(ClosedError, match="this pool is closed"):
            use()
    running.stop()
    queued.kill()
    assert not pool._life.folder.exists()


def test_close_while_the_first_process_is_still_starting_leaves_nothing() -> None:
    pool = Pool(cpus=1)
    handle = submitted(pool.submit(int))
    pool.close()
    assert handle.outcome(0).kind in ("stopped", "returned")


def test_a_job_that_fails_as_the_pool_closes_is_not_tried_again(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("always")

    pool = Pool(cpus=1)
    handles = [submitted(pool.needs(retries=1_000_000).submit(fail)) for _ in range(2)]
    within(60, lambda: handles[0].attempt > 3, "some retries were made")
    pool.close()
    assert all(handle.done() for handle in handles)


def test_a_job_whose_retry_is_refused_ends_with_that_error(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_is_kept_of_50_finished_jobs() -> None:
    with Pool(cpus=2, seed=1) as pool:
        handles = [submitted(pool.submit(closure(number), 1)) for number in range(50)]
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


def test_a_submitter_that_fails_when_told_does_not_stop_the_pool(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        def __getattr__(self, name: str) -> Any:  # Any: every event
            return functools.partial(self._fail, name)

        def _fail(self, name: str, *_: object) -> None:
            told.append(name)
            raise RuntimeError(name)

    def void(_: object) -> None:
        """What is handed to the hub returns nothing."""

    told: list[str] = []
    engine = local_engine(pool)
    pool._hub.call_soon(lambda: void(engine.submit(JobRequest(pack(int), Resources()), Bad())))
    within(30, lambda: told == ["on_ready", "on_ended", "on_free"], "it was told of everything")
    assert pool.submit(abs, -3).result(within_s=30) == 3
    assert caplog.text.count("an event handler of a job failed") == 3


def test_no_process_can_be_started_is_told_by_the_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with (
        Pool(cpus=1) as pool,
        pytest.raises(WorkerLostError, match=r"supervisor(.|\n)*could not be started.*/nowhere"),
    ):
        pool.submit(int).result(within_s=30)


def test_an_interpreter_that_cannot_start_is_told_by_every_job_and_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with Pool(cpus=1) as pool:
        for _ in range(2):
            with pytest.raises(WorkerLostError, match=r"supervisor(.|\n)*no such library"):
                pool.submit(int).result(within_s=30)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_callback_that_is_added_while_the_pool_closes_is_called_when_the_job_is_done() -> None:
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

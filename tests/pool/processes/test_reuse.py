"""Reused processes: when they are kept, replaced and dismissed."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from job_functions import local_engine, submitted

from fanwise.base.errors import TrialStopped
from fanwise.pool import JobHandle, Pool, current
from fanwise.pool.pool import Submitter
from fanwise.testing import within

Open = Callable[..., None]

MiB = 1 << 20


@pytest.fixture
def idle_pool(pool: Pool) -> Iterator[Pool]:
    """The pool, without idle processes of other tests."""
    assert local_engine(pool).ledger.leases == {}
    yield pool
    pool.needs(cpus=2).submit(int).result(within_s=30)  # dismisses idle processes
    within(10, lambda: local_engine(pool).ledger.leases == {}, "no process is kept")


def pid_of_job(needs: Submitter, function: Callable[..., object] = os.getpid, *args: object) -> int:
    handle = submitted(needs.submit(function, *args))
    handle.outcome(within_s=60)
    assert handle.pid is not None
    return handle.pid


def has_ended(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_the_same_process_runs_job_after_job(idle_pool: Pool) -> None:
    reuse = idle_pool.needs(reuse=True)
    handles = [submitted(reuse.submit(abs, -number)) for number in range(10)]
    assert [handle.result(within_s=60) for handle in handles] == [*range(10)]
    assert len({handle.pid for handle in handles}) <= 2  # two CPUs
    assert [handle.how for handle in handles].count("reuse") >= 8


def test_each_job_has_its_own_seed_output_and_environment(
    idle_pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def environment_of_job() -> tuple[int, str | None, str, bool]:
        print("hello from", current().number)
        folder, left = os.getcwd(), "FANWISE_TEST_LEFT" in os.environ
        os.chdir("/")
        os.environ["FANWISE_TEST_LEFT"] = "behind"
        return random.getrandbits(60), os.environ.get("FANWISE_TEST_COLOUR"), folder, left

    first = idle_pool.needs(reuse=True, number=1).submit(environment_of_job)
    one = first.result(within_s=60)
    monkeypatch.setenv("FANWISE_TEST_COLOUR", "blue")
    monkeypatch.chdir(tmp_path)
    second = idle_pool.needs(reuse=True, number=2).submit(environment_of_job)
    two = second.result(within_s=60)
    assert isinstance(first, JobHandle) and isinstance(second, JobHandle)
    assert first.pid == second.pid
    assert first.output()[0] == "hello from 1" and second.output()[0] == "hello from 2"
    assert one[0] != two[0]
    assert (one[1], two[1], two[2]) == (None, "blue", str(tmp_path))
    assert (one[3], two[3]) == (False, False)
    three = idle_pool.needs(reuse=True, number=2).submit(environment_of_job).result(within_s=60)
    assert three == two  # changes by the previous job are undone
    monkeypatch.delenv("FANWISE_TEST_COLOUR")
    assert idle_pool.needs(reuse=True, number=1).submit(environment_of_job).result(within_s=60)[:2] == (one[0], None)


def fail() -> None:
    raise ValueError("no")


def test_a_process_is_replaced_after_an_exception(idle_pool: Pool) -> None:
    reuse = idle_pool.needs(reuse=True)
    reused_pid = pid_of_job(reuse)
    assert pid_of_job(reuse, fail) == reused_pid
    assert pid_of_job(reuse) != reused_pid
    within(30, lambda: has_ended(reused_pid), "the old process has ended")


def test_a_process_is_kept_only_if_it_was_stopped_in_a_report(idle_pool: Pool) -> None:
    def obey() -> None:
        if current().report(1).ends:
            raise TrialStopped("stopped")

    reuse = idle_pool.needs(reuse=True, on_report=lambda values: "STOP")
    reused_pid = pid_of_job(reuse)
    assert pid_of_job(reuse, obey) == reused_pid
    handle = reuse.submit(signal.pause)
    assert isinstance(handle, JobHandle) and handle.wait_began(30) and handle.pid == reused_pid
    handle.stop()
    assert handle.outcome(within_s=30).kind == "stopped"
    assert pid_of_job(reuse) != reused_pid


def test_a_process_that_has_grown_is_replaced(idle_pool: Pool) -> None:
    def grow(mib: int) -> int:
        random.__dict__.setdefault("fanwise_test_kept", []).append(bytearray(b"x" * (mib * MiB)))
        return os.getpid()

    reuse = idle_pool.needs(reuse=True)
    first = pid_of_job(reuse)
    assert pid_of_job(reuse, grow, 10) == first
    assert pid_of_job(reuse, grow, 500) == first
    assert pid_of_job(reuse) != first


def test_idle_processes_are_dismissed_for_jobs_that_need_their_lease(idle_pool: Pool) -> None:
    reused_pid = {pid_of_job(idle_pool.needs(reuse=True)), pid_of_job(idle_pool.needs(reuse=True, memory=512 * MiB))}
    assert idle_pool.needs(cpus=2).submit(abs, -3).result(within_s=30) == 3
    assert all(has_ended(pid) for pid in reused_pid)
    assert local_engine(idle_pool).ledger.leases == {}


def test_an_idle_process_that_dies_is_replaced(idle_pool: Pool) -> None:
    reused_pid = pid_of_job(idle_pool.needs(reuse=True))
    os.kill(reused_pid, signal.SIGKILL)
    within(10, lambda: local_engine(idle_pool).ledger.leases == {}, "its lease is back")
    assert pid_of_job(idle_pool.needs(reuse=True)) != reused_pid


def test_a_job_runs_in_a_new_process_if_the_reused_one_dies_before_it_begins(idle_pool: Pool) -> None:
    for _ in range(10):
        reused_pid = pid_of_job(idle_pool.needs(reuse=True))
        os.kill(reused_pid, signal.SIGSTOP)  # so that it does not read its next job
        handle = idle_pool.needs(reuse=True).submit(os.getpid)
        within(10, lambda: not local_engine(idle_pool)._backlog._queues, "the job was handed over")
        os.kill(reused_pid, signal.SIGKILL)
        assert handle.result(within_s=30) != reused_pid


def test_a_job_can_be_killed_before_the_reused_process_has_read_it(idle_pool: Pool) -> None:
    reused_pid = pid_of_job(idle_pool.needs(reuse=True))
    os.kill(reused_pid, signal.SIGSTOP)
    handle = idle_pool.needs(reuse=True).submit(os.getpid)
    assert isinstance(handle, JobHandle)
    within(10, lambda: not local_engine(idle_pool)._backlog._queues, "the job was handed over")
    handle.kill()
    assert handle.outcome(within_s=30).text == f"job {handle.id} was stopped before it began"
    assert pid_of_job(idle_pool.needs(reuse=True)) != reused_pid


def test_a_reused_process_with_outdated_modules_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> object:
        import fanwise_test_reused  # type: ignore[import-not-found]  # written by the test

        return fanwise_test_reused.VERSION

    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "fanwise_test_reused.py"
    source.write_text("VERSION = 1\n")
    with Pool(cpus=2, seed=5) as pool:  # its warm process is replaced, too
        reuse = pool.needs(reuse=True)
        for how in ("fork", "reuse"):
            handle = submitted(reuse.submit(version))
            assert (handle.result(within_s=60), handle.how) == (1, how)
        source.write_text("VERSION = 'two'\n")
        handle = submitted(reuse.submit(version))
        assert (handle.result(within_s=60), handle.how) == ("two", "fork")


def test_a_reused_process_gets_its_next_job_after_the_nested_jobs_of_the_last_one_have_ended(
    idle_pool: Pool, tmp_path: Path
) -> None:
    def ignore_sigterm() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "ignore_sigterm").touch()
        signal.pause()

    def parent() -> None:
        Pool().submit(ignore_sigterm)
        while not (tmp_path / "ignore_sigterm").exists():
            current().report("until the child ignores SIGTERM")

    reuse = idle_pool.needs(cpus=2, reuse=True)
    first, second = reuse.submit(parent), reuse.submit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert isinstance(first, JobHandle) and isinstance(second, JobHandle)
    assert second.outcome(within_s=30).kind == "signal"
    assert first.done() and first.pid == second.pid
    assert idle_pool.submit(abs, -1).result(within_s=30) == 1

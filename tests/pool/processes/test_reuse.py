"""Reused processes: kept as long as they are fit, replaced when they are not, and never in the way."""

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
def own(pool: Pool) -> Iterator[Pool]:
    """The pool, without idle processes of other tests."""
    assert local_engine(pool).ledger.leases == {}
    yield pool
    pool.needs(cpus=2).submit(int).result(within_s=30)  # idle processes give way to it
    within(10, lambda: local_engine(pool).ledger.leases == {}, "no process is kept")


def pid_of(needs: Submitter, function: Callable[..., object] = os.getpid, *args: object) -> int:
    handle = submitted(needs.submit(function, *args))
    handle.outcome(within_s=60)
    assert handle.pid is not None
    return handle.pid


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_the_same_process_runs_job_after_job(own: Pool) -> None:
    reuse = own.needs(reuse=True)
    handles = [submitted(reuse.submit(abs, -number)) for number in range(10)]
    assert [handle.result(within_s=60) for handle in handles] == [*range(10)]
    assert len({handle.pid for handle in handles}) <= 2  # two CPUs
    assert [handle.how for handle in handles].count("reuse") >= 8


def test_each_job_has_its_own_seed_output_and_surroundings(
    own: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def look() -> tuple[int, str | None, str, bool]:
        print("hello from", current().number)
        there, left = os.getcwd(), "FANWISE_TEST_LEFT" in os.environ
        os.chdir("/")
        os.environ["FANWISE_TEST_LEFT"] = "behind"
        return random.getrandbits(60), os.environ.get("FANWISE_TEST_COLOUR"), there, left

    first = own.needs(reuse=True, number=1).submit(look)
    one = first.result(within_s=60)
    monkeypatch.setenv("FANWISE_TEST_COLOUR", "blue")
    monkeypatch.chdir(tmp_path)
    second = own.needs(reuse=True, number=2).submit(look)
    two = second.result(within_s=60)
    assert isinstance(first, JobHandle) and isinstance(second, JobHandle)
    assert first.pid == second.pid
    assert first.output()[0] == "hello from 1" and second.output()[0] == "hello from 2"
    assert one[0] != two[0]
    assert (one[1], two[1], two[2]) == (None, "blue", str(tmp_path))
    assert (one[3], two[3]) == (False, False)
    three = own.needs(reuse=True, number=2).submit(look).result(within_s=60)
    assert three == two  # what the job before has changed in its process is undone
    monkeypatch.delenv("FANWISE_TEST_COLOUR")
    assert own.needs(reuse=True, number=1).submit(look).result(within_s=60)[:2] == (one[0], None)


def fail() -> None:
    raise ValueError("no")


def test_a_process_is_replaced_after_an_exception(own: Pool) -> None:
    reuse = own.needs(reuse=True)
    kept = pid_of(reuse)
    assert pid_of(reuse, fail) == kept
    assert pid_of(reuse) != kept
    within(30, lambda: gone(kept), "the old process is gone")


def test_a_process_is_replaced_after_a_stop_at_any_place_and_kept_after_one_in_a_report(own: Pool) -> None:
    def obey() -> None:
        if current().report(1).ends:
            raise TrialStopped("told so")

    reuse = own.needs(reuse=True, on_report=lambda values: "STOP")
    kept = pid_of(reuse)
    assert pid_of(reuse, obey) == kept
    handle = reuse.submit(signal.pause)
    assert isinstance(handle, JobHandle) and handle.wait_began(30) and handle.pid == kept
    handle.stop()
    assert handle.outcome(within_s=30).kind == "stopped"
    assert pid_of(reuse) != kept


def test_process_is_replaced_when_its_memory_is_well_above_that_after_the_first_job(own: Pool) -> None:
    def grow(mib: int) -> int:
        # A module keeps what outlives a job.
        random.__dict__.setdefault("fanwise_test_kept", []).append(bytearray(b"x" * (mib * MiB)))
        return os.getpid()

    reuse = own.needs(reuse=True)
    first = pid_of(reuse)
    assert pid_of(reuse, grow, 10) == first
    assert pid_of(reuse, grow, 500) == first
    assert pid_of(reuse) != first


def test_idle_processes_give_way_to_jobs_that_need_their_lease(own: Pool) -> None:
    kept = {pid_of(own.needs(reuse=True)), pid_of(own.needs(reuse=True, memory=512 * MiB))}
    assert own.needs(cpus=2).submit(abs, -3).result(within_s=30) == 3
    assert all(gone(pid) for pid in kept)
    assert local_engine(own).ledger.leases == {}


def test_an_idle_process_that_dies_is_replaced(own: Pool) -> None:
    kept = pid_of(own.needs(reuse=True))
    os.kill(kept, signal.SIGKILL)
    within(10, lambda: local_engine(own).ledger.leases == {}, "its lease is back")
    assert pid_of(own.needs(reuse=True)) != kept


def test_a_job_that_is_handed_to_a_dying_process_runs_in_another(own: Pool) -> None:
    for _ in range(10):
        kept = pid_of(own.needs(reuse=True))
        os.kill(kept, signal.SIGSTOP)  # it will not read what it is given
        handle = own.needs(reuse=True).submit(os.getpid)
        within(10, lambda: not local_engine(own)._backlog._queues, "the job was handed over")
        os.kill(kept, signal.SIGKILL)
        assert handle.result(within_s=30) != kept


def test_a_job_that_is_killed_while_it_is_handed_over_is_told_and_the_next_one_runs(own: Pool) -> None:
    kept = pid_of(own.needs(reuse=True))
    os.kill(kept, signal.SIGSTOP)
    handle = own.needs(reuse=True).submit(os.getpid)
    assert isinstance(handle, JobHandle)
    within(10, lambda: not local_engine(own)._backlog._queues, "the job was handed over")
    handle.kill()
    assert handle.outcome(within_s=30).text == f"job {handle.id} was stopped before it began"
    assert pid_of(own.needs(reuse=True)) != kept


def test_a_reused_process_with_old_code_lets_a_new_one_run_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_reused_process_that_a_thread_keeps_alive_does_not_keep_its_lease(own: Pool) -> None:
    def leave_a_thread() -> None:
        import threading

        threading.Thread(target=threading.Event().wait).start()
        raise ValueError("and is unfit")

    kept = pid_of(own.needs(cpus=2, reuse=True), leave_a_thread)
    assert own.submit(abs, -1).result(within_s=30) == 1
    assert gone(kept)


def test_the_nested_jobs_of_a_reused_process_end_before_its_next_job(own: Pool, tmp_path: Path) -> None:
    def child() -> None:
        (tmp_path / "child").write_text(str(os.getpid()))
        signal.pause()

    def parent() -> None:
        Pool().submit(child)
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            current().report("until the child runs")

    reuse = own.needs(reuse=True)
    kept = pid_of(reuse, parent)
    assert gone(int((tmp_path / "child").read_text()))
    assert pid_of(reuse) == kept


def test_a_reused_process_gets_its_next_job_only_when_the_jobs_of_its_last_one_are_gone(
    own: Pool, tmp_path: Path
) -> None:
    def deaf() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "deaf").touch()
        signal.pause()

    def parent() -> None:
        Pool().submit(deaf)
        while not (tmp_path / "deaf").exists():
            current().report("until the child does not listen")

    reuse = own.needs(cpus=2, reuse=True)
    first, second = reuse.submit(parent), reuse.submit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert isinstance(first, JobHandle) and isinstance(second, JobHandle)
    assert second.outcome(within_s=30).kind == "signal"
    assert first.done() and first.pid == second.pid
    assert own.submit(abs, -1).result(within_s=30) == 1

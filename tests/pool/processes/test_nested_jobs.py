"""Jobs that jobs submit: processes beside their parent, within its lease, and ended with it at the latest."""

import _thread
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gates import Gate
from job_functions import local_engine, submitted

from fanwise.base.errors import ClosedError, DeadlineExceeded, LeaseError, TrialStopped
from fanwise.links.process_state import stat_of
from fanwise.pool import Pool, current
from fanwise.pool.current import NestedHandle
from fanwise.testing import within


def process_ids() -> tuple[int, int, int]:
    return os.getpid(), os.getppid(), os.getsid(0)


def test_nested_jobs_are_siblings_with_their_own_sessions(pool: Pool) -> None:
    def parent() -> tuple[tuple[int, int, int], list[tuple[int, int, int]]]:
        handles = [Pool().submit(process_ids) for _ in range(3)]
        return process_ids(), [handle.result(20) for handle in handles]

    (pid, warm, session), nested = pool.needs(cpus=2).submit(parent).result(within_s=30)
    assert {ppid for _, ppid, _ in nested} == {warm} != {pid}
    assert {process_id for process_id, _, _ in nested} == {sid for _, _, sid in nested}
    assert len({pid, *(process_id for process_id, _, _ in nested)}) == 4
    assert session == pid


def test_results_and_error_namesof_nested_jobs_come_back(pool: Pool) -> None:
    def square(array: "np.ndarray[Any, Any]") -> Any:  # Any: numpy's
        return array * array

    def fail() -> None:
        raise KeyError("nothing here")

    def die() -> None:
        os._exit(9)

    def parent() -> tuple[float, list[str]]:
        total = float(Pool().submit(square, np.arange(100_000.0)).result(20).sum())
        error_names = []
        for function in (fail, die):
            try:
                Pool().submit(function).result(20)
            except Exception as error:
                error_names.append(f"{type(error).__name__}: {error}")
        return total, error_names

    total, (failed, died) = pool.submit(parent).result(within_s=30)
    assert total == float((np.arange(100_000.0) ** 2).sum())
    assert failed == "KeyError: 'nothing here'"
    assert died.startswith("WorkerLostError: ended with exit code 9 before its function returned")


def test_nested_jobs_share_the_lease_of_their_parent(pool: Pool, tmp_path: Path) -> None:
    def child() -> None:
        # Only one job at a time may be inside, because the lease of the parent has one CPU.
        fd = os.open(tmp_path / "inside", os.O_CREAT | os.O_EXCL)
        os.close(fd)
        os.unlink(tmp_path / "inside")

    def parent() -> str:
        handles = [Pool().submit(child) for _ in range(6)]
        for handle in handles:
            handle.result(20)
        try:
            Pool().needs(cpus=2).submit(int)
        except LeaseError as error:
            return str(error)
        return "granted"

    text = pool.submit(parent).result(within_s=30)
    assert text.startswith("2 CPUs asked for, the lease of the job that asks has 1.")


def test_a_nested_jobs_seed_follows_from_its_parents(pool: Pool) -> None:
    def seed() -> int:
        return current().seed

    def parent() -> tuple[int, int]:
        one, two = (Pool().needs(number=n).submit(seed) for n in (1, 2))
        return one.result(20), two.result(20)

    first, equal, different = (pool.needs(number=n).submit(parent).result(within_s=30) for n in (5, 5, 6))
    assert first == equal
    assert len({*first, *different}) == 4


@pytest.mark.parametrize("end", ["returns", "raises", "SIGKILL", "stop", "kill"])
def test_nested_jobs_end_with_their_parent(pool: Pool, tmp_path: Path, gate: Gate, end: str) -> None:
    def child(number: int) -> None:
        (tmp_path / f"child-{number}").write_text(str(os.getpid()))
        signal.pause()

    def parent() -> None:
        handles = [Pool().submit(child, number) for number in range(3)]  # two run, the third is queued
        (tmp_path / "submitted").touch()
        gate.wait()
        if end == "raises":
            raise ValueError(len(handles))

    handle = submitted(pool.needs(cpus=2).submit(parent))
    children = [tmp_path / f"child-{number}" for number in range(3)]
    within(30, lambda: all(p.exists() and p.read_text() for p in children[:2]), "two nested jobs run")
    within(30, (tmp_path / "submitted").exists, "the third is submitted")
    pids = [int(path.read_text()) for path in children[:2]]
    if end == "SIGKILL":
        assert handle.pid is not None
        os.kill(handle.pid, signal.SIGKILL)
    elif end in ("stop", "kill"):
        handle.stop() if end == "stop" else handle.kill()
    else:
        gate.open()
    kinds = {"returns": "returned", "raises": "exception", "SIGKILL": "signal", "stop": "stopped", "kill": "signal"}
    assert handle.outcome(within_s=30).kind == kinds[end]
    assert not any(stat_of(pid).is_running for pid in pids)
    assert not children[2].exists()
    engine = local_engine(pool)
    within(5, lambda: engine.ledger.leases == {} and not engine._jobs, "nothing is left in the tables")


def test_a_nested_job_can_be_stopped_by_its_parent_and_again_when_it_has_ended(pool: Pool) -> None:
    def parent() -> str:
        handle = Pool().submit(signal.pause)
        handle.stop()
        try:
            handle.result(20)
        except TrialStopped:
            handle.stop()
            return "stopped"
        return "not stopped"

    assert pool.submit(parent).result(within_s=30) == "stopped"


def test_waiting_for_a_nested_job_has_a_timeout_and_can_be_repeated(pool: Pool, gate: Gate) -> None:
    def parent() -> list[object]:
        handle = Pool().submit(gate.wait)
        observations: list[object] = []
        for wait_s in (0.01, 0.02):
            try:
                handle.result(wait_s)
            except DeadlineExceeded as error:
                observations.append("it continues" in str(error))
        observations.append(handle.done())
        current().report("waiting")
        observations.append(handle.result(20))
        return observations

    def decide(values: object) -> str:
        gate.open()
        return "CONTINUE"

    assert pool.needs(on_report=decide).submit(parent).result(within_s=30) == [True, True, False, None]


def test_a_stop_interrupts_waiting_for_a_nested_job(pool: Pool, tmp_path: Path) -> None:
    def child() -> None:
        (tmp_path / "child").touch()
        signal.pause()

    def parent() -> str:
        try:
            Pool().submit(child).result()
        except TrialStopped:
            return f"stopped, and the link still works: {current().report(1).decision}"
        return "not stopped"

    handle = submitted(pool.submit(parent))
    within(30, (tmp_path / "child").exists, "the nested job runs, so the parent waits or is about to")
    handle.stop(grace_s=30)
    assert handle.result(within_s=30) == "stopped, and the link still works: CONTINUE"


def test_a_stop_that_does_not_wake_the_main_thread_ends_its_wait_for_a_nested_job(pool: Pool, gate: Gate) -> None:
    """The signal arrives just before the main thread sleeps, while another thread reads the link."""

    def parent() -> str:
        main_thread_id = threading.get_ident()
        first, second = Pool().submit(gate.wait), Pool().submit(int)
        assert isinstance(first, NestedHandle)
        reader = threading.Thread(target=first.result, daemon=True)
        reader.start()
        within(10, first._job._link._reader.lock.locked, "the thread reads the link")

        def interrupt() -> None:
            within(10, lambda: sys._current_frames()[main_thread_id].f_code.co_name == "wait_unless", "it sleeps")
            _thread.interrupt_main(signal.SIGTERM)  # runs the handler, but does not interrupt the sleep

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            second.result()
        except TrialStopped:
            return "stopped"
        return "not stopped"

    assert pool.submit(parent).result(within_s=30) == "stopped"


def test_threads_of_a_job_may_wait_for_nested_jobs_at_once(pool: Pool) -> None:
    def parent(first: int) -> list[int]:
        def work(number: int) -> None:
            results.append(Pool().submit(abs, -number).result())

        results: list[int] = []
        threads = [threading.Thread(target=work, args=(first + number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        work(first + 3)
        for thread in threads:
            thread.join()
        return sorted(results)

    for number in range(0, 80, 4):
        results = pool.needs(cpus=2).submit(parent, number).result(within_s=30)
        assert results == [number, number + 1, number + 2, number + 3]


def test_inside_a_job_a_pool_is_the_jobs_own(pool: Pool) -> None:
    def inner() -> tuple[int, str, bool]:
        error_names = []
        with Pool() as inner_pool:
            num_cpus = inner_pool.machine.cpus
            sibling = inner_pool.submit(os.getppid).result(within_s=20) == os.getppid()
            for use in (
                lambda: inner_pool._engine,
                lambda: inner_pool.needs(cpus=9).submit(int),
                lambda: inner_pool.needs(retries=1).submit(int),
            ):
                try:
                    use()
                except Exception as error:
                    error_names.append(type(error).__name__)
        try:
            inner_pool.submit(int)
        except ClosedError:
            error_names.append("closed")
        return num_cpus, " ".join(error_names), sibling

    expected = (2, "ClosedError LeaseError ValueError closed", True)
    assert pool.needs(cpus=2).submit(inner).result(within_s=30) == expected


def test_nested_jobs_have_the_environment_of_the_submitting_job(pool: Pool, tmp_path: Path) -> None:
    def environment_of_job() -> tuple[str | None, str]:
        return os.environ.get("FANWISE_TEST_COLOUR"), os.getcwd()

    def parent() -> tuple[str | None, str]:
        os.environ["FANWISE_TEST_COLOUR"] = "green"
        os.chdir(tmp_path)
        environment: tuple[str | None, str] = Pool().submit(environment_of_job).result(20)
        return environment

    assert pool.submit(parent).result(within_s=30) == ("green", str(tmp_path))
    assert pool.submit(environment_of_job).result(within_s=30)[0] is None


class StopsWhileLoading:
    """Unpickling it sends SIGTERM to the process and then creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return load_and_stop, (self.path,)


def load_and_stop(path: Path) -> str:
    os.kill(os.getpid(), signal.SIGTERM)  # Python runs the handler before the next line
    path.touch()
    return "loaded"


def test_a_stop_while_the_result_of_a_nested_job_is_unpickled_is_raised_afterwards(pool: Pool, tmp_path: Path) -> None:
    def parent() -> str:
        handle = Pool().submit(StopsWhileLoading, tmp_path / "loaded whole")
        try:
            handle.result(20)
        except TrialStopped:
            return f"stopped, then {Pool().submit(abs, -3).result(20)}"
        return "not stopped"

    assert pool.submit(parent).result(within_s=30) == "stopped, then 3"
    assert (tmp_path / "loaded whole").exists()

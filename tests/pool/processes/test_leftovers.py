"""Threads, executors, child processes and exit handlers that a function leaves behind end with its job."""

import atexit
import math
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest
from job_functions import local_engine, submitted

from fanwise.links.process_state import stat_of
from fanwise.pool import Pool
from fanwise.pool.pool import Submitter
from fanwise.pool.processes import descendants_of
from fanwise.testing import within

KEPT: list[Any] = []  # protects leftovers of a function from garbage collection


def descendants() -> list[int]:
    return descendants_of(os.getpid())


# -- threads -----------------------------------------------------------------------------------------------------------


def leave_a_thread() -> str:
    threading.Thread(target=threading.Event().wait, name="feeder").start()
    return "done"


def test_a_warning_names_a_thread_that_never_ends_and_its_process_exits_by_itself(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = submitted(pool.submit(leave_a_thread)).outcome(within_s=30)
    assert outcome.kind == "returned"
    assert [line.split(" in ")[0] for line in outcome.threads] == ["'feeder'"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "'leave_a_thread'" in message and "'feeder' in " in message and "Join the thread" in message


def test_a_thread_that_is_about_to_end_finishes_its_work(pool: Pool, tmp_path: Path) -> None:
    def save() -> None:
        within(20, lambda: "fanwise-leftovers" in [thread.name for thread in threading.enumerate()], "it is ending")
        (tmp_path / "saved").touch()

    def work() -> None:
        threading.Thread(target=save).start()

    assert len(submitted(pool.submit(work)).outcome(within_s=30).threads) == 1
    assert (tmp_path / "saved").exists()


def test_a_busy_executor_thread_is_listed_with_the_line_of_the_user(pool: Pool) -> None:
    def work() -> None:
        KEPT.append(executor := ThreadPoolExecutor(1, "loader"))
        began = threading.Event()

        def load() -> None:
            began.set()
            threading.Event().wait()

        executor.submit(load)
        began.wait()

    (line,) = submitted(pool.submit(work)).outcome(within_s=30).threads
    assert line.startswith("'loader_0' in load, ") and __file__ in line


# -- processes ---------------------------------------------------------------------------------------------------------


def leave_joblib_workers() -> list[int]:
    joblib = pytest.importorskip("joblib")
    joblib.Parallel(n_jobs=2)(joblib.delayed(math.sqrt)(number) for number in range(4))
    return descendants()


def leave_process_pool() -> list[int]:
    KEPT.append(children := multiprocessing.Pool(2))
    children.map(abs, [-1, -2])
    return descendants()


def leave_process() -> list[int]:
    multiprocessing.Process(target=signal.pause).start()
    return descendants()


def leave_data_loader() -> list[int]:
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(list(range(64)), batch_size=4, num_workers=2, persistent_workers=True)
    KEPT.append(batches := iter(loader))
    next(batches)
    return descendants()


def leave_idle_thread_executor() -> list[int]:
    KEPT.append(executor := ThreadPoolExecutor(1))
    executor.submit(abs, -3).result()
    return descendants()


def leave_idle_process_executor() -> list[int]:
    KEPT.append(executor := ProcessPoolExecutor(1))
    executor.submit(abs, -3).result()
    return descendants()


def leave_busy_process_executor() -> list[int]:
    KEPT.append(executor := ProcessPoolExecutor(1))
    executor.submit(signal.pause)
    return descendants()


def leave_unread_queue() -> list[int]:
    queue: multiprocessing.Queue[bytes] = multiprocessing.Queue()
    KEPT.append(queue)
    queue.put(b"x" * 1_000_000)
    return descendants()


def leave_subprocess() -> list[int]:
    KEPT.append(subprocess.Popen(["sleep", "600"]))
    return descendants()


def leave_detached_subprocess() -> list[int]:
    KEPT.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
    return descendants()


def leave_daemon() -> list[int]:
    shell = "setsid sleep 600 > /dev/null 2>&1 & echo $!"
    return [int(subprocess.run(["sh", "-c", shell], check=True, capture_output=True).stdout)]


LEFTOVERS: list[Callable[[], list[int]]] = [
    leave_joblib_workers,
    leave_process_pool,
    leave_process,
    leave_data_loader,
    leave_idle_thread_executor,
    leave_idle_process_executor,
    leave_busy_process_executor,
    leave_unread_queue,
    leave_subprocess,
    leave_detached_subprocess,
    leave_daemon,
]


@pytest.mark.parametrize("leave", LEFTOVERS)
def test_processes_end_with_the_job_without_a_warning(
    pool: Pool, caplog: pytest.LogCaptureFixture, leave: Callable[[], list[int]]
) -> None:
    outcome = submitted(handle := pool.submit(leave)).outcome(within_s=60)
    assert (outcome.kind, outcome.threads, caplog.text) == ("returned", (), ""), outcome.text
    assert [pid for pid in handle.result() if stat_of(pid).is_running] == []


@pytest.fixture
def reuse(pool: Pool) -> Iterator[Submitter]:
    yield pool.needs(reuse=True)
    pool.needs(cpus=2).submit(int).result(within_s=30)  # dismisses idle processes
    within(10, lambda: local_engine(pool).ledger.leases == {}, "no process is kept")


@pytest.mark.parametrize("leave", [leave_process_pool, leave_idle_process_executor, leave_daemon])
def test_a_reused_process_with_leftover_processes_is_replaced(
    reuse: Submitter, caplog: pytest.LogCaptureFixture, leave: Callable[[], list[int]]
) -> None:
    handle = submitted(reuse.submit(leave))
    pids = handle.result(within_s=60)
    assert pids and [pid for pid in pids if stat_of(pid).is_running] == []
    assert submitted(reuse.submit(os.getpid)).result(within_s=60) != handle.pid
    assert caplog.text == ""


@pytest.mark.parametrize("leave", [leave_idle_thread_executor, leave_unread_queue])
def test_a_reused_process_is_kept_with_idle_executors_and_daemon_threads(
    reuse: Submitter, leave: Callable[[], list[int]]
) -> None:
    handle = submitted(reuse.submit(leave))
    assert handle.result(within_s=60) == []
    assert submitted(reuse.submit(os.getpid)).result(within_s=60) == handle.pid


def test_a_warning_names_a_killed_process_that_ignored_sigterm(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    def leave_deaf_process() -> list[int]:
        shell = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
        KEPT.append(child := subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE))
        assert child.stdout is not None
        child.stdout.readline()
        return [child.pid]

    handle = submitted(pool.submit(leave_deaf_process))
    (pid,) = handle.result(within_s=30)
    assert not stat_of(pid).is_running
    (message,) = [record.getMessage() for record in caplog.records]
    assert "SIGTERM" in message and f"(pid {pid})" in message and "'leave_deaf_process'" in message


def test_the_resource_tracker_removes_shared_memory(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    def leave_shared_memory() -> str:
        KEPT.append(memory := SharedMemory(create=True, size=100))
        return memory.name

    name = pool.submit(leave_shared_memory).result(within_s=30)
    assert not Path("/dev/shm", name).exists()
    assert caplog.text == ""


def test_a_reused_process_keeps_its_resource_tracker(reuse: Submitter) -> None:
    def use_shared_memory() -> int:
        memory = SharedMemory(create=True, size=100)
        memory.close()
        memory.unlink()
        return os.getpid()

    assert reuse.submit(use_shared_memory).result(within_s=30) == reuse.submit(use_shared_memory).result(within_s=30)


# -- exit handlers -----------------------------------------------------------------------------------------------------


def test_exit_handlers_run_before_subprocesses_are_ended(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logs() -> None:
        writer = subprocess.Popen(["sh", "-c", f"cat > {tmp_path}/log"], stdin=subprocess.PIPE)
        atexit.register(writer.communicate, b"the last line")

    pool.submit(logs).result(within_s=30)
    assert (tmp_path / "log").read_text() == "the last line"
    assert caplog.text == ""


def test_a_process_with_an_endless_exit_handler_is_killed_with_a_warning(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    def hangs() -> str:
        atexit.register(threading.Event().wait)
        return "done"

    assert pool.submit(hangs).result(within_s=60) == "done"
    within(10, lambda: "exit handler" in caplog.text, "the reason is logged")

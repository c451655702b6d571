"""What a function leaves running ends at once with its job, without a warning, in every kind of worker process."""

import atexit
import contextlib
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

from fanwise.pool import Pool
from fanwise.pool.pool import Submitter
from fanwise.pool.processes import descendants_of
from fanwise.testing import within

KEPT: list[Any] = []  # what a function leaves is not collected when it returns


def below_here() -> list[int]:
    return descendants_of(os.getpid())


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# -- threads -----------------------------------------------------------------------------------------------------------


def leaves_a_thread() -> str:
    threading.Thread(target=threading.Event().wait, name="feeder").start()
    return "done"


def fails_beside_a_thread() -> None:
    leaves_a_thread()
    raise ValueError("wrong")


def test_a_thread_that_never_ends_is_named_and_its_process_exits_without_being_killed(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = submitted(pool.submit(leaves_a_thread)).outcome(within_s=30)
    assert outcome.kind == "returned"
    assert [line.split(" in ")[0] for line in outcome.threads] == ["'feeder'"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "'leaves_a_thread'" in message and "'feeder' in " in message and "Join the thread" in message


def test_a_failure_names_the_threads_that_it_left_running(pool: Pool) -> None:
    outcome = submitted(pool.submit(fails_beside_a_thread)).outcome(within_s=30)
    assert (outcome.kind, len(outcome.threads)) == ("exception", 1)


def test_a_thread_that_is_about_to_end_finishes_its_work(pool: Pool, tmp_path: Path) -> None:
    def save() -> None:
        within(20, lambda: "fanwise-leftovers" in [thread.name for thread in threading.enumerate()], "it is ending")
        (tmp_path / "saved").touch()

    def work() -> None:
        threading.Thread(target=save).start()

    assert len(submitted(pool.submit(work)).outcome(within_s=30).threads) == 1
    assert (tmp_path / "saved").exists()


def test_a_busy_thread_of_an_executor_is_named_by_the_users_own_line(pool: Pool) -> None:
    def uses() -> None:
        KEPT.append(executor := ThreadPoolExecutor(1, "loader"))
        began = threading.Event()

        def load() -> None:
            began.set()
            threading.Event().wait()

        executor.submit(load)
        began.wait()

    (line,) = submitted(pool.submit(uses)).outcome(within_s=30).threads
    assert line.startswith("'loader_0' in load, ") and __file__ in line


def test_daemon_threads_are_not_named(pool: Pool) -> None:
    def work() -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    assert submitted(pool.submit(work)).outcome(within_s=30).threads == ()


# -- processes ---------------------------------------------------------------------------------------------------------


def leaves_joblib() -> list[int]:
    joblib = pytest.importorskip("joblib")
    joblib.Parallel(n_jobs=2)(joblib.delayed(math.sqrt)(number) for number in range(4))
    return below_here()


def leaves_a_process_pool() -> list[int]:
    KEPT.append(children := multiprocessing.Pool(2))
    children.map(abs, [-1, -2])
    return below_here()


def leaves_a_process() -> list[int]:
    multiprocessing.Process(target=signal.pause).start()
    return below_here()


def leaves_a_data_loader() -> list[int]:
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(list(range(64)), batch_size=4, num_workers=2, persistent_workers=True)
    KEPT.append(batches := iter(loader))
    next(batches)
    return below_here()


def leaves_an_idle_thread_executor() -> list[int]:
    KEPT.append(executor := ThreadPoolExecutor(1))
    executor.submit(abs, -3).result()
    return below_here()


def leaves_an_idle_process_executor() -> list[int]:
    KEPT.append(executor := ProcessPoolExecutor(1))
    executor.submit(abs, -3).result()
    return below_here()


def leaves_a_busy_process_executor() -> list[int]:
    KEPT.append(executor := ProcessPoolExecutor(1))
    executor.submit(signal.pause)
    return below_here()


def leaves_a_queue_that_nobody_reads() -> list[int]:
    queue: multiprocessing.Queue[bytes] = multiprocessing.Queue()
    KEPT.append(queue)
    queue.put(b"x" * 1_000_000)
    return below_here()


def leaves_a_subprocess() -> list[int]:
    KEPT.append(subprocess.Popen(["sleep", "600"]))
    return below_here()


def leaves_a_detached_subprocess() -> list[int]:
    KEPT.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
    return below_here()


def leaves_a_daemon() -> list[int]:
    shell = "setsid sleep 600 > /dev/null 2>&1 & echo $!"
    return [int(subprocess.run(["sh", "-c", shell], check=True, capture_output=True).stdout)]


LEFT: list[Callable[[], list[int]]] = [
    leaves_joblib,
    leaves_a_process_pool,
    leaves_a_process,
    leaves_a_data_loader,
    leaves_an_idle_thread_executor,
    leaves_an_idle_process_executor,
    leaves_a_busy_process_executor,
    leaves_a_queue_that_nobody_reads,
    leaves_a_subprocess,
    leaves_a_detached_subprocess,
    leaves_a_daemon,
]


@pytest.fixture(scope="module")
def starts_a_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A module that no process can be forked with."""
    folder = tmp_path_factory.mktemp("modules")
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (folder / "fanwise_test_unforkable.py").write_text(f"import threading\n{thread}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "fanwise_test_unforkable"


def in_a_spare(function: Callable[[], list[int]]) -> list[int]:
    import fanwise_test_unforkable  # type: ignore[import-not-found]  # noqa: F401  # written by the fixture

    return function()


@pytest.mark.parametrize("left", LEFT)
def test_processes_that_a_function_left_are_gone_with_its_job_and_nothing_is_killed(
    pool: Pool, caplog: pytest.LogCaptureFixture, left: Callable[[], list[int]]
) -> None:
    outcome = submitted(handle := pool.submit(left)).outcome(within_s=60)
    assert (outcome.kind, outcome.threads, caplog.text) == ("returned", (), ""), outcome.text
    assert [pid for pid in handle.result() if is_alive(pid)] == []


@pytest.fixture
def reuse(pool: Pool) -> Iterator[Submitter]:
    yield pool.needs(reuse=True)
    pool.needs(cpus=2).submit(int).result(within_s=30)  # idle processes give way to it
    within(10, lambda: local_engine(pool).ledger.leases == {}, "no process is kept")


@pytest.mark.parametrize("left", [leaves_a_process_pool, leaves_an_idle_process_executor, leaves_a_daemon])
def test_a_reused_process_that_left_processes_is_replaced(
    reuse: Submitter, caplog: pytest.LogCaptureFixture, left: Callable[[], list[int]]
) -> None:
    handle = submitted(reuse.submit(left))
    pids = handle.result(within_s=60)
    assert pids and [pid for pid in pids if is_alive(pid)] == []
    assert submitted(reuse.submit(os.getpid)).result(within_s=60) != handle.pid
    assert caplog.text == ""


@pytest.mark.parametrize("left", [leaves_an_idle_thread_executor, leaves_a_queue_that_nobody_reads])
def test_a_reused_process_is_kept_with_idle_executors_and_daemon_threads(
    reuse: Submitter, left: Callable[[], list[int]]
) -> None:
    handle = submitted(reuse.submit(left))
    assert handle.result(within_s=60) == []
    assert submitted(reuse.submit(os.getpid)).result(within_s=60) == handle.pid


def test_a_process_that_ignores_sigterm_is_killed_and_named(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    def leaves() -> list[int]:
        shell = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
        KEPT.append(child := subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE))
        assert child.stdout is not None
        child.stdout.readline()
        return [child.pid]

    handle = submitted(pool.submit(leaves))
    (pid,) = handle.result(within_s=30)
    assert not is_alive(pid)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "SIGTERM" in message and f"(pid {pid})" in message and "'leaves'" in message


def test_what_the_resource_tracker_knows_is_removed(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    def leaves() -> str:
        KEPT.append(memory := SharedMemory(create=True, size=100))
        return memory.name

    name = pool.submit(leaves).result(within_s=30)
    assert not Path("/dev/shm", name).exists()
    assert caplog.text == ""


def test_a_reused_process_keeps_its_resource_tracker(reuse: Submitter) -> None:
    def uses() -> int:
        memory = SharedMemory(create=True, size=100)
        memory.close()
        memory.unlink()
        return os.getpid()

    assert reuse.submit(uses).result(within_s=30) == reuse.submit(uses).result(within_s=30)


# -- exit handlers -----------------------------------------------------------------------------------------------------


def test_exit_handlers_run_while_the_subprocesses_of_the_function_are_still_there(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logs() -> None:
        writer = subprocess.Popen(["sh", "-c", f"cat > {tmp_path}/log"], stdin=subprocess.PIPE)
        atexit.register(writer.communicate, b"the last line")

    pool.submit(logs).result(within_s=30)
    assert (tmp_path / "log").read_text() == "the last line"
    assert caplog.text == ""


def test_an_exit_handler_that_waits_for_ever_is_killed_with_its_process(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    def hangs() -> str:
        atexit.register(threading.Event().wait)
        return "done"

    assert pool.submit(hangs).result(within_s=60) == "done"
    within(10, lambda: "exit handler" in caplog.text, "the reason is logged")

"""A thread that a function leaves running is named at once, with its line; what ends by itself is not."""

import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from fanwise.pool import Pool
from fanwise.testing import within
from fanwise.testing.jobs import submitted


def leaves_a_thread() -> str:
    forever = threading.Event()
    threading.Thread(target=forever.wait, name="feeder").start()
    return "done"


def fails_beside_a_thread() -> None:
    threading.Thread(target=threading.Event().wait, name="feeder").start()
    raise ValueError("wrong")


def test_a_thread_left_running_is_named_when_the_function_has_ended(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    handle = submitted(pool.submit(leaves_a_thread))
    within(20, lambda: "left a thread running" in caplog.text, "the thread is named")
    assert not handle.done(), "it is told before the process is killed"
    (said,) = [record.getMessage() for record in caplog.records if "left a thread" in record.getMessage()]
    assert "'leaves_a_thread'" in said and "'feeder' in " in said and "Join the thread" in said
    handle.kill()
    outcome = handle.outcome(within_s=20)
    assert outcome.kind == "returned"
    assert [line.split(" in ")[0] for line in outcome.threads] == ["'feeder'"]


def test_a_failure_says_what_it_left_running_too(pool: Pool) -> None:
    handle = submitted(pool.submit(fails_beside_a_thread))
    within(20, lambda: handle._outcome is not None, "its end is told")
    handle.kill()
    outcome = handle.outcome(within_s=20)
    assert (outcome.kind, len(outcome.threads)) == ("exception", 1)


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_that_nobody_shut_down_ends_with_the_function(
    pool: Pool, caplog: pytest.LogCaptureFixture, executor: type[ThreadPoolExecutor | ProcessPoolExecutor]
) -> None:
    def uses() -> int:
        globals()["kept"] = kept = executor(1)
        return kept.submit(abs, -3).result()

    handle = submitted(pool.submit(uses))
    outcome = handle.outcome(within_s=30)
    assert (outcome.kind, outcome.threads) == ("returned", ())
    assert caplog.text == "", "it ended by itself"


def test_a_busy_thread_of_an_executor_is_named_by_the_users_own_line(pool: Pool) -> None:
    def uses() -> None:
        globals()["kept"] = executor = ThreadPoolExecutor(1, "loader")
        began = threading.Event()

        def load() -> None:
            began.set()
            threading.Event().wait()

        executor.submit(load)
        began.wait()

    handle = submitted(pool.submit(uses))
    within(20, lambda: handle._outcome is not None, "its end is told")
    handle.kill()
    (line,) = handle.outcome(within_s=20).threads
    assert line.startswith("'loader_0' in load, ") and __file__ in line


def test_daemon_threads_are_not_told(pool: Pool) -> None:
    def work() -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    assert submitted(pool.submit(work)).outcome(within_s=20).threads == ()

"""Deaths and misbehavior of jobs. Each is explained, its lease comes back, and the next job runs."""

import atexit
import contextlib
import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from job_functions import local_engine, submitted

from fanwise.base.errors import NotSendableError, RemoteError, WorkerLostError
from fanwise.pool import Outcome, Pool
from fanwise.testing import within

MiB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A function with the kind and a part of the text of its outcome, and the error that `result` raises."""

    function: Callable[[], object]
    kind: str
    text: str
    error: type[BaseException] = WorkerLostError
    memory: int = 0


class Unpicklable(Exception):
    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")
        self.lock = threading.Lock()


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_value_error() -> None:
    print("before the end", file=sys.stderr)
    raise ValueError("no such rate")


def raise_unpicklable() -> None:
    raise Unpicklable("salt", "pepper")


def raise_error_without_text() -> None:
    raise WithoutText


def call_sys_exit() -> None:
    sys.exit(3)


def call_os_exit() -> None:
    print("last line", file=sys.stderr, flush=True)
    os._exit(4)


def read_null() -> None:
    ctypes.string_at(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    os.abort()


def allocate_too_much() -> int:
    return len(bytearray(1 << 33))


def return_a_lock() -> object:
    return threading.Lock()


def close_the_link() -> None:
    os.closerange(3, 1000)
    signal.pause()


DEATHS = [
    Case(raise_value_error, "exception", "ValueError: no such rate", ValueError),
    Case(raise_unpicklable, "exception", "salt and pepper", Unpicklable),
    Case(raise_error_without_text, "exception", "WithoutText: (its text cannot be made", RemoteError),
    Case(call_sys_exit, "exit", "SystemExit: 3"),
    Case(call_os_exit, "exit", "exit code 4 before its function returned"),
    Case(read_null, "signal", "ended by SIGSEGV. A crash in native code"),
    Case(kill_itself, "signal", "ended by SIGKILL. fanwise did not send it"),
    Case(abort, "signal", "ended by SIGABRT"),
    Case(allocate_too_much, "out-of-memory", "MemoryError", MemoryError, memory=256 * MiB),
    Case(return_a_lock, "exception", "cannot be sent back", NotSendableError),
]


def in_spare(function: Callable[[], Any]) -> Any:
    import fanwise_test_unforkable  # type: ignore[import-not-found]  # noqa: F401

    return function()


def check_death(pool: Pool, death: Case, function: Callable[..., object], *args: object, how: str) -> None:
    handle = submitted(pool.needs(memory=death.memory, reuse=how == "reuse").submit(function, *args))
    outcome = handle.outcome(within_s=60)
    assert (outcome.kind, handle.how) == (death.kind, how if how == "spare" else "fork")
    assert death.text in outcome.text
    with pytest.raises(death.error):
        handle.result(0)
    within(30, lambda: local_engine(pool).ledger.leases == {}, "the lease is returned")


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.function.__name__)
@pytest.mark.parametrize("how", ["fork", "reuse"])
def test_a_death_is_explained_and_the_next_job_runs(pool: Pool, death: Case, how: str) -> None:
    check_death(pool, death, death.function, how=how)
    following = submitted(pool.needs(reuse=how == "reuse").submit(os.getpid))
    assert following.result(within_s=30) == following.pid
    if how == "reuse":
        dismiss_idle(pool)


def dismiss_idle(pool: Pool) -> None:
    """End idle reused processes by a job that needs all CPUs."""
    pool.needs(cpus=2).submit(int).result(within_s=30)
    within(30, lambda: local_engine(pool).ledger.leases == {}, "no process is kept")


def test_a_death_in_a_spare_is_explained_and_the_next_job_runs(unforkable_module: str) -> None:
    with Pool(cpus=2, seed=1) as pool:
        for death in {death.kind: death for death in DEATHS}.values():  # each starts a new process: 0.25 s
            check_death(pool, death, in_spare, death.function, how="spare")
        assert pool.submit(in_spare, int).result(within_s=60) == 0


def outcome_of(pool: Pool, function: Callable[[], object]) -> Outcome:
    handle = submitted(pool.submit(function))
    return handle.outcome(within_s=30)


def test_an_exception_comes_with_the_workers_traceback(pool: Pool) -> None:
    with pytest.raises(ValueError, match="no such rate") as caught:
        pool.submit(raise_value_error).result(within_s=30)
    notes = "\n".join(caught.value.__notes__)
    assert "Traceback in process" in notes and "in raise_value_error" in notes
    outcome = outcome_of(pool, raise_value_error)
    assert "in raise_value_error" in outcome.traceback
    assert outcome.last_output.startswith("before the end")


def test_the_last_lines_of_output_are_in_the_text(pool: Pool) -> None:
    assert "  | last line" in outcome_of(pool, call_os_exit).text


def test_a_crash_in_native_code_shows_the_users_line_and_not_ours(pool: Pool) -> None:
    text = outcome_of(pool, read_null).text
    assert "in read_null" in text
    assert "worker.py" not in text and "Extension modules" not in text


def test_a_job_may_use_the_memory_that_it_asked_for(pool: Pool) -> None:
    def use(mib: int) -> int:
        return len(bytearray(b"x" * 1) * (mib * MiB)) // MiB

    assert pool.needs(memory=128 * MiB).submit(use, 115).result(within_s=30) == 115
    with pytest.raises(MemoryError):
        pool.needs(memory=128 * MiB).submit(use, 140).result(within_s=30)


def test_a_job_that_is_killed_during_its_start_has_an_outcome_and_returns_its_lease(pool: Pool) -> None:
    handles = []
    for _ in range(20):
        handle = submitted(pool.submit(signal.pause))
        handle.kill()
        handles.append(handle)
    assert {handle.outcome(within_s=30).kind for handle in handles} <= {"stopped", "signal"}
    within(30, lambda: local_engine(pool).ledger.leases == {}, "all leases are back")


def test_a_process_without_a_link_is_killed(pool: Pool) -> None:
    outcome = submitted(pool.submit(close_the_link)).outcome(within_s=30)
    assert (outcome.kind, outcome.text) == ("lost", "it had closed its link to the pool, so it was killed")


# -- misbehavior -------------------------------------------------------------------------------------------------------


def harmless() -> int:
    return sum(range(1000))


def raise_group() -> None:
    raise ExceptionGroup("both", [ValueError("one"), OSError("two")])


def raise_base() -> None:
    class Odd(BaseException):
        pass

    raise Odd("not an Exception")


def recurse_for_ever() -> object:
    return recurse_for_ever()


def os_exit_in_a_thread() -> None:
    threading.Thread(target=os._exit, args=(18,)).start()
    signal.pause()


def crash_in_a_thread() -> None:
    threading.Thread(target=ctypes.string_at, args=(8,)).start()
    signal.pause()


def crash_without_stderr() -> None:
    os.close(2)
    read_null()


def kill_its_group() -> None:
    os.killpg(0, signal.SIGKILL)


def terminate_itself() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def print_much() -> str:
    for _ in range(200):
        print("x" * 100_000)
        print("y" * 100_000, file=sys.stderr)
    return "printed"


def print_binary() -> None:
    os.write(2, bytes(range(256)) * 100 + b"\x1b]0;title\x07")
    os._exit(19)


def return_unpicklable() -> object:
    class Bad:
        def __reduce__(self) -> str:
            raise RuntimeError("no form")

    return Bad()


def return_value_that_exits() -> object:
    class Bad:
        def __reduce__(self) -> str:
            sys.exit(20)

    return Bad()


def handle_signals_itself() -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return str(sum(range(300_000)))


def block_all_signals() -> str:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return "blocked"


def close_output() -> str:
    os.close(1)
    os.close(2)
    return "closed"


def close_output_objects() -> str:
    sys.stdout.close()
    sys.stderr.close()
    return "closed"


def replace_output() -> str:
    sys.stdout = sys.stderr = None  # as some libraries do
    return "replaced"


def write_to_all_sockets() -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), b"\xff" * 4096)


def go_to_a_deleted_folder() -> str:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)
    return "nowhere"


def use_up_descriptors() -> str:
    with contextlib.suppress(OSError):
        while True:
            os.open("/dev/null", os.O_RDONLY)
    return "none left"


def break_exceptions() -> None:
    sys.excepthook = lambda *_: sys.exit(21)
    raise ValueError("behind a hook")


def break_modules() -> str:
    for name in ("os", "pickle", "signal", "threading"):
        sys.modules.pop(name)
    gc.collect()
    return "forgotten"


def fail_at_exit() -> str:
    def fail() -> None:
        raise RuntimeError("at exit")

    atexit.register(fail)
    return "returned"


def exit_at_exit() -> str:
    atexit.register(os._exit, 22)
    return "returned"


RETURNING = [
    *(harmless, print_much, handle_signals_itself, block_all_signals, close_output, close_output_objects),
    *(replace_output, go_to_a_deleted_folder, use_up_descriptors, break_modules, fail_at_exit, exit_at_exit),
]
MISBEHAVIOR = [
    *(Case(function, "returned", "") for function in RETURNING),
    Case(raise_group, "exception", "ExceptionGroup: both (2 sub-exceptions)"),
    Case(raise_base, "exception", "not an Exception"),
    Case(recurse_for_ever, "exception", "RecursionError"),
    Case(os_exit_in_a_thread, "exit", "ended with exit code 18 before its function returned"),
    Case(crash_in_a_thread, "signal", "ended by SIGSEGV"),
    Case(crash_without_stderr, "signal", "ended by SIGSEGV. A crash in native code"),
    Case(kill_its_group, "signal", "ended by SIGKILL. fanwise did not send it"),
    Case(terminate_itself, "signal", "ended by SIGTERM. fanwise did not send it"),
    Case(print_binary, "exit", r"\x1b]0;title\x07"),
    Case(return_unpicklable, "exception", "no form"),
    Case(return_value_that_exits, "exit", "SystemExit: 20"),
    Case(write_to_all_sockets, "lost", "its link to the pool broke"),
    Case(break_exceptions, "exception", "ValueError: behind a hook"),
]


@pytest.mark.parametrize("case", MISBEHAVIOR, ids=lambda case: case.function.__name__)
def test_misbehavior_affects_no_other_job_and_leaves_nothing_in_the_tables(pool: Pool, case: Case) -> None:
    neighbor = pool.submit(harmless)
    outcome = submitted(pool.submit(case.function)).outcome(within_s=120)
    assert outcome.kind == case.kind and case.text in outcome.text, outcome.text
    engine = local_engine(pool)
    within(20, lambda: engine.ledger.leases == {}, "all leases are returned")
    assert (engine._jobs, engine._backlog._queues, engine._workers._workers) == ({}, {}, {})
    assert neighbor.result(within_s=30) == pool.submit(harmless).result(within_s=30) == 499500

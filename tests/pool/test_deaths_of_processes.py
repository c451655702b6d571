"""Every way to die, in a forked process and a reused one, and of each kind one in a spare.

Each is explained, the lease comes back, the next job runs.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gates import Gate
from job_functions import local_engine, submitted

from fanwise.base.errors import NotSendableError, RemoteError, WorkerLostError
from fanwise.pool import JobHandle, Outcome, Pool
from fanwise.testing import within

MiB = 1 << 20


@dataclass(frozen=True)
class Death:
    """A way to die: what the job does, the kind and a part of the text of its outcome, and what `result` raises."""

    name: str
    die: Callable[[], object]
    kind: str
    text: str
    raises: type[BaseException]
    memory: int = 0
    kills_process: bool = True


class Unpicklable(Exception):
    """Comes without what its constructor needs."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")
        self.lock = threading.Lock()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_value_error() -> None:
    print("before the end", file=sys.stderr)
    raise ValueError("no such rate")


def raise_unpicklable() -> None:
    raise Unpicklable("salt", "pepper")


def raise_mute() -> None:
    raise Mute


def leave_by_sys_exit() -> None:
    sys.exit(3)


def leave_by_os_exit() -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(4)


def read_null() -> None:
    ctypes.string_at(0)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    os.abort()


def take_too_much_memory() -> int:
    return len(bytearray(1 << 33))


def return_a_lock() -> object:
    return threading.Lock()


def lose_the_link() -> None:
    os.closerange(3, 1000)
    signal.pause()


DEATHS = [
    Death("exception", raise_value_error, "exception", "ValueError: no such rate", ValueError, kills_process=False),
    Death("unpicklable exception", raise_unpicklable, "exception", "salt and pepper", Unpicklable),
    Death("exception without text", raise_mute, "exception", "Mute: (its text cannot be made", RemoteError),
    Death("sys.exit", leave_by_sys_exit, "exit", "SystemExit: 3", WorkerLostError),
    Death("os._exit", leave_by_os_exit, "exit", "exit code 4 before its function returned", WorkerLostError),
    Death("SIGSEGV", read_null, "signal", "ended by SIGSEGV. A crash in native code", WorkerLostError),
    Death("SIGKILL", be_killed, "signal", "ended by SIGKILL. fanwise did not send it", WorkerLostError),
    Death("abort", abort, "signal", "ended by SIGABRT", WorkerLostError),
    Death("MemoryError", take_too_much_memory, "out-of-memory", "MemoryError", MemoryError, memory=256 * MiB),
    Death("unsendable result", return_a_lock, "exception", "cannot be sent back", NotSendableError),
]


def in_spare(call: Callable[[], Any]) -> Any:
    import fanwise_test_starts_a_thread  # type: ignore[import-not-found]  # so the warm process cannot fork  # noqa: F401

    return call()


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on sys.path, with a module that makes forking unsafe."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "fanwise_test_starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


def check(pool: Pool, death: Death, call: Callable[..., object], *args: object, how: str) -> None:
    needs = pool.needs(memory=death.memory, reuse=how == "reuse")
    handle = submitted(needs.submit(call, *args))
    outcome = handle.outcome(within_s=60)
    assert (outcome.kind, handle.how) == (death.kind, how if how == "spare" else "fork")
    assert death.text in outcome.text
    with pytest.raises(death.raises):
        handle.result(0)
    within(30, lambda: local_engine(pool).ledger.leases == {}, "the lease is back")


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.name)
@pytest.mark.parametrize("how", ["fork", "reuse"])
def test_a_death_is_explained_and_the_next_job_runs(pool: Pool, death: Death, how: str) -> None:
    check(pool, death, death.die, how=how)
    again = submitted(pool.needs(reuse=how == "reuse").submit(os.getpid))
    assert again.result(within_s=30) == again.pid
    if how == "reuse":
        _let_idle_go(pool)


def _let_idle_go(pool: Pool) -> None:
    """A job that needs all makes the idle reused process give way."""
    pool.needs(cpus=2).submit(int).result(within_s=30)
    within(30, lambda: local_engine(pool).ledger.leases == {}, "no process is kept")


def test_a_death_in_a_spare_is_explained_and_the_next_job_runs(module_folder: Path) -> None:
    # A fresh process each, a quarter of a second. What a kind is made of is the same code as in the other two.
    deaths = {death.kind: death for death in DEATHS}.values()
    with Pool(cpus=2, seed=1) as pool:
        for death in deaths:
            check(pool, death, in_spare, death.die, how="spare")
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


def test_last_words_are_told(pool: Pool) -> None:
    assert "  | last words" in outcome_of(pool, leave_by_os_exit).text


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


def test_a_kill_from_outside_frees_the_slot(pool: Pool, gate: Gate) -> None:
    def wait() -> None:
        gate.wait()

    handle = pool.needs(cpus=2).submit(wait)
    assert isinstance(handle, JobHandle) and handle.wait_began(30) and handle.pid is not None
    after = pool.needs(cpus=2).submit(os.getpid)
    os.kill(handle.pid, signal.SIGKILL)
    assert after.result(within_s=30) != handle.pid
    assert handle.outcome(0).kind == "signal"


def test_a_job_killed_while_it_is_being_started_is_told_and_its_lease_comes_back(pool: Pool) -> None:
    handles = []
    for _ in range(20):
        handle = submitted(pool.submit(signal.pause))
        handle.kill()
        handles.append(handle)
    assert {handle.outcome(within_s=30).kind for handle in handles} <= {"stopped", "signal"}
    within(30, lambda: local_engine(pool).ledger.leases == {}, "all leases are back")


def test_processes_that_do_not_leave_by_themselves_are_killed(pool: Pool) -> None:
    def leave_a_thread() -> str:
        threading.Thread(target=threading.Event().wait).start()
        return "done"

    # Both take five seconds, so they do it side by side.
    kept_by_a_thread, cut_off = pool.submit(leave_a_thread), pool.submit(lose_the_link)
    assert kept_by_a_thread.result(within_s=30) == "done"
    assert isinstance(cut_off, JobHandle)
    outcome = cut_off.outcome(within_s=30)
    assert (outcome.kind, outcome.text) == ("lost", "it had closed its link to the pool, so it was killed")

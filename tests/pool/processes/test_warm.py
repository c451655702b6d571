"""The warm process: forks, replacement by spares or a new warm process, and its death."""

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from gates import Gate
from job_functions import began, local_engine

from fanwise.base.errors import WorkerLostError
from fanwise.links.process_state import stat_of
from fanwise.pool import JobHandle, Outcome, Pool
from fanwise.pool.interpreters import Interpreter
from fanwise.testing import within

Writer = Callable[[str, str], ModuleType]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def module(folder: Path) -> Iterator[Writer]:
    """Return a function that writes a module and imports or reloads it."""
    written: list[str] = []

    def write(name: str, text: str) -> ModuleType:
        (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        written.append(name)
        if name in sys.modules:
            return importlib.reload(sys.modules[name])
        return importlib.import_module(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


def finished(handle: object) -> JobHandle:
    assert isinstance(handle, JobHandle)
    handle.outcome(within_s=60)
    return handle


def outcome(handle: object) -> Outcome:
    return finished(handle).outcome(0)


def warm_of(pool: Pool) -> Interpreter:
    warm = local_engine(pool).worker_set._warm
    assert warm is not None
    return warm


def warm_pid(pool: Pool) -> int:
    """The pid of the warm process, once it has linked up and is prepared."""
    return pool.submit(os.getppid).result(within_s=60)  # type: ignore[no-any-return]  # an int


def test_jobs_are_forked_by_a_process_with_one_thread_that_is_not_the_users(pool: Pool) -> None:
    def parent_and_threads() -> tuple[int, int, bool]:
        import threading

        return os.getppid(), threading.active_count(), hasattr(sys.modules["__main__"], "__file__")

    parent, threads, has_main_file = pool.submit(parent_and_threads).result(within_s=30)
    assert (parent == warm_pid(pool), threads, has_main_file) == (True, 1, False)
    assert parent != os.getpid()


def test_modules_of_a_function_are_imported_before_the_fork(pool: Pool, module: Writer) -> None:
    user_module = module(
        "fanwise_test_slow", "import os\nimported_by = os.getpid()\ndef who():\n    return imported_by, os.getppid()\n"
    )
    imported_by, parent = pool.submit(user_module.who).result(within_s=30)
    assert imported_by == parent


def test_a_changed_source_file_is_seen_by_the_next_job(module: Writer) -> None:
    with Pool(cpus=2, seed=1) as pool:
        user_module = module("fanwise_test_edited", "def version():\n    return 1\n")
        assert pool.submit(user_module.version).result(within_s=60) == 1
        before = warm_pid(pool)
        assert pool.submit(user_module.version).result(within_s=60) == 1
        module("fanwise_test_edited", "def version():\n    return 'two'\n")
        assert pool.submit(user_module.version).result(within_s=60) == "two"
        assert warm_pid(pool) != before
        within(10, lambda: not os.path.exists(f"/proc/{before}"), "the old warm process, which has no job, is gone")


def test_the_job_of_an_outdated_warm_process_runs_to_its_end(module: Writer, gate: Gate) -> None:
    def wait_and_ask() -> object:
        import fanwise_test_edited  # type: ignore[import-not-found]  # written by the test

        gate.wait()
        return fanwise_test_edited.VERSION

    with Pool(cpus=2, seed=1) as pool:
        module("fanwise_test_edited", "VERSION = 1\n")
        old = began(pool.submit(wait_and_ask))
        module("fanwise_test_edited", "VERSION = 'two'\n")
        new = began(pool.submit(wait_and_ask))
        gate.open(2)
        assert (old.result(within_s=30), new.result(within_s=30)) == (1, "two")


STARTS_A_THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


def thread_count() -> tuple[int, int]:
    import fanwise_test_threads  # type: ignore[import-not-found]  # noqa: F401  # written by the test

    return threading.active_count(), os.getpid()


def test_jobs_run_in_spares_if_an_import_starts_a_thread_and_one_warning_names_the_module(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "fanwise_test_threads.py").write_text(STARTS_A_THREAD)
    with Pool(cpus=2, seed=1) as pool:
        handles = [finished(pool.submit(thread_count)) for _ in range(3)]
        assert [handle.result(0) for handle in handles] == [(2, handle.pid) for handle in handles]
        assert {handle.how for handle in handles} == {"spare"}
        assert finished(pool.submit(abs, -1)).how == "fork"
        interpreters = local_engine(pool).worker_set.interpreters._all
        within(30, lambda: [i.kind for i in [*interpreters.values()]].count("spare") == 1, "one spare waits, no more")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [
        "fanwise_test_threads started threads while it was imported: jobs run in fresh spares, which is slower"
    ]


def test_pandas_beside_pyarrow_leaves_forks_possible(folder: Path, module: Writer) -> None:
    pytest.importorskip("pyarrow")
    frames = module(
        "fanwise_test_frames", "import pandas as pd\ndef rows():\n    return len(pd.DataFrame({'x': [1, 2]}))\n"
    )
    with Pool(cpus=1) as pool:
        handles = [finished(pool.submit(frames.rows)) for _ in range(2)]
        assert [handle.result(within_s=60) for handle in handles] == [2, 2]
        assert {handle.how for handle in handles} == {"fork"}


def test_a_spare_that_has_become_outdated_is_not_used(folder: Path) -> None:
    def version() -> object:
        import fanwise_test_threads

        return fanwise_test_threads.VERSION

    (folder / "fanwise_test_threads.py").write_text(STARTS_A_THREAD + "VERSION = 1\n")
    with Pool(cpus=1, seed=1) as pool:
        assert pool.submit(version).result(within_s=60) == 1
        workers = local_engine(pool).worker_set
        within(60, lambda: workers._idle_spare is not None and workers._idle_spare.prepared, "a spare waits")
        (folder / "fanwise_test_threads.py").write_text(STARTS_A_THREAD + "VERSION = 'two'\n")
        assert pool.submit(version).result(within_s=60) == "two"


def test_a_crash_during_an_import_is_an_error_of_the_job(folder: Path) -> None:
    def crash() -> None:
        import fanwise_test_crashes  # type: ignore[import-not-found]  # noqa: F401  # written by the test

    with Pool(cpus=2, seed=1) as pool:
        path = folder / "fanwise_test_crashes.py"
        path.write_text("import ctypes\nprint('about to crash', flush=True)\nctypes.string_at(0)\n")
        for handle in [pool.submit(crash) for _ in range(2)]:
            died = outcome(handle)
            assert died.kind == "lost"
            assert died.text.startswith("WorkerLostError: the warm process ended by SIGSEGV. A crash in native code")
            assert 'fanwise_test_crashes.py", line 3' in died.text  # the line that crashed
            assert "It was importing what 'crash' needs" in died.text
            with pytest.raises(WorkerLostError, match="SIGSEGV"):
                finished(handle).result(0)
        assert local_engine(pool).worker_set.interpreters._last_number <= 2
        path.write_text("")
        assert outcome(pool.submit(crash)).kind == "returned"


def test_a_failing_import_is_an_error_of_the_job_until_the_file_is_edited(module: Writer) -> None:
    with Pool(cpus=2, seed=1) as pool:
        for text, kind, reason in (
            ("raise RuntimeError('no licence')", "exception", "RuntimeError: no licence"),
            ("import sys; sys.exit(5)", "exit", "SystemExit: 5"),
        ):
            user_module = module("fanwise_test_fails", "def answer():\n    return 42\n")
            Path(user_module.__file__ or "").write_text(text + "\n")
            broken = outcome(pool.submit(user_module.answer))
            assert (broken.kind, reason in broken.text) == (kind, True)
            Path(user_module.__file__ or "").write_text("def answer():\n    return 43\n")
            assert pool.submit(user_module.answer).result(within_s=60) == 43


# -- the death of the warm process -------------------------------------------------------------------------------------


def test_jobs_of_a_killed_warm_process_are_lost_and_the_next_one_runs() -> None:
    with Pool(cpus=2, seed=1) as pool:
        handles = [pool.submit(signal.pause) for _ in range(2)]
        for handle in handles:
            assert isinstance(handle, JobHandle) and handle.wait_began(60)
        queued = pool.submit(abs, -7)
        pid = warm_of(pool).pid
        os.kill(pid, signal.SIGKILL)
        for handle in handles:
            died = outcome(handle)
            assert died.kind == "lost"
            assert died.text.startswith(f"it was lost: its warm process (pid {pid}) ended by SIGKILL")
            assert not os.path.exists(f"/proc/{finished(handle).pid}")
        assert queued.result(within_s=60) == 7


def test_a_job_runs_in_a_new_warm_process_if_the_first_one_is_killed_while_it_imports(folder: Path) -> None:
    pids = folder / "pids"
    (folder / "fanwise_test_slow_import.py").write_text(
        f"import os, pathlib, signal\n"
        f"path = pathlib.Path({str(pids)!r})\n"
        f"first = not path.exists()\n"
        f"path.write_text(f'{{os.getpid()}}.')\n"
        f"if first:\n"
        f"    signal.pause()\n"
    )

    def use() -> int:
        import fanwise_test_slow_import  # type: ignore[import-not-found]  # noqa: F401  # written by the test

        return os.getppid()

    with Pool(cpus=1, seed=1) as pool:
        handle = pool.submit(use)
        within(60, lambda: pids.exists() and pids.read_text().endswith("."), "the warm process is importing")
        first = int(pids.read_text().rstrip("."))
        os.kill(first, signal.SIGKILL)
        assert handle.result(within_s=60) != first


def test_a_job_is_lost_if_its_warm_process_is_killed_three_times(folder: Path) -> None:
    (folder / "fanwise_test_kills.py").write_text("import os\nos.kill(os.getpid(), 9)\n")

    def use() -> None:
        import fanwise_test_kills  # type: ignore[import-not-found]  # noqa: F401  # written by the test

    with Pool(cpus=1, seed=1) as pool:
        died = outcome(pool.submit(use))
        assert (died.kind, "the warm process ended by SIGKILL" in died.text) == ("lost", True)
        assert local_engine(pool).worker_set.interpreters._last_number == 3


def test_a_job_is_started_again_if_the_warm_process_is_killed_before_it_forks() -> None:
    with Pool(cpus=1, seed=1) as pool:
        pid = warm_pid(pool)
        os.kill(pid, signal.SIGSTOP)
        handle = pool.submit(os.getppid)
        within(30, lambda: warm_of(pool).unanswered == 1, "the warm process was asked to fork")
        os.kill(pid, signal.SIGKILL)
        assert handle.result(within_s=60) != pid


def test_a_job_can_be_killed_while_the_warm_process_is_stopped() -> None:
    with Pool(cpus=1, seed=1) as pool:
        pid = warm_pid(pool)
        os.kill(pid, signal.SIGSTOP)
        handle = pool.submit(os.getppid)
        within(30, lambda: warm_of(pool).unanswered == 1, "the warm process was asked to fork")
        assert isinstance(handle, JobHandle)
        handle.kill()
        done = threading.Event()
        pool._life.on_hub(done.set)  # after the kill, which was handed in before
        assert done.wait(30)
        os.kill(pid, signal.SIGCONT)
        assert outcome(handle).kind in ("stopped", "signal")
        assert pool.submit(os.getppid).result(within_s=60) == pid


def test_a_stopped_child_that_was_forked_ahead_is_replaced(gate: Gate) -> None:
    with Pool(cpus=2, seed=1) as pool:
        pool.submit(os.getpid).result(within_s=60)  # to import for a function drops the child that waits
        running = began(pool.submit(gate.wait))
        warm = warm_of(pool).pid

        def stopped_while_it_waits() -> int:
            """The pid of the child that was forked ahead, while `running` is the only job."""
            children = Path(f"/proc/{warm}/task/{warm}/children")
            (pid,) = within(30, lambda: {*map(int, children.read_text().split())} - {running.pid}, "a child waits")
            os.kill(pid, signal.SIGSTOP)
            within(30, lambda: stat_of(pid).state == "T", "it is stopped")
            return pid

        first = stopped_while_it_waits()
        assert pool.submit(os.getpid).result(within_s=30) != first
        within(30, lambda: not os.path.exists(f"/proc/{first}"), "another process has taken the job, and it is gone")
        second = stopped_while_it_waits()
        gate.open()
        running.result(within_s=30)
        within(30, lambda: not os.path.exists(f"/proc/{second}"), "no job came, and it is gone")


def test_a_spare_that_is_killed_while_it_waits_is_replaced(folder: Path) -> None:
    (folder / "fanwise_test_threads.py").write_text(STARTS_A_THREAD)
    with Pool(cpus=1, seed=1) as pool:
        pool.submit(thread_count).result(within_s=60)
        workers = local_engine(pool).worker_set
        within(60, lambda: workers._idle_spare is not None and workers._idle_spare.prepared, "a spare waits")
        spare = workers._idle_spare
        assert spare is not None
        os.kill(spare.pid, signal.SIGKILL)
        assert pool.submit(thread_count).result(within_s=60)[1] != spare.pid


def test_the_warm_process_keeps_at_most_32_functions(pool: Pool) -> None:
    def num_loaded() -> int:
        frame = sys._getframe()
        while frame.f_code.co_name != "_fork":
            assert frame.f_back is not None
            frame = frame.f_back
        return len(frame.f_locals["self"].inherited.functions)

    for number in range(36):
        assert pool.submit(lambda number=number: number).result(within_s=30) == number
    assert 32 <= pool.submit(num_loaded).result(within_s=30) <= 33


def test_data_of_a_closed_pool_is_freed_also_if_the_next_pool_runs_jobs_at_once(module: Writer) -> None:
    text = (
        "import weakref\n"
        "alive = weakref.WeakSet()\n"
        "class Node:\n"
        "    def __init__(self):\n"
        "        self.me = self  # only a garbage collection frees it\n"
        "        alive.add(self)\n"
        "    def __reduce__(self):\n"
        "        return Node, ()\n"
    )
    nodes = module("nodes_of_pools", text)
    node = nodes.Node()
    with Pool(cpus=1) as pool:
        assert outcome(pool.submit(lambda: node is not None)).kind == "returned"
    with Pool(cpus=1) as pool:

        def num_alive() -> int:
            return int(pool.submit(lambda: len(nodes.alive)).result(within_s=60))

        assert num_alive() == 1
        within(60, lambda: num_alive() == 0, "it was freed")

"""The warm process is kept for the next pool of this process while its environment is the same."""

import os
import resource
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from gates import Gate
from job_functions import began, local_engine, submitted
from process_tree import MARKER, running_processes

from fanwise.pool import Pool, backend
from fanwise.pool.backend import release, start_ahead
from fanwise.testing import within

GONE_WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def release_kept_backend() -> None:
    release()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `probe` that records its imports and the variable FLAVOR."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "probe", raising=False)
    path = tmp_path / "probe.py"
    path.write_text(
        "import os\n"
        f"with open({str(tmp_path / 'imports')!r}, 'a') as file:\n"
        "    file.write(f'{os.getpid()}\\n')\n"
        "FLAVOR = os.environ.get('FLAVOR')\n"
        "VALUE = 1\n"
    )
    return path


def read_probe() -> tuple[str | None, int]:
    import probe  # type: ignore[import-not-found]

    return probe.FLAVOR, probe.VALUE


def num_imports(module: Path) -> int:
    path = module.with_name("imports")
    return len(path.read_text().splitlines()) if path.exists() else 0


def warm_pid() -> int:
    return os.getppid()


def processes() -> set[int]:
    return running_processes(os.environ.get(MARKER, ""))


def test_the_next_pool_forks_from_the_same_warm_process() -> None:
    pids = set()
    for reuse in (False, True, False):  # a reused worker leaves first
        with Pool(cpus=1) as pool:
            pids.add(pool.needs(reuse=reuse).submit(warm_pid).result(within_s=60))
    assert len(pids) == 1


def test_modules_are_imported_once_for_two_pools_and_again_when_their_source_is_edited(module: Path) -> None:
    for _ in range(2):
        with Pool(cpus=1) as pool:
            assert pool.submit(read_probe).result(within_s=60) == (None, 1)
    assert num_imports(module) == 1
    module.write_text(module.read_text().replace("VALUE = 1", "VALUE = 22"))
    with Pool(cpus=1) as pool:
        assert pool.submit(read_probe).result(within_s=60) == (None, 22)
    assert num_imports(module) == 2


def test_two_open_pools_have_separate_processes() -> None:
    with Pool(cpus=1) as first, Pool(cpus=1) as second:
        pids = [pool.submit(warm_pid).result(within_s=60) for pool in (first, second)]
    assert len(set(pids)) == 2
    assert len([pid for pid in processes() if pid in pids]) == 1, "one of them is kept"


@pytest.mark.parametrize("change", ["variable", "folder", "path", "umask", "limit"])
def test_a_new_warm_process_is_started_when_the_environment_has_changed(
    change: str, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAVOR", "plain")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "probe.py").write_text("FLAVOR, VALUE = 'other', 3\n")
    with Pool(cpus=1) as pool:
        assert pool.submit(read_probe).result(within_s=60) == ("plain", 1)
        warm = pool.submit(warm_pid).result(within_s=60)
    with ExitStack() as stack:
        match change:
            case "variable":
                monkeypatch.setenv("FLAVOR", "sweet")
            case "folder":
                monkeypatch.chdir(tmp_path)
            case "path":
                monkeypatch.syspath_prepend(str(tmp_path / "other"))
            case "umask":
                stack.callback(os.umask, os.umask(0o027))
            case _:
                soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        with Pool(cpus=1) as pool:
            expected = {"variable": ("sweet", 1), "path": ("other", 3)}.get(change, ("plain", 1))
            assert pool.submit(read_probe).result(within_s=60) == expected
            assert pool.submit(warm_pid).result(within_s=60) != warm


def test_modules_are_imported_before_there_is_a_pool(module: Path) -> None:
    start_ahead(read_probe)
    within(60, lambda: num_imports(module) == 1, "the module is imported")
    with Pool(cpus=1) as pool:
        assert pool.submit(read_probe).result(within_s=60) == (None, 1)
    assert num_imports(module) == 1


def test_nothing_is_started_ahead_inside_a_job() -> None:
    def start() -> bool:
        start_ahead(int)
        return backend._cached is None

    with Pool(cpus=1) as pool:
        assert pool.submit(start).result(within_s=60)


def test_the_processes_of_a_pool_with_running_jobs_are_not_kept(gate: Gate) -> None:
    with Pool(cpus=2) as pool:
        warm = pool.submit(warm_pid).result(within_s=60)
        began(pool.submit(gate.wait))
    assert warm not in processes()


def test_a_loop_with_hooks_is_not_kept() -> None:
    with Pool(cpus=1) as pool:
        pool.submit(int).result(within_s=60)
        hub = pool._engine.loop
        hub.at_turn_end(lambda: None)
    assert hub.is_closed


def test_a_warm_process_that_hangs_in_an_import_is_not_kept(module: Path) -> None:
    module.write_text(module.read_text() + "import time\ntime.sleep(600)\n")
    with Pool(cpus=1) as pool:
        handle = submitted(pool.submit(read_probe))
        within(60, lambda: num_imports(module) == 1, "the import has begun")
        hanging = local_engine(pool).worker_set._warm
        handle.stop()
        assert handle.outcome(within_s=60).kind == "stopped"
    assert hanging is not None and hanging.pid not in processes()


def test_a_forked_child_does_not_use_the_backend_of_its_parent() -> None:
    with Pool(cpus=1) as pool:
        warm = pool.submit(warm_pid).result(within_s=60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            release()  # as at its exit
            with Pool(cpus=1) as pool:
                code = 0 if pool.submit(warm_pid).result(within_s=60) != warm else 2
            release()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Pool(cpus=1) as pool:
        assert pool.submit(warm_pid).result(within_s=60) == warm


PROGRAM = """
from fanwise.pool import Pool
with Pool(cpus=1) as pool:
    pool.submit(int).result(60)
"""


@pytest.mark.parametrize("is_used", [True, False])
def test_an_idle_backend_ends_with_its_thread(is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "IDLE_S", 0.0)
    threads = set(threading.enumerate())
    before = processes()
    if is_used:
        with Pool(cpus=1) as pool:
            pool.submit(int).result(within_s=60)
    else:
        start_ahead(int)
    within(GONE_WITHIN_S, lambda: processes() <= before, "the processes are gone")
    within(GONE_WITHIN_S, lambda: set(threading.enumerate()) <= threads, "the threads are gone")


def test_the_timer_of_a_backend_is_canceled_when_it_is_used_again() -> None:
    with Pool(cpus=1) as pool:
        pool.submit(int).result(within_s=60)
        kept_backend = pool._life._backend
    assert kept_backend is not None
    timer = within(10, lambda: kept_backend.timer, "the clock runs")
    with Pool(cpus=1) as pool:
        pool.submit(int).result(within_s=60)
        assert pool._life._backend is kept_backend
        assert timer.call is None


def test_a_kept_warm_process_ends_with_its_program() -> None:
    before = processes()
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    assert processes() <= before

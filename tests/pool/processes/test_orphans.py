"""Nothing outlives its job, its pool or its owner, also after a kill of any process of the pool.

The owner is a separate program. Its processes are found by a variable in their environment.
"""

import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from gates import Gate
from job_functions import began, local_engine, submitted
from process_tree import MARKER, running_processes

from fanwise.links.process_state import stat_of
from fanwise.pool import JobHandle, Pool, interpreters, processes
from fanwise.pool.processes import TAG, all_pids, boot_s, kill_lineage
from fanwise.testing import within

GONE_WITHIN_S = 30.0


def start_processes(folder: Path) -> None:
    """Start a child, a daemon, a daemon without environment and a forked daemon, and write their pids to files."""
    import subprocess

    own_pid = os.getpid()
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{own_pid}.child").write_text(f"{child.pid}.")
    subprocess.run(
        ["setsid", "sh", "-c", f"sleep 600 & echo $!. > {folder}/{own_pid}.daemon"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    bare = ["env", "-i", "setsid", "sh", "-c", f"/bin/sleep 600 & echo $!. > {folder}/{own_pid}.bare"]
    subprocess.run(bare, check=True, stdout=subprocess.DEVNULL)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (folder / f"{own_pid}.fork").write_text(f"{os.getpid()}.")
            while True:
                signal.pause()
        os._exit(0)
    os.wait()


def wait_for_processes(folder: Path, number: int) -> list[int]:
    return within(30, lambda: pids if len(pids := pids_in(folder)) == number else [], f"{number} processes are started")


def pids_in(folder: Path, pattern: str = "*.*") -> list[int]:
    """Return the pids in all complete files."""
    texts = [path.read_text().strip() for path in folder.glob(pattern)]
    return [int(text[:-1]) for text in texts if text.endswith(".")]


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if stat_of(pid).is_running]


@pytest.mark.parametrize("end", ["returns", "SIGKILL", "stop"])
def test_all_processes_that_a_job_has_started_end_with_it(pool: Pool, tmp_path: Path, gate: Gate, end: str) -> None:
    def job() -> None:
        start_processes(tmp_path)
        gate.wait()

    handle = submitted(pool.submit(job))
    pids = wait_for_processes(tmp_path, 4)
    assert running(pids) == pids
    if end == "SIGKILL":
        assert handle.pid is not None
        os.kill(handle.pid, signal.SIGKILL)
    elif end == "stop":
        handle.stop()
    else:
        gate.open()
    handle.outcome(within_s=30)
    assert running(pids) == []


def test_processes_of_a_running_job_survive_the_end_of_other_jobs(pool: Pool, tmp_path: Path, gate: Gate) -> None:
    def job() -> None:
        start_processes(tmp_path)
        gate.wait()

    handle = pool.submit(job)
    pids = wait_for_processes(tmp_path, 4)
    for _ in range(5):
        assert pool.submit(int).result(within_s=30) == 0
    assert running(pids) == pids
    gate.open()
    assert isinstance(handle, JobHandle)
    handle.outcome(within_s=30)
    assert running(pids) == []


def test_a_forked_daemon_ends_with_its_job_also_if_an_older_process_got_a_later_job(
    pool: Pool, tmp_path: Path, gate: Gate
) -> None:
    def job(gate: Gate, *, starts: bool) -> None:
        if starts:
            gate.wait()
            start_processes(tmp_path)
        gate.wait()

    warm = pool.submit(os.getppid).result(within_s=30)
    first = began(pool.submit(job, gate, starts=True))
    waiting = within(10, lambda: children_of(warm) - {first.pid}, "a process waits for a job")
    gate.open()
    pids = wait_for_processes(tmp_path, 4)
    within(10, lambda: boot_s() > max(stat_of(pid).started_s for pid in pids), "the clock has advanced")
    with Gate(tmp_path / "another") as another:
        later = began(pool.submit(job, another, starts=False))
        assert {later.pid} == waiting
        gate.open()
        first.outcome(within_s=30)
        assert running(pids) == []
        another.open()
        later.outcome(within_s=30)
    within(10, lambda: not children_of(warm), "no process waits when no job runs")


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_orphans_are_reaped(pool: Pool, gate: Gate) -> None:
    def leave_orphans() -> None:
        for _ in range(10):
            subprocess.run(["setsid", "sh", "-c", "true &"], check=True)
        gate.wait()

    def zombies_of_the_warm_process() -> int:
        return [stat_of(pid)[:2] for pid in all_pids()].count(("Z", os.getppid()))

    handle = began(pool.submit(leave_orphans))
    gate.open()
    handle.outcome(within_s=30)
    within(10, lambda: pool.submit(zombies_of_the_warm_process).result(within_s=30) == 0, "all are reaped")


def test_processes_of_a_job_in_a_spare_end_with_it(unforkable_module: str, tmp_path: Path, gate: Gate) -> None:
    def job() -> None:
        import fanwise_test_unforkable  # type: ignore[import-not-found]  # noqa: F401

        start_processes(tmp_path)
        gate.wait()

    with Pool(cpus=1, seed=1) as pool:
        pool.submit(int).result(within_s=60)  # its warm process is older than the processes of the job
        handle = submitted(pool.submit(job))
        pids = wait_for_processes(tmp_path, 4)
        gate.open()
        handle.outcome(within_s=60)
        assert handle.how == "spare"
        # A daemon without a tag may have been started by any of the older processes.
        tagged = [pid for pid in pids if pid not in pids_in(tmp_path, "*.bare")]
        within(GONE_WITHIN_S, lambda: not running(tagged), "no process with a tag is left")
    assert running(pids) == []


# -- deaths of owner, guard, supervisor and warm process ---------------------------------------------------------------

OWNER = """
import ctypes, os, signal, sys
from pathlib import Path
from fanwise.pool import Pool
from fanwise.pool.backend import release

{definitions}

def job(folder):
    start_processes(Path(folder))
    signal.pause()

if __name__ == "__main__":
    pool = Pool(cpus=2, seed=1)
    handles = [pool.submit(job, {folder!r}) for _ in range(4)]
    assert all(handle.wait_began(60) for handle in handles[:2])
    interpreters = pool._engine.worker_set.interpreters
    supervisor = interpreters._supervisor_link.peer.pid
    print(interpreters._guard.pid, supervisor, pool._engine.worker_set._warm.pid, pool._life.folder, flush=True)
    for line in sys.stdin:
        if line == "outcomes\\n":
            print([handle.outcome(60).kind for handle in handles[:2]], flush=True)
            for handle in handles:
                handle.kill()
            print([pool.needs(cpus=2).submit(abs, -5).result(60)], flush=True)
        elif line == "close\\n":
            pool.close()
            print("closed", flush=True)
        elif line == "release\\n":
            release()
            print("released", flush=True)
        elif line == "fork\\n":
            libc = ctypes.CDLL(None)
            pid = libc.fork()  # Python is not told, so nothing of the pool is closed in the child
            if pid == 0:
                libc.pause()
            print(pid, flush=True)
        elif line == "exit\\n":
            sys.exit(0)
        elif line == "raise\\n":
            raise RuntimeError("the user's program fails")
"""


class Owner(NamedTuple):
    """A program with a pool of two running and two queued jobs."""

    process: "subprocess.Popen[str]"
    guard: int
    supervisor: int
    warm: int
    folder: Path
    other_pids: set[int]

    def processes(self) -> set[int]:
        """Return all running processes below it."""
        return set(running(list(running_processes(os.environ[MARKER]) - self.other_pids - {self.process.pid})))

    def kill(self, victims: str) -> None:
        """Send SIGKILL to `victims`, such as "owner and supervisor", one after another."""
        pids = {
            "owner": self.process.pid,
            "guard": self.guard,
            "supervisor": self.supervisor,
            "warm process": self.warm,
        }
        kill(*(pids[name] for name in victims.split(" and ")))

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def receive(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    other_pids = running_processes()
    script = tmp_path / "owner"  # without a dot, see `pids_in`
    script.write_text(OWNER.format(definitions=inspect.getsource(start_processes), folder=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as process:
        assert process.stdout is not None
        guard, supervisor, warm, folder = process.stdout.readline().split()
        yield Owner(process, int(guard), int(supervisor), int(warm), Path(folder), other_pids)
        process.kill()


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it died with an earlier one
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "victims",
    [
        "owner",
        "owner and guard",
        "owner and supervisor",
        "owner and warm process",
        "supervisor and owner",
        pytest.param("owner and supervisor and warm process", marks=pytest.mark.soak),
        pytest.param("owner and guard and warm process", marks=pytest.mark.soak),
        pytest.param("guard and owner", marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left_when_the_owner_is_killed(owner: Owner, tmp_path: Path, victims: str) -> None:
    pids = wait_for_processes(tmp_path, 8)
    assert owner.processes() >= {owner.guard, owner.supervisor, owner.warm}
    assert running(pids) == pids
    owner.kill(victims)
    within(GONE_WITHIN_S, lambda: not owner.processes() and not running(pids), "no process is left")
    within(GONE_WITHIN_S, lambda: not owner.folder.exists(), "the folder of the pool is gone")


def test_the_kernel_ends_jobs_when_owner_guard_and_supervisor_are_killed_at_once(owner: Owner, tmp_path: Path) -> None:
    pids = wait_for_processes(tmp_path, 8)
    jobs = [int(path.stem) for path in tmp_path.glob("*.child")]
    try:
        owner.kill("owner and guard and supervisor")
        # Nothing ends the processes that the jobs have started.
        within(GONE_WITHIN_S, lambda: not running([owner.warm, *jobs]), "the kernel has ended warm process and jobs")
        assert len(jobs) == 2
    finally:
        kill(*running(pids))
        shutil.rmtree(owner.folder)


def test_the_death_of_the_owner_is_noticed_although_a_child_keeps_its_sockets(owner: Owner) -> None:
    owner.send("fork")
    child = int(owner.receive())
    kill(owner.process.pid)
    within(GONE_WITHIN_S, lambda: owner.processes() == {child}, "no process of the pool is left")
    kill(child)
    within(GONE_WITHIN_S, lambda: not owner.processes(), "nor its own child")


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_nothing_is_left_when_the_owner_ends_without_closing_its_pool(owner: Owner, tmp_path: Path, how: str) -> None:
    wait_for_processes(tmp_path, 8)
    owner.send(how)
    assert owner.process.wait(30) == (0 if how == "exit" else 1)
    within(GONE_WITHIN_S, lambda: not owner.processes(), "no process is left")
    within(GONE_WITHIN_S, lambda: not owner.folder.exists(), "the folder of the pool is gone")


@pytest.mark.parametrize(
    "victims",
    [
        "warm process",
        "supervisor",
        "guard",
        "supervisor and warm process",
        "guard and warm process",
        "supervisor and guard",
        pytest.param("guard and supervisor", marks=pytest.mark.soak),
    ],
)
def test_all_processes_of_jobs_end_when_processes_of_the_pool_are_killed_and_later_jobs_run(
    owner: Owner, tmp_path: Path, victims: str
) -> None:
    pids = wait_for_processes(tmp_path, 8)
    owner.kill(victims)
    if "supervisor" in victims and "guard" in victims:  # no process is left that could find a daemon without a tag
        kill(*running(pids_in(tmp_path, "*.bare")))
    within(GONE_WITHIN_S, lambda: not running([*pids, owner.warm]), "no process of the two jobs is left")
    owner.send("outcomes")
    assert owner.receive() == "['lost', 'lost']"
    assert owner.receive() == "[5]"
    for command, answer in (("close", "closed"), ("release", "released")):
        owner.send(command)
        assert owner.receive() == answer
    assert owner.processes() == set()
    assert not owner.folder.exists()


def test_supervisor_and_guard_ignore_signals_of_a_terminal(pool: Pool) -> None:
    launched = local_engine(pool).worker_set.interpreters
    guard, link = launched._guard, launched._supervisor_link
    assert guard is not None and link is not None
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(guard.pid, number)
        os.kill(link.peer.pid, number)
    assert pool.submit(abs, -1).result(within_s=30) == 1
    assert guard.poll() is None and link.ending is None


@pytest.fixture
def delayed_cleanup(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Before it ends the leftovers of a dead supervisor, the owner sets the first event and waits for the second."""
    is_waiting, may_continue = threading.Event(), threading.Event()

    def kill_lineage_later(lineage: str) -> None:
        is_waiting.set()
        may_continue.wait()
        kill_lineage(lineage)

    monkeypatch.setattr(interpreters, "kill_lineage", kill_lineage_later)
    yield is_waiting, may_continue
    may_continue.set()


def test_the_hub_answers_during_the_cleanup_after_a_killed_guard(
    delayed_cleanup: tuple[threading.Event, threading.Event],
) -> None:
    is_waiting, may_continue = delayed_cleanup
    with Pool(cpus=1, seed=1) as pool:
        running = began(pool.submit(signal.pause))
        guard = local_engine(pool).worker_set.interpreters._guard
        assert guard is not None
        guard.kill()
        assert is_waiting.wait(30)
        turn = threading.Event()
        local_engine(pool).loop.call_soon(turn.set)
        assert turn.wait(10)
        next_job = pool.submit(abs, -1)
        may_continue.set()
        assert next_job.result(within_s=60) == 1
        assert running.outcome(within_s=60).kind == "lost"


def test_closing_waits_for_the_cleanup_after_a_killed_guard(
    delayed_cleanup: tuple[threading.Event, threading.Event],
) -> None:
    is_waiting, may_continue = delayed_cleanup
    pool = Pool(cpus=1, seed=1)
    pool.submit(int).result(within_s=60)
    guard = local_engine(pool).worker_set.interpreters._guard
    assert guard is not None
    guard.kill()
    assert is_waiting.wait(30)
    hub, closing = pool._engine.loop, threading.Thread(target=pool.close)
    closing.start()
    within(30, lambda: hub.is_closed, "the hub is closed")
    assert closing.is_alive(), "it waits for the cleanup"
    may_continue.set()
    closing.join(30)
    assert not closing.is_alive()


def test_a_guard_that_is_killed_during_its_start_is_replaced() -> None:
    with Pool(cpus=1, seed=1) as pool:
        done = threading.Event()

        def kill_supervisor() -> None:
            guard = local_engine(pool).worker_set.interpreters._guard
            assert guard is not None
            guard.kill()
            done.set()

        handle = pool.submit(abs, -1)
        pool._engine.loop.call_soon(kill_supervisor)
        assert done.wait(10)
        assert handle.result(within_s=60) == 1


def test_a_process_that_starts_during_the_search_for_a_lineage_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = "0.a-lineage-of-this-test"
    started: list[subprocess.Popen[bytes]] = []

    def listed() -> list[int]:
        pids = all_pids()
        if not started:
            started.append(subprocess.Popen(["sleep", "600"], env={**os.environ, TAG: lineage}))
        return pids

    try:
        monkeypatch.setattr(processes, "all_pids", listed)
        kill_lineage(lineage)
        assert started[0].wait(GONE_WITHIN_S) == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].wait()

"""Nothing outlives its job, its pool or its owner: not what a job started, nor after a kill of any process of ours.

The owner is a program of its own here. Its processes are found by a variable in their environment, wherever they hang.
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
from typing import Any, NamedTuple

import pytest
from gates import Gate
from job_functions import began, local_engine, submitted
from process_tree import MARKER, running_processes

from fanwise.links.process_state import stat_of
from fanwise.pool import JobHandle, Pool, interpreters, processes
from fanwise.pool.processes import TAG, all_pids, boot_s, kill_lineage, tag_of
from fanwise.testing import within

# 2 s is the promise; a loaded machine gets much more.
GONE_WITHIN_S = 30.0


def start_a_family(folder: Path) -> None:
    """A child, two daemons, one of them without our environment, a plain fork that left: their pids go into files."""
    import subprocess

    me = os.getpid()
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{me}.child").write_text(f"{child.pid}.")
    subprocess.run(
        ["setsid", "sh", "-c", f"sleep 600 & echo $!. > {folder}/{me}.daemon"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    bare = ["env", "-i", "setsid", "sh", "-c", f"/bin/sleep 600 & echo $!. > {folder}/{me}.bare"]
    subprocess.run(bare, check=True, stdout=subprocess.DEVNULL)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (folder / f"{me}.fork").write_text(f"{os.getpid()}.")
            while True:
                signal.pause()
        os._exit(0)
    os.wait()


def family(folder: Path, size: int) -> list[int]:
    """The pids in the files, when all are there."""

    return within(30, lambda: pids if len(pids := pids_in(folder)) == size else [], f"{size} processes were started")


def pids_in(folder: Path, pattern: str = "*.*") -> list[int]:
    """The pids in the files that are there and complete."""
    texts = [path.read_text().strip() for path in folder.glob(pattern)]
    return [int(text[:-1]) for text in texts if text.endswith(".")]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not is_zombie(pid)]


def is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


@pytest.mark.parametrize("end", ["returns", "SIGKILL", "stop"])
def test_what_a_job_started_is_gone_when_the_job_is_done(pool: Pool, tmp_path: Path, gate: Gate, end: str) -> None:
    def job() -> None:
        start_a_family(tmp_path)
        gate.wait()

    handle = submitted(pool.submit(job))
    pids = family(tmp_path, 4)
    assert alive(pids) == pids
    if end == "SIGKILL":
        assert handle.pid is not None
        os.kill(handle.pid, signal.SIGKILL)
    elif end == "stop":
        handle.stop()
    else:
        gate.open()
    handle.outcome(within_s=30)
    assert alive(pids) == []


def test_what_a_living_job_started_is_left_alone_when_another_one_ends(pool: Pool, tmp_path: Path, gate: Gate) -> None:
    def job() -> None:
        start_a_family(tmp_path)
        gate.wait()

    handle = pool.submit(job)
    pids = family(tmp_path, 4)
    for _ in range(5):
        assert pool.submit(int).result(within_s=30) == 0
    assert alive(pids) == pids
    gate.open()
    assert isinstance(handle, JobHandle)
    handle.outcome(within_s=30)
    assert alive(pids) == []


def test_a_fork_that_left_is_gone_with_its_job_also_while_one_runs_whose_process_waited_for_it(
    pool: Pool, tmp_path: Path, gate: Gate
) -> None:
    """The process was there before the fork, but had no job yet: so the fork is not its own."""

    def job(gate: Gate, *, starts: bool) -> None:
        if starts:
            gate.wait()
            start_a_family(tmp_path)
        gate.wait()

    warm = pool.submit(os.getppid).result(within_s=30)
    first = began(pool.submit(job, gate, starts=True))
    waiting = within(10, lambda: children_of(warm) - {first.pid}, "a process waits for a job")
    gate.open()
    pids = family(tmp_path, 4)
    within(10, lambda: boot_s() > max(stat_of(pid).started_s for pid in pids), "the clock of processes has gone on")
    with Gate(tmp_path / "another") as another:
        later = began(pool.submit(job, another, starts=False))
        assert {later.pid} == waiting
        gate.open()
        first.outcome(within_s=30)
        assert alive(pids) == []
        another.open()
        later.outcome(within_s=30)
    within(10, lambda: not children_of(warm), "no process waits when no job runs")


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_orphans_that_end_by_themselves_are_reaped(pool: Pool, gate: Gate) -> None:
    def leave_orphans() -> None:
        for _ in range(10):
            subprocess.run(["setsid", "sh", "-c", "true &"], check=True)
        gate.wait()

    def zombies_of_the_warm_process() -> int:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        stats = [Path(f"/proc/{name}/stat") for name in names]
        fields = []
        for stat in stats:
            with contextlib.suppress(OSError):
                fields.append(stat.read_text().rpartition(")")[2].split())
        return sum(state == "Z" and int(parent) == os.getppid() for state, parent, *_ in fields)

    handle = began(pool.submit(leave_orphans))
    gate.open()
    handle.outcome(within_s=30)
    within(10, lambda: pool.submit(zombies_of_the_warm_process).result(within_s=30) == 0, "all are reaped")


def test_executed_programs_have_the_lineage_of_their_job_and_forks_that_of_the_guard(pool: Pool, gate: Gate) -> None:
    def job() -> tuple[str, str]:
        child = subprocess.Popen(["cat", str(gate.path)], stdout=subprocess.PIPE)
        line = within(10, lambda: tag_of(child.pid), "it has its environment")  # a moment after Popen returns
        child.kill()
        child.wait()
        assert line.endswith(f"/{os.getpid()}")
        return line, tag_of(os.getpid())

    of_a_child, of_a_fork = pool.submit(job).result(within_s=30)
    supervisor, warm, _ = of_a_child.split("/")[-3:]
    assert supervisor.startswith(f"{os.getpid()}.")
    assert warm == "1"
    guard = local_engine(pool).worker_set.interpreters._guard
    assert guard is not None and of_a_fork == tag_of(guard.pid)
    assert of_a_child.startswith(f"{of_a_fork}/") and of_a_fork.endswith(supervisor)


def test_a_fork_that_left_a_spare_is_gone_with_it_also_while_an_older_process_lives(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job() -> None:
        import fanwise_test_unforkable  # type: ignore[import-not-found]  # noqa: F401  # so that it runs in a spare

        start_a_family(tmp_path)
        gate.wait()

    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "fanwise_test_unforkable.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(modules))
    with Pool(cpus=1, seed=1) as pool:
        pool.submit(int).result(within_s=60)  # its warm process is older than what the job starts
        handle = submitted(pool.submit(job))
        pids = family(tmp_path, 4)
        gate.open()
        handle.outcome(within_s=60)
        assert handle.how == "spare"
        # A daemon that carries no mark may have been started by any of the older processes.
        others = [pid for pid in pids if pid not in pids_in(tmp_path, "*.bare")]
        within(GONE_WITHIN_S, lambda: not alive(others), "nothing of the job is left that carries a mark")
    assert alive(pids) == []


# -- the death of our own processes ------------------------------------------------------------------------------------

OWNER = """
import ctypes, os, signal, sys
from pathlib import Path
from fanwise.pool import Pool
from fanwise.pool.backend import release

{family}

def job(folder):
    start_a_family(Path(folder))
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
    """A program with a pool of two running and two queued jobs, and what it has started."""

    process: "subprocess.Popen[str]"
    guard: int
    supervisor: int
    warm: int
    folder: Path
    others: set[int]

    def below(self) -> set[int]:
        """Every process of it but itself, zombies left out."""
        return set(alive(list(running_processes(os.environ[MARKER]) - self.others - {self.process.pid})))

    def kill(self, victims: str) -> None:
        """SIGKILL, one right after the other; `victims`: such as `owner and supervisor`."""
        pids = {
            "owner": self.process.pid,
            "guard": self.guard,
            "supervisor": self.supervisor,
            "warm process": self.warm,
        }
        kill(*(pids[name] for name in victims.split(" and ")))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    others = running_processes()
    script = tmp_path / "owner"  # the family's files are those with a dot in their names
    script.write_text(OWNER.format(family=inspect.getsource(start_a_family), folder=str(tmp_path)))
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
        yield Owner(process, int(guard), int(supervisor), int(warm), Path(folder), others)
        process.kill()


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the deaths before have ended it already
            os.kill(pid, signal.SIGKILL)


OWNER_AND = ["guard", "supervisor", "warm process", "supervisor and warm process", "guard and warm process"]


def soak(*victims: str) -> list[Any]:  # Any: pytest's sets of parameters
    """Second orders of kills that follow each other at once anyway, and a third victim: half a second each."""
    return [pytest.param(each, marks=pytest.mark.soak) for each in victims]


@pytest.mark.parametrize(
    "victims",
    [
        "owner",
        *(f"owner and {other}" for other in OWNER_AND[:3]),
        *soak(*(f"owner and {other}" for other in OWNER_AND[3:])),
        "supervisor and owner",
        *soak(*(f"{other} and owner" for other in OWNER_AND if other != "supervisor")),
    ],
)
def test_nothing_is_left_when_the_owner_is_killed(owner: Owner, tmp_path: Path, victims: str) -> None:
    pids = family(tmp_path, 8)
    assert owner.below() >= {owner.guard, owner.supervisor, owner.warm}
    assert alive(pids) == pids
    owner.kill(victims)
    within(GONE_WITHIN_S, lambda: not owner.below() and not alive(pids), "no process is left")
    within(GONE_WITHIN_S, lambda: not owner.folder.exists(), "the folder of the pool is gone")


def test_the_jobs_themselves_end_even_when_owner_guard_and_supervisor_are_killed_at_once(
    owner: Owner, tmp_path: Path
) -> None:
    pids = family(tmp_path, 8)
    jobs = [int(path.stem) for path in tmp_path.glob("*.child")]
    try:
        owner.kill("owner and guard and supervisor")
        # More cannot be promised: nobody is left who could look for what the jobs have started.
        within(GONE_WITHIN_S, lambda: not alive([owner.warm, *jobs]), "the kernel has ended warm process and jobs")
        assert len(jobs) == 2
    finally:
        kill(*alive(pids))
        shutil.rmtree(owner.folder)


def test_nothing_is_left_when_the_owner_is_killed_and_a_child_of_it_keeps_its_sockets(owner: Owner) -> None:
    owner.tell("fork")
    child = int(owner.hear())
    kill(owner.process.pid)
    within(GONE_WITHIN_S, lambda: owner.below() == {child}, "no process of the pool is left")
    kill(child)
    within(GONE_WITHIN_S, lambda: not owner.below(), "nor its own child")


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_nothing_is_left_when_the_owner_ends_without_closing_its_pool(owner: Owner, tmp_path: Path, how: str) -> None:
    family(tmp_path, 8)
    owner.tell(how)
    assert owner.process.wait(30) == (0 if how == "exit" else 1)
    within(GONE_WITHIN_S, lambda: not owner.below(), "no process is left")
    within(GONE_WITHIN_S, lambda: not owner.folder.exists(), "the folder of the pool is gone")


OURS = [
    "warm process",
    "supervisor",
    "guard",
    "supervisor and warm process",
    "guard and warm process",
    "supervisor and guard",
]


@pytest.mark.parametrize("victims", [*OURS, *soak("warm process and supervisor", "guard and supervisor")])
def test_nothing_is_left_of_the_jobs_when_our_processes_are_killed_and_the_pool_goes_on(
    owner: Owner, tmp_path: Path, victims: str
) -> None:
    pids = family(tmp_path, 8)
    owner.kill(victims)
    if "supervisor" in victims and "guard" in victims:  # nobody is left who knows a daemon that carries no mark
        kill(*alive(pids_in(tmp_path, "*.bare")))
    within(GONE_WITHIN_S, lambda: not alive([*pids, owner.warm]), "no process of the two jobs is left")
    owner.tell("outcomes")
    assert owner.hear() == "['lost', 'lost']"
    assert owner.hear() == "[5]"
    for command, answer in (("close", "closed"), ("release", "released")):
        owner.tell(command)
        assert owner.hear() == answer
    assert owner.below() == set()
    assert not owner.folder.exists()


def test_a_closed_pool_leaves_nothing(owner: Owner, tmp_path: Path) -> None:
    family(tmp_path, 8)
    owner.tell("close")
    assert owner.hear() == "closed"
    assert owner.below() == set()
    assert not owner.folder.exists()


def test_supervisor_and_guard_that_are_told_to_end_by_a_terminal_stay(pool: Pool) -> None:
    launched = local_engine(pool).worker_set.interpreters
    guard, link = launched._guard, launched._supervisor_link
    assert guard is not None and link is not None
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(guard.pid, number)
        os.kill(link.peer.pid, number)
    assert pool.submit(abs, -1).result(within_s=30) == 1
    assert guard.poll() is None and link.ending is None


@pytest.mark.parametrize("victim", ["supervisor", "guard"])
def test_a_killed_supervisor_is_replaced_for_the_next_job(victim: str, caplog: pytest.LogCaptureFixture) -> None:
    def pids() -> dict[str, int]:
        launched = local_engine(pool).worker_set.interpreters
        assert launched._guard is not None and launched._supervisor_link is not None
        return {"guard": launched._guard.pid, "supervisor": launched._supervisor_link.peer.pid}

    with Pool(cpus=1, seed=1) as pool:
        pool.submit(int).result(within_s=60)
        first = pids()
        warm = local_engine(pool).worker_set._warm
        assert warm is not None
        below = [*first.values(), warm.pid]
        os.kill(first[victim], signal.SIGKILL)
        within(GONE_WITHIN_S, lambda: not alive(below), "all are gone")  # until then the next job may begin and be lost
        assert pool.submit(abs, -1).result(within_s=60) == 1
        assert not first.items() & pids().items()
    assert "the supervisor of the workers ended, and so did all workers" in caplog.text


@pytest.fixture
def late_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """When the owner is about to end what a dead supervisor left, it sets the first event and waits for the second."""
    waits, goes_on = threading.Event(), threading.Event()

    def kill_lineage_late(line: str) -> None:
        waits.set()
        goes_on.wait()
        kill_lineage(line)

    monkeypatch.setattr(interpreters, "kill_lineage", kill_lineage_late)
    yield waits, goes_on
    goes_on.set()


def test_the_hub_answers_while_the_end_of_a_killed_supervisor_is_waited_for(
    late_end: tuple[threading.Event, threading.Event],
) -> None:
    waits, goes_on = late_end
    with Pool(cpus=1, seed=1) as pool:
        running = began(pool.submit(signal.pause))
        guard = local_engine(pool).worker_set.interpreters._guard
        assert guard is not None
        guard.kill()
        assert waits.wait(30)
        turn = threading.Event()
        local_engine(pool).loop.call_soon(turn.set)
        assert turn.wait(10)
        next_job = pool.submit(abs, -1)
        goes_on.set()
        assert next_job.result(within_s=60) == 1
        assert running.outcome(within_s=60).kind == "lost"


def test_a_pool_that_is_closed_while_the_end_of_its_supervisor_is_waited_for_waits_too(
    late_end: tuple[threading.Event, threading.Event],
) -> None:
    waits, goes_on = late_end
    pool = Pool(cpus=1, seed=1)
    pool.submit(int).result(within_s=60)
    guard = local_engine(pool).worker_set.interpreters._guard
    assert guard is not None
    guard.kill()
    assert waits.wait(30)
    hub, closing = pool._hub, threading.Thread(target=pool.close)
    closing.start()
    within(30, lambda: hub.is_closed, "the hub is closed")
    assert closing.is_alive(), "it waits for the end"
    goes_on.set()
    closing.join(30)
    assert not closing.is_alive()


def test_a_supervisor_that_is_killed_while_it_starts_is_replaced() -> None:
    with Pool(cpus=1, seed=1) as pool:
        done = threading.Event()

        def kill_supervisor() -> None:
            guard = local_engine(pool).worker_set.interpreters._guard
            assert guard is not None
            guard.kill()
            done.set()

        handle = pool.submit(abs, -1)
        pool._hub.call_soon(kill_supervisor)
        assert done.wait(10)
        assert handle.result(within_s=60) == 1


def test_process_started_during_the_search_for_a_lineage_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "0.a-line-of-this-test"
    started: list[subprocess.Popen[bytes]] = []

    def listed() -> list[int]:
        pids = all_pids()
        if not started:
            started.append(subprocess.Popen(["sleep", "600"], env={**os.environ, TAG: line}))
        return pids

    try:
        monkeypatch.setattr(processes, "all_pids", listed)
        kill_lineage(line)
        assert started[0].wait(GONE_WITHIN_S) == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].wait()

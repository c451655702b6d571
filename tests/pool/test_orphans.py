"""Nothing outlives its job, its pool or its owner: not what a job started, nor after a kill of any process of ours.

The owner is a program of its own here. Its processes are found by a variable in their environment, wherever they hang.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import pytest

from fanwise.pool import JobHandle, Pool
from fanwise.pool.processes import mark_of
from fanwise.testing import within
from fanwise.testing.gates import Gate
from fanwise.testing.processes import MARKER, running_processes


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Workers cannot import test modules."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def pool(by_value: None) -> Iterator[Pool]:
    with Pool(cpus=2, seed=11) as pool:
        pool.submit(int).result(within_s=60)  # its processes are there before the test begins
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as gate:
        yield gate


# 2 s is the promise; a loaded machine gets more.
GONE_WITHIN_S = 5.0


def start_a_family(folder: Path) -> None:
    """A child, a grandchild that left the session, and a plain fork that did: their pids go into files."""
    import subprocess

    me = os.getpid()
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{me}.child").write_text(f"{child.pid}.")
    subprocess.run(
        ["setsid", "sh", "-c", f"sleep 600 & echo $!. > {folder}/{me}.daemon"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
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

    def pids() -> list[int]:
        texts = [path.read_text().strip() for path in folder.glob("*.*")]
        return [int(text[:-1]) for text in texts if text.endswith(".")] if len(texts) == size else []

    return within(30, lambda: pids() if len(pids()) == size else [], f"{size} processes were started")


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

    handle = pool.submit(job)
    assert isinstance(handle, JobHandle)
    pids = family(tmp_path, 3)
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
    pids = family(tmp_path, 3)
    for _ in range(5):
        assert pool.submit(int).result(within_s=30) == 0
    assert alive(pids) == pids
    gate.open()
    assert isinstance(handle, JobHandle)
    handle.outcome(within_s=30)
    assert alive(pids) == []


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

    handle = pool.submit(leave_orphans)
    assert isinstance(handle, JobHandle) and handle.wait_began(30)
    gate.open()
    handle.outcome(within_s=30)
    within(10, lambda: pool.submit(zombies_of_the_warm_process).result(within_s=30) == 0, "all are reaped")


def test_every_process_of_a_pool_carries_the_line_it_comes_from(pool: Pool, gate: Gate) -> None:
    def job() -> str:
        child = subprocess.Popen(["cat", str(gate.path)], stdout=subprocess.PIPE)
        line = mark_of(child.pid)
        child.kill()
        child.wait()
        return f"{line} {os.getpid()}"

    line, _, pid = pool.submit(job).result(within_s=30).partition(" ")
    keeper, warm, worker = line.split("/")[-3:]
    assert keeper.startswith(f"{os.getpid()}.")
    assert (warm, worker) == ("1", pid)


# -- the death of our own processes ------------------------------------------------------------------------------------

OWNER = """
import ctypes, os, signal, sys
from pathlib import Path
from fanwise.pool import Pool

sys.path.insert(0, {tests!r})

def job(folder):
    from test_orphans import start_a_family
    start_a_family(Path(folder))
    signal.pause()

if __name__ == "__main__":
    pool = Pool(cpus=2, seed=1)
    handles = [pool.submit(job, {folder!r}) for _ in range(4)]
    assert all(handle.wait_began(60) for handle in handles[:2])
    interpreters = pool.engine.crew._interpreters
    print(interpreters._keeper.pid, pool.engine.crew._warm.pid, pool._folder, flush=True)
    for line in sys.stdin:
        if line == "outcomes\\n":
            print([handle.outcome(60).kind for handle in handles[:2]], flush=True)
            for handle in handles:
                handle.kill()
            print([pool.needs(cpus=2).submit(abs, -5).result(60)], flush=True)
        elif line == "close\\n":
            pool.close()
            print("closed", flush=True)
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
    keeper: int
    warm: int
    folder: Path
    others: set[int]

    def below(self) -> set[int]:
        """Every process of it but itself, zombies left out."""
        return set(alive(list(running_processes(os.environ[MARKER]) - self.others - {self.process.pid})))

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
    script.write_text(OWNER.format(tests=str(Path(__file__).parent), folder=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as process:
        assert process.stdout is not None
        keeper, warm, folder = process.stdout.readline().split()
        yield Owner(process, int(keeper), int(warm), Path(folder), others)
        process.kill()


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victims", ["owner", "owner and warm process", "warm process and owner"])
def test_nothing_is_left_when_the_owner_is_killed(owner: Owner, tmp_path: Path, victims: str) -> None:
    pids = family(tmp_path, 6)
    assert owner.below() >= {owner.keeper, owner.warm, *pids}
    order = {"owner": owner.process.pid, "warm process": owner.warm}
    kill(*(order[name] for name in victims.split(" and ")))
    within(GONE_WITHIN_S, lambda: not owner.below(), "no process is left")
    within(GONE_WITHIN_S, lambda: not owner.folder.exists(), "the folder of the pool is gone")


def test_nothing_is_left_when_the_owner_is_killed_and_a_child_of_it_keeps_its_sockets(owner: Owner) -> None:
    owner.tell("fork")
    child = int(owner.hear())
    kill(owner.process.pid)
    within(GONE_WITHIN_S, lambda: owner.below() == {child}, "no process of the pool is left")
    kill(child)
    within(GONE_WITHIN_S, lambda: not owner.below(), "nor its own child")


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_nothing_is_left_when_the_owner_ends_without_closing_its_pool(owner: Owner, tmp_path: Path, how: str) -> None:
    family(tmp_path, 6)
    owner.tell(how)
    assert owner.process.wait(30) == (0 if how == "exit" else 1)
    within(GONE_WITHIN_S, lambda: not owner.below(), "no process is left")
    within(GONE_WITHIN_S, lambda: not owner.folder.exists(), "the folder of the pool is gone")


@pytest.mark.parametrize("victims", ["warm process", "keeper", "keeper and warm process", "warm process and keeper"])
def test_nothing_is_left_of_the_jobs_when_our_processes_are_killed_and_the_pool_goes_on(
    owner: Owner, tmp_path: Path, victims: str
) -> None:
    pids = family(tmp_path, 6)
    order = {"keeper": owner.keeper, "warm process": owner.warm}
    kill(*(order[name] for name in victims.split(" and ")))
    within(GONE_WITHIN_S, lambda: not alive([*pids, owner.warm]), "no process of the two jobs is left")
    owner.tell("outcomes")
    assert owner.hear() == "['lost', 'lost']"
    assert owner.hear() == "[5]"
    owner.tell("close")
    assert owner.hear() == "closed"
    assert owner.below() == set()
    assert not owner.folder.exists()


def test_a_closed_pool_leaves_nothing(owner: Owner, tmp_path: Path) -> None:
    family(tmp_path, 6)
    owner.tell("close")
    assert owner.hear() == "closed"
    assert owner.below() == set()
    assert not owner.folder.exists()


def test_a_keeper_that_is_told_to_end_by_a_terminal_stays(pool: Pool) -> None:
    keeper = pool.engine.crew._interpreters._keeper
    assert keeper is not None
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(keeper.pid, number)
    assert pool.submit(abs, -1).result(within_s=30) == 1
    assert keeper.poll() is None


def test_a_killed_keeper_is_replaced_for_the_next_job(caplog: pytest.LogCaptureFixture) -> None:
    with Pool(cpus=1, seed=1) as pool:
        pool.submit(int).result(within_s=60)
        first = pool.engine.crew._interpreters._keeper
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        assert pool.submit(abs, -1).result(within_s=60) == 1
        second = pool.engine.crew._interpreters._keeper
        assert second is not None and second.pid != first.pid
    assert "the keeper of the workers ended, and so did all workers" in caplog.text


def test_a_keeper_that_is_killed_while_it_starts_is_replaced() -> None:
    with Pool(cpus=1, seed=1) as pool:
        done = threading.Event()

        def kill_keeper() -> None:
            keeper = pool.engine.crew._interpreters._keeper
            assert keeper is not None
            keeper.kill()
            done.set()

        handle = pool.submit(abs, -1)
        pool.hub.call_soon(kill_keeper)
        assert done.wait(10)
        assert handle.result(within_s=60) == 1

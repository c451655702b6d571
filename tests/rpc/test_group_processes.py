"""Groups of real processes: who comes, goes, dies, freezes and comes back.

Each worker is a fork with a hub in a thread, which does what it is told through a pipe.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fanwise.base.errors import DeadlineExceeded, JoinError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.rendezvous.addresses import Address
from fanwise.rendezvous.unix import UnixRendezvous
from fanwise.rpc.membership.group import Group
from fanwise.testing import within

LIMIT_S = 20.0
ADDRESS = Address("tcp://127.0.0.1:29500", "port:29500", "127.0.0.1", 29500)
context = multiprocessing.get_context("fork")


class Body:
    """What a worker process does when it is told to."""

    def __init__(self, folder: Path, name: str, rank: int, world_size: int | None) -> None:
        self.hub = Hub(name="worker")
        self.hub.start()
        self.rendezvous = UnixRendezvous(ADDRESS, folder=folder)
        self.settings = {"name": name, "rank": rank, "world_size": world_size}
        self.open = (0, 0)
        self.events: list[tuple[str, object]] = []
        self.group: Group | None = None

    def join(self, within_s: float = LIMIT_S) -> int:
        address = self.rendezvous.listen(self.hub, lambda link: None)
        settings: Any = self.settings  # Any: keyword arguments of several types
        self.group = group = Group.join(self.hub, self.rendezvous, address=address, within_s=within_s, **settings)
        group.on_event.append(lambda event: self.events.append((type(event).__name__.lower(), event.member.name)))
        group.on_fenced = lambda why: self.events.append(("fenced", why))
        return group.me.incarnation

    def names(self) -> list[str]:
        assert self.group is not None
        return [member.name for member in self.group.members().values()]

    def happened(self) -> list[tuple[str, object]]:
        return list(self.events)

    def counts(self, open_now: int, begun: int) -> None:
        self.open = (open_now, begun)

    def shutdown(self, graceful: bool = True, within_s: float = LIMIT_S) -> None:
        assert self.group is not None
        self.group.shutdown(graceful=graceful, within_s=within_s, open_calls=lambda: self.open)

    def fenced(self) -> str | None:
        assert self.group is not None
        return self.group.fenced

    def refuses(self, name: str) -> str | None:
        """What it answers to a link of a worker of this name."""
        assert self.group is not None and self.stranger is not None
        return self.group.refusal(self.stranger, self.group.me.incarnation, 1)

    stranger: Any = None

    def remember(self, name: str) -> None:
        assert self.group is not None
        self.stranger = self.group.find(name)

    def be_silent(self, milliseconds: int) -> None:
        """Hold the interpreter's lock, so that no thread of this process runs."""
        ctypes.PyDLL(None).poll(None, 0, milliseconds)


def serve(pipe: Connection, body: Callable[[], Body]) -> None:
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        me = body()
        while True:
            method, args = pipe.recv()
            try:
                pipe.send((getattr(me, method)(*args), None))
            except Exception as error:
                pipe.send((None, error))
    os._exit(0)


class Worker:
    """A worker process, from the side of the test."""

    def __init__(self, folder: Path, name: str, rank: int, world_size: int | None) -> None:
        self.name = name
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, lambda: Body(folder, name, rank, world_size)), daemon=True
        )
        self.process.start()
        theirs.close()

    def begin(self, method: str, *args: object) -> "Worker":
        self.pipe.send((method, args))
        return self

    def result(self) -> Any:  # Any: what the method returned
        assert self.pipe.poll(LIMIT_S), f"{self.name} did not answer"
        value, error = self.pipe.recv()
        if error is not None:
            raise error
        return value

    def do(self, method: str, *args: object) -> Any:  # Any: what the method returned
        return self.begin(method, *args).result()

    def sees(self, *names: str) -> None:
        within(LIMIT_S, lambda: self.do("names") == list(names), f"{self.name} sees {names}")

    def saw(self, kind: str, what: str) -> None:
        within(LIMIT_S, lambda: (kind, what) in self.do("happened"), f"{self.name} saw that {what} {kind}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def end(self) -> None:
        self.kill()
        self.pipe.close()
        self.process.close()


class Workers:
    """All workers of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Worker] = []

    def start(self, rank: int, world_size: int | None, name: str = "") -> Worker:
        worker = Worker(self.folder, name or f"w{rank}", rank, world_size)
        self.all.append(worker)
        return worker

    def group(self, size: int, *, dynamic: bool = False) -> list[Worker]:
        """Workers that have joined, in order of their ranks."""
        workers = [self.start(rank, None if dynamic else size) for rank in range(size)]
        for worker in workers:
            worker.begin("join")
            if dynamic:
                worker.result()
        for worker in workers if not dynamic else ():
            worker.result()
        return workers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    folder = tmp_path / "f"
    folder.mkdir(mode=0o700)
    workers = Workers(folder)
    yield workers
    for worker in workers.all:
        worker.end()


def all_together(workers: list[Worker], method: str, *args: object) -> None:
    for worker in workers:
        worker.begin(method, *args)
    for worker in workers:
        worker.result()


def failure(worker: Worker) -> Exception:
    with pytest.raises(Exception) as caught:
        worker.result()
    return caught.value


def test_a_static_group_is_complete_when_anybody_returns_and_leaves_nothing(workers: Workers) -> None:
    four = workers.group(4)
    for worker in four:
        assert worker.do("names") == ["w0", "w1", "w2", "w3"]
    all_together(four, "shutdown")
    assert sorted(path.name for path in workers.folder.iterdir() if not path.name.startswith("w-")) == ["key", "lock"]


@pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.soak)])
def test_many_members_join_and_leave(workers: Workers, size: int) -> None:
    many = workers.group(size)
    assert len(many[-1].do("names")) == size
    all_together(many, "shutdown")


def test_the_others_wait_for_rank_0(workers: Workers) -> None:
    late, early = workers.start(0, 2), workers.start(1, 2).begin("join")
    assert not early.pipe.poll(0.1)
    late.do("join")
    early.result()
    early.sees("w0", "w1")


def test_who_finds_nobody_is_told_where_it_looked(workers: Workers) -> None:
    error = failure(workers.start(1, 2).begin("join", 0.2))
    assert isinstance(error, DeadlineExceeded)
    assert "nobody opened the group at tcp://127.0.0.1:29500 on this host within 0.2 s" in str(error)


@pytest.mark.parametrize("rank", [0, 2])
def test_who_waits_in_vain_is_told_who_is_missing(workers: Workers, rank: int) -> None:
    there = [workers.start(rank, 4) for rank in (0, 2)]
    for worker in there:
        worker.begin("join", LIMIT_S if worker.name != f"w{rank}" else 0.5)
    error = failure(there[rank // 2])
    assert isinstance(error, DeadlineExceeded) and "2 of 4 workers are there; missing: rank 1, 3" in str(error)


@pytest.mark.parametrize(
    ("rank", "size", "name", "text"),
    [
        (2, None, "w1", "RPC worker name 'w1' is not unique"),
        (1, None, "other", "rank 1, which 'other'"),
        (2, 3, "w2", "RPC group mixes statically and dynamically initialized members which is not supported."),
        (2, None, "no blanks", "name must match"),
    ],
)
def test_a_newcomer_that_does_not_fit_is_refused_and_the_group_goes_on(
    workers: Workers, rank: int, size: int | None, name: str, text: str
) -> None:
    two = workers.group(2, dynamic=True)
    error = failure(workers.start(rank, size, name).begin("join"))
    assert isinstance(error, JoinError) and isinstance(error, RuntimeError) and text in str(error)
    workers.start(2, None).do("join")
    two[0].sees("w0", "w1", "w2")


def test_another_world_size_is_refused(workers: Workers) -> None:
    first = workers.start(0, 2).begin("join")
    assert "world_size=3, but the group has world_size=2" in str(failure(workers.start(1, 3).begin("join")))
    workers.start(1, 2).do("join")
    first.result()


def test_all_of_a_static_group_learn_of_a_name_that_two_have(workers: Workers) -> None:
    three = [workers.start(rank, 3, name).begin("join") for rank, name in enumerate(["a", "b", "a"])]
    for worker in three:
        assert "RPC worker name 'a' is not unique" in str(failure(worker))


def test_a_group_may_meet_again_at_once_where_one_has_just_ended(workers: Workers) -> None:
    three = workers.group(3)
    for _ in range(3):
        for worker in three:
            worker.begin("shutdown")
        for worker in three:
            worker.begin("join")
        for worker in three:
            worker.result()
            worker.result()
    three[2].sees("w0", "w1", "w2")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_killed_worker_is_lost_and_comes_back_under_its_name(workers: Workers, dynamic: bool) -> None:
    three = workers.group(3, dynamic=dynamic)
    three[0].do("remember", "w1")
    three[1].kill()
    for worker in (three[0], three[2]):
        worker.saw("lost", "w1")
    assert "was declared lost" in three[0].do("refuses", "w1")
    again = workers.start(1, None if dynamic else 3)
    again.do("join")
    assert again.do("names") == ["w0", "w1", "w2"]
    three[2].saw("joined", "w1")


def test_the_shutdown_ends_when_a_worker_dies_in_it(workers: Workers) -> None:
    three = workers.group(3)
    for worker in (three[0], three[2]):
        worker.begin("shutdown")
    assert not three[0].pipe.poll(0.1)
    three[1].kill()
    for worker in (three[0], three[2]):
        worker.result()


def test_the_shutdown_raises_when_rank_0_dies_in_it(workers: Workers) -> None:
    three = workers.group(3)
    for worker in three[1:]:
        worker.begin("shutdown")
    assert not three[1].pipe.poll(0.1)
    three[0].kill()
    for worker in three[1:]:
        error = failure(worker)
        assert isinstance(error, WorkerLostError) and "because worker 'w0' (rank 0" in str(error)


def test_the_shutdown_waits_for_open_calls(workers: Workers) -> None:
    two = workers.group(2)
    two[0].do("counts", 1, 1)
    two[0].begin("shutdown", True, 0.5)
    two[1].begin("shutdown", True, 30.0)
    assert isinstance(failure(two[0]), DeadlineExceeded)
    two[1].result()  # it waited for the open call of the other, which has left with it


def test_a_shutdown_in_vain_says_who_has_not_called_it(workers: Workers) -> None:
    two = workers.group(2)
    error = failure(two[1].begin("shutdown", True, 0.2))
    assert isinstance(error, DeadlineExceeded) and "these have not called shutdown: 'w0' (rank 0" in str(error)
    two[0].saw("left", "w1")
    two[0].do("shutdown")


@pytest.mark.parametrize("dynamic", [False, True])
def test_when_rank_0_dies_the_group_ends_and_another_may_form(workers: Workers, dynamic: bool) -> None:
    three = workers.group(3, dynamic=dynamic)
    three[0].kill()
    for worker in three[1:]:
        worker.saw("lost", "w0")
        worker.saw("lost", "w2" if worker is three[1] else "w1")
        assert worker.do("names") == [worker.name]
        assert "the group has ended, because worker 'w0' (rank 0" in worker.do("fenced")
        with pytest.raises(WorkerLostError, match=r"because worker 'w0' .* was lost: .*ended"):
            worker.do("shutdown")
    again = [workers.start(0, None if dynamic else 3), *three[1:]]
    for worker in again:
        worker.begin("join")
    for worker in again:
        worker.result()
    again[2].sees("w0", "w1", "w2")


def test_when_rank_0_leaves_a_dynamic_group_it_ends_without_an_error(workers: Workers) -> None:
    three = workers.group(3, dynamic=True)
    three[0].do("shutdown")
    for worker in three[1:]:
        worker.saw("left", "w0")
        assert "the group has ended, because worker 'w0' (rank 0" in worker.do("fenced")
        worker.do("shutdown")


def test_without_rank_0_nobody_opens_a_group_with_a_host(workers: Workers) -> None:
    error = failure(workers.start(1, None).begin("join", 1.5))
    assert isinstance(error, DeadlineExceeded) and "Rank 0 opens it" in str(error)


def test_a_second_rank_0_is_refused(workers: Workers) -> None:
    workers.group(2, dynamic=True)
    error = failure(workers.start(0, None, "other").begin("join"))
    assert isinstance(error, JoinError) and "rank 0, which 'other'" in str(error) and "is taken by 'w0'" in str(error)


def test_all_may_leave_a_dynamic_group_at_once(workers: Workers) -> None:
    six = workers.group(6, dynamic=True)
    for worker in six[:5]:
        worker.begin("shutdown")
    for worker in six[:5]:
        worker.result()
    six[5].sees("w5")


def test_a_stopped_worker_is_lost_and_learns_it_when_it_wakes(workers: Workers) -> None:
    first, second, stopped = workers.group(3)
    stopped.signal(signal.SIGSTOP)
    for worker in (first, second):
        worker.saw("lost", "w2")
    stopped.signal(signal.SIGCONT)
    within(LIMIT_S, lambda: stopped.do("fenced") is not None, "it knows that it was declared lost")
    assert "stopped" in stopped.do("fenced")
    within(LIMIT_S, lambda: "fenced" in [kind for kind, _ in stopped.do("happened")], "its callback was called")
    assert [kind for kind, _ in stopped.do("happened")].count("fenced") == 1
    with pytest.raises(WorkerLostError, match="was declared lost by the others"):
        stopped.do("shutdown")
    first.sees("w0", "w1")
    all_together([first, second], "shutdown")


def test_when_rank_0_is_stopped_the_group_ends_and_rank_0_has_lost_the_others(workers: Workers) -> None:
    three = workers.group(3)
    three[0].signal(signal.SIGSTOP)
    for worker in three[1:]:
        worker.saw("lost", "w0")
        assert "it was stopped (SIGSTOP) for 5 s" in worker.do("fenced")
    three[0].signal(signal.SIGCONT)
    for name in ("w1", "w2"):
        three[0].saw("lost", name)
    for worker in three[1:]:
        with pytest.raises(WorkerLostError, match="which coordinates it, was lost"):
            worker.do("shutdown")
    three[0].do("shutdown")


def test_a_stopped_worker_comes_back_as_a_new_life(workers: Workers) -> None:
    two = workers.group(2)
    two[1].signal(signal.SIGSTOP)
    two[0].saw("lost", "w1")
    two[1].signal(signal.SIGCONT)
    within(LIMIT_S, lambda: two[1].do("fenced") is not None, "it knows that it was declared lost")
    with pytest.raises(WorkerLostError):
        two[1].do("shutdown")
    two[1].do("join")
    two[0].saw("joined", "w1")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_busy_is_not_lost(workers: Workers, victim: int) -> None:
    two = workers.group(2)
    two[victim].do("be_silent", 7000)
    assert two[1 - victim].do("happened") == []
    all_together(two, "shutdown")


def test_the_address_is_free_when_rank_0_was_killed_and_its_socket_is_replaced(workers: Workers) -> None:
    workers.group(1)[0].kill()
    assert len(list(workers.folder.glob("g-*"))) == 1
    workers.group(2)
    assert len(list(workers.folder.glob("g-*"))) == 1

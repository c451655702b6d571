"""Processes of a run die at any place: the run continues with the same bits or ends with one error; nothing is left."""

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.parallel import Run
from fanwise.pool import JobHandle, Pool
from fanwise.testing import within

# N: samples, B: samples of a global batch
N, B, SHARDS = 40, 12, 6
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def no_shared_memory_with_a_name() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "fanwise" in name]


def kill(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def once(path: Path) -> bool:
    """True for the first that asks, of all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def dies_at(place: str, victims: tuple[int, ...], folder: Path, run: Run) -> tuple[list[Tensor], float, list[Any]]:
    """One process of each number in `victims` is killed at the place, as others go on."""

    def here(now: str) -> None:
        if (
            now == place
            and run.world_size > 1
            and any(run.rank == each and once(folder / f"{each}") for each in victims)
        ):
            kill()

    def measure(model: nn.Module, x: Tensor, indices: Tensor) -> Tensor:
        here("mean")
        found: Tensor = model(x).sum(1)
        return found

    def loss(model: nn.Module, x: Tensor, indices: Tensor) -> Tensor:
        if step.batches == 2:
            here("step")
        found: Tensor = model(x).square().mean(1)
        return found

    here("begin")
    model = nn.Linear(5, 4)
    here("model")
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), loss)
    means = []
    for _ in run.epochs(2):
        for batch in run.batches((X, torch.arange(N)), B):
            step(batch)
            here("between")
        means.append(run.mean(measure, model, (X, torch.arange(N)), batch_size=3))
        here("before report")
        run.report(mean=means[-1])
    here("end")
    return list(model.state_dict().values()), means[-1], run.rows


PLACES = ["begin", "model", "step", "between", "mean", "before report", "end"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Tensor], float, list[Any]]:
    """What comes of it where nobody dies."""
    return fanwise.run(functools.partial(dies_at, "", (), tmp_path_factory.mktemp("alone")), shards=SHARDS)


@pytest.mark.usefixtures("all_reduce")
@pytest.mark.parametrize("place", PLACES)
def test_a_death_at_any_place_changes_no_result(
    place: str, pool: Pool, expected: tuple[list[Tensor], float, list[Any]], tmp_path: Path
) -> None:
    for victims in [(0,), (1, 2)]:
        folder = tmp_path / f"{victims}"
        folder.mkdir()
        found = fanwise.run(functools.partial(dies_at, place, victims, folder), devices=3, shards=SHARDS, pool=pool)
        assert sum((folder / f"{victim}").exists() for victim in victims) >= 1
        assert all(map(torch.equal, expected[0], found[0]))
        assert found[1:] == expected[1:]


def dies_in_a_loop(place: str, victims: tuple[int, ...], folder: Path, run: Run) -> list[Tensor]:
    """Two loops to one update; one process of each number is killed at the place, as others go on."""

    def here(now: str) -> None:
        if now == place and step.batches in (2, 3) and run.world_size > 1:
            if any(run.rank == each and once(folder / f"{each}") for each in victims):
                kill()

    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    step = run.step(model, torch.optim.Adam(model.parameters(), 0.1))
    means = []
    for batch in run.batches(X, B, drop_last=True):
        for loop in ("first", "second"):
            here(f"before {loop}")
            for x in step.shards(batch):
                here(f"in {loop}, before backward")
                step.backward((model(x) + torch.randn(len(x), 4)).square().sum(1))
                here(f"in {loop}, after backward")
        here("before update")
        step.update()
        here("after update")
        means.append(step.loss)
    return [*model.state_dict().values(), *means]


IN_A_LOOP = ["before {}", "in {}, before backward", "in {}, after backward"]
LOOP_PLACES = [each.format(loop) for loop in ("first", "second") for each in IN_A_LOOP]
LOOP_PLACES += ["before update", "after update"]


@pytest.mark.parametrize("place", LOOP_PLACES)
@pytest.mark.parametrize("all_reduce", ["one-shot", pytest.param("two-shot", marks=pytest.mark.soak)], indirect=True)
@pytest.mark.usefixtures("all_reduce")
def test_a_death_at_any_place_of_a_loop_of_ones_own_changes_no_result(place: str, pool: Pool, tmp_path: Path) -> None:
    expected = fanwise.run(functools.partial(dies_in_a_loop, "", (), tmp_path), shards=SHARDS)
    for victims in [(0,), (1, 2)]:
        folder = tmp_path / f"{victims}"
        folder.mkdir()
        trains = functools.partial(dies_in_a_loop, place, victims, folder)
        found = fanwise.run(trains, devices=3, shards=SHARDS, pool=pool)
        assert sum((folder / f"{victim}").exists() for victim in victims) >= 1
        assert all(map(torch.equal, expected, found))


class Deadly:
    """Kills the first process that unpickles it, and the first that pickles it, other than this one."""

    def __init__(self, folder: Path, home: int) -> None:
        self.folder = folder
        self.home = home

    def __getstate__(self) -> dict[str, Any]:  # Any: as it is
        if os.getpid() != self.home and once(self.folder / "pickled"):
            kill()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:  # Any: as it was
        self.__dict__.update(state)
        if os.getpid() != self.home and once(self.folder / "unpickled"):
            kill()

    def __call__(self, run: Run) -> "tuple[Deadly, float]":
        return self, run.mean(lambda model, x: model(x).sum(1), nn.Linear(5, 1), X)


def test_deaths_before_the_function_has_begun_and_while_the_result_is_sent(pool: Pool, tmp_path: Path) -> None:
    deadly = Deadly(tmp_path, os.getpid())
    _, found = fanwise.run(deadly, devices=3, pool=pool)
    assert (tmp_path / "unpickled").exists() and (tmp_path / "pickled").exists()
    assert found == fanwise.run(deadly, devices=1)[1]


def ends_by_itself(how: Callable[[], object], only: int | None, folder: Path, run: Run) -> str:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if only is None or (run.rank == only and once(folder / "once")):
            how()
        found: Tensor = model(x).square()
        return found

    model = nn.Linear(5, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, B):
        step(batch)
    return "trained"


ENDS: dict[str, tuple[Callable[[], object], str]] = {
    "segfault": (functools.partial(kill, signal.SIGSEGV), "ended by SIGSEGV"),
    "os._exit": (functools.partial(os._exit, 3), "3"),
    "kill": (kill, "ended by SIGKILL"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_always_kills_ends_with_one_error(end: str, pool: Pool, tmp_path: Path) -> None:
    how, said = ENDS[end]
    always = functools.partial(ends_by_itself, how, None, tmp_path)
    with pytest.raises(WorkerLostError) as raised:
        fanwise.run(always, devices=5, shards=5, pool=pool)
    assert said in str(raised.value)
    assert "processes died without one finished step between them" in str(raised.value)
    assert "devices=1" in str(raised.value)


@pytest.mark.parametrize("end", ENDS)
def test_one_death_of_any_kind_is_survived_or_stops_the_run_if_so_wished(end: str, pool: Pool, tmp_path: Path) -> None:
    how, said = ENDS[end]
    dies = functools.partial(ends_by_itself, how, 1, tmp_path)
    assert fanwise.run(dies, devices=3, pool=pool) == "trained"
    (tmp_path / "once").unlink()
    with pytest.raises(WorkerLostError, match=r"rank 1 of 3 \(pid \d+\): (.|\n)*on_loss='stop' ends the run") as raised:
        fanwise.run(dies, devices=3, on_loss="stop", pool=pool)
    assert said in str(raised.value)


def waits(folder: Path, run: Run) -> None:
    (folder / str(os.getpid())).touch()
    threading.Event().wait()


def test_a_killed_program_takes_its_processes_along(pool: Pool, tmp_path: Path) -> None:
    """Here a job of a pool; when it is the process that has the pool, see tests/pool/test_orphans.py."""
    program = pool.needs(cpus=3).submit(fanwise.run, functools.partial(waits, tmp_path), devices=3)
    assert isinstance(program, JobHandle)
    within(60, lambda: len(list(tmp_path.iterdir())) == 3, "they are there")
    assert program.pid is not None
    os.kill(program.pid, signal.SIGKILL)
    pids = [path.name for path in tmp_path.iterdir()]
    within(10, lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "all processes of the run are gone")
    assert "SIGKILL" in program.outcome(within_s=60).text

"""Processes of a run that die at any place: the run continues with the same bits or ends with one error."""

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kills import is_first, kill
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


def kill_victims(victims: tuple[int, ...], folder: Path, run: Run) -> None:
    """Kill one process of each of these ranks, unless it has become the only one."""
    if run.world_size > 1 and any(run.rank == victim and is_first(folder / f"{victim}") for victim in victims):
        kill()


def train(place: str, victims: tuple[int, ...], folder: Path, run: Run) -> tuple[list[Tensor], float, list[Any]]:
    """Train, and kill the victims at the place."""

    def maybe_kill(current_place: str) -> None:
        if current_place == place:
            kill_victims(victims, folder, run)

    def measure(model: nn.Module, x: Tensor, indices: Tensor) -> Tensor:
        maybe_kill("mean")
        sums: Tensor = model(x).sum(1)
        return sums

    def loss(model: nn.Module, x: Tensor, indices: Tensor) -> Tensor:
        if step.batches == 2:
            maybe_kill("step")
        losses: Tensor = model(x).square().mean(1)
        return losses

    maybe_kill("begin")
    model = nn.Linear(5, 4)
    maybe_kill("model")
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), loss)
    means = []
    for _ in run.epochs(2):
        for batch in run.batches((X, torch.arange(N)), B):
            step(batch)
            maybe_kill("between")
        means.append(run.mean(measure, model, (X, torch.arange(N)), batch_size=3))
        maybe_kill("before report")
        run.report(mean=means[-1])
    maybe_kill("end")
    return list(model.state_dict().values()), means[-1], run.rows


PLACES = ["begin", "model", "step", "between", "mean", "before report", "end"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Tensor], float, list[Any]]:
    """The result if no process dies."""
    return fanwise.run(functools.partial(train, "", (), tmp_path_factory.mktemp("alone")), shards=SHARDS)


@pytest.mark.usefixtures("all_reduce")
@pytest.mark.parametrize("place", PLACES)
def test_a_death_at_any_place_changes_no_result(
    place: str, pool: Pool, expected: tuple[list[Tensor], float, list[Any]], tmp_path: Path
) -> None:
    for victims in [(0,), (1, 2)]:
        folder = tmp_path / f"{victims}"
        folder.mkdir()
        training = functools.partial(train, place, victims, folder)
        state, *others = fanwise.run(training, devices=3, shards=SHARDS, pool=pool)
        assert list(folder.iterdir())
        assert all(map(torch.equal, expected[0], state))
        assert tuple(others) == expected[1:]


def train_with_manual_steps(place: str, victims: tuple[int, ...], folder: Path, run: Run) -> list[Tensor]:
    """Make two loops over the shards per update, and kill the victims at the place."""

    def maybe_kill(current_place: str) -> None:
        if current_place == place and step.batches in (2, 3):
            kill_victims(victims, folder, run)

    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    step = run.step(model, torch.optim.Adam(model.parameters(), 0.1))
    means = []
    for batch in run.batches(X, B, drop_last=True):
        for loop in ("first", "second"):
            maybe_kill(f"before {loop}")
            for x in step.shards(batch):
                maybe_kill(f"in {loop}, before backward")
                step.backward((model(x) + torch.randn(len(x), 4)).square().sum(1))
                maybe_kill(f"in {loop}, after backward")
        maybe_kill("before update")
        step.update()
        maybe_kill("after update")
        means.append(step.loss)
    return [*model.state_dict().values(), *means]


IN_A_LOOP = ["before {}", "in {}, before backward", "in {}, after backward"]
LOOP_PLACES = [place.format(loop) for loop in ("first", "second") for place in IN_A_LOOP]
LOOP_PLACES += ["before update", "after update"]


@pytest.mark.parametrize("place", LOOP_PLACES)
@pytest.mark.parametrize("all_reduce", ["one-shot", pytest.param("two-shot", marks=pytest.mark.soak)], indirect=True)
@pytest.mark.usefixtures("all_reduce")
def test_a_death_at_any_place_of_a_manual_step_changes_no_result(place: str, pool: Pool, tmp_path: Path) -> None:
    expected = fanwise.run(functools.partial(train_with_manual_steps, "", (), tmp_path), shards=SHARDS)
    for victims in [(0,), (1, 2)]:
        folder = tmp_path / f"{victims}"
        folder.mkdir()
        training = functools.partial(train_with_manual_steps, place, victims, folder)
        assert all(map(torch.equal, expected, fanwise.run(training, devices=3, shards=SHARDS, pool=pool)))
        assert list(folder.iterdir())


class Deadly:
    """Kills the first process that unpickles it, and the first that pickles it, other than this one."""

    def __init__(self, folder: Path, home: int) -> None:
        self.folder = folder
        self.home = home

    def __getstate__(self) -> dict[str, Any]:
        if os.getpid() != self.home and is_first(self.folder / "pickled"):
            kill()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.home and is_first(self.folder / "unpickled"):
            kill()

    def __call__(self, run: Run) -> "tuple[Deadly, float]":
        return self, run.mean(lambda model, x: model(x).sum(1), nn.Linear(5, 1), X)


def test_deaths_before_the_function_has_begun_and_while_the_result_is_sent(pool: Pool, tmp_path: Path) -> None:
    deadly = Deadly(tmp_path, os.getpid())
    _, mean = fanwise.run(deadly, devices=3, pool=pool)
    assert (tmp_path / "unpickled").exists() and (tmp_path / "pickled").exists()
    assert mean == fanwise.run(deadly, devices=1)[1]


def end_itself(end: Callable[[], object], rank: int | None, folder: Path, run: Run) -> str:
    """End the process in each step, or, with a rank, once in a step of this rank."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if rank is None or (run.rank == rank and is_first(folder / "once")):
            end()
        losses: Tensor = model(x).square()
        return losses

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


@pytest.mark.parametrize("name", ENDS)
def test_a_training_that_always_dies_ends_with_one_error(name: str, pool: Pool, tmp_path: Path) -> None:
    end, text = ENDS[name]
    always = functools.partial(end_itself, end, None, tmp_path)
    with pytest.raises(WorkerLostError) as raised:
        fanwise.run(always, devices=5, shards=5, pool=pool)
    assert text in str(raised.value)
    assert "processes died without one finished step between them" in str(raised.value)
    assert "devices=1" in str(raised.value)


@pytest.mark.parametrize("name", ENDS)
def test_one_death_of_any_kind_is_survived_unless_on_loss_is_stop(name: str, pool: Pool, tmp_path: Path) -> None:
    end, text = ENDS[name]
    dies = functools.partial(end_itself, end, 1, tmp_path)
    assert fanwise.run(dies, devices=3, pool=pool) == "trained"
    (tmp_path / "once").unlink()
    with pytest.raises(WorkerLostError, match=r"rank 1 of 3 \(pid \d+\): (.|\n)*on_loss='stop' ends the run") as raised:
        fanwise.run(dies, devices=3, on_loss="stop", pool=pool)
    assert text in str(raised.value)


def wait_forever(folder: Path, run: Run) -> None:
    (folder / str(os.getpid())).touch()
    threading.Event().wait()


def test_a_killed_program_takes_its_processes_along(pool: Pool, tmp_path: Path) -> None:
    """The program is a job of a pool here. See tests/pool/processes/test_orphans.py for a program that has the pool."""
    program = pool.needs(cpus=3).submit(fanwise.run, functools.partial(wait_forever, tmp_path), devices=3)
    assert isinstance(program, JobHandle)
    within(60, lambda: len(list(tmp_path.iterdir())) == 3, "all processes have started")
    assert program.pid is not None
    os.kill(program.pid, signal.SIGKILL)
    pids = [path.name for path in tmp_path.iterdir()]
    within(10, lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "all processes of the run are gone")
    assert "SIGKILL" in program.outcome(within_s=60).text

"""What is wrong with a run in several processes is said by an error that names it; many runs at once do not clash."""

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fanwise
from fanwise.base.errors import LeaseError, NotSendableError
from fanwise.parallel import Run
from fanwise.parallel.processes.pools import close_own_pool
from fanwise.pool import Pool

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


def square(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).square()
    return found


def trained(run: Run, model: nn.Module, batch_size: int = 8) -> list[Tensor]:
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    for batch in run.batches(X, batch_size):
        step(batch)
    return list(model.state_dict().values())


def of_rank(run: Run) -> list[Tensor]:
    last = nn.Linear(3, 1)
    if run.rank == 1:
        nn.init.ones_(last.weight)
    return trained(run, nn.Sequential(nn.Linear(3, 3), last))


def of_another_shape(run: Run) -> list[Tensor]:
    return trained(run, nn.Sequential(nn.Linear(3, 3 + run.rank), nn.Linear(3 + run.rank, 1)))


def with_another_layer(run: Run) -> list[Tensor]:
    return trained(run, nn.Sequential(*(nn.Linear(3, 3) for _ in range(1 + run.rank))))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (of_rank, r"between processes 0 and 1, first in '1\.weight': torch\.float32 \(1, 3\) with checksum \w{8} and"),
        (of_another_shape, r"first in '0\.weight': torch\.float32 \(3, 3\) with .* and torch\.float32 \(4, 3\)"),
        (with_another_layer, r"first in '1\.weight': not there and torch\.float32"),
    ],
    ids=["values", "shape", "layers"],
)
def test_a_model_that_differs_between_processes_names_the_parameter(
    train: Callable[[Run], object], said: str, pool: Pool
) -> None:
    with pytest.raises(ValueError, match=said):
        fanwise.run(train, devices=2, pool=pool)


def mean(run: Run, rows: int) -> float:
    return run.mean(lambda model, x: model(x)[:, 0], nn.Linear(3, 1), X[:rows])


def some_evaluate(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    if run.rank == 0:
        mean(run, 10)
    for batch in run.batches(X, 8):
        step(batch)


def some_step_more(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    for _ in range(2 + run.rank):
        step(X)


def some_report(run: Run) -> None:
    if run.rank == 1:
        run.report(loss=1.0)


@pytest.mark.parametrize(
    ("train", "one", "other"),
    [
        (some_evaluate, "measures", "makes step 0"),
        (some_step_more, "has returned", "makes step 0"),
        (some_report, "has returned", "reports"),
    ],
    ids=["mean", "step", "report"],
)
def test_processes_that_do_different_things_are_named(
    train: Callable[[Run], object], one: str, other: str, pool: Pool
) -> None:
    with pytest.raises(RuntimeError, match="the processes of the run do different things") as raised:
        fanwise.run(train, devices=2, pool=pool)
    first = str(raised.value).split("\n")[0]
    assert one in first and other in first and "rank 0" in first and "rank 1" in first


def small_batches(run: Run) -> list[Tensor]:
    return trained(run, nn.Linear(3, 1), 3)


def test_a_batch_smaller_than_the_shards_leaves_processes_without_work(pool: Pool) -> None:
    expected = fanwise.run(small_batches, shards=8)
    assert all(map(torch.equal, expected, fanwise.run(small_batches, devices=4, shards=8, pool=pool)))
    # More processes than shards.
    expected = fanwise.run(small_batches, shards=2)
    assert all(map(torch.equal, expected, fanwise.run(small_batches, devices=4, shards=2, pool=pool)))


class Shrinks(Dataset[Tensor]):
    """A data set that is one sample shorter from its 12th look on."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 24 - (self.read > 12)

    def __getitem__(self, index: int) -> Tensor:
        self.read += 1
        return X[index]


def shrinking(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    data = Shrinks()
    for batch in run.batches(data, 8):
        data.read += 8
        step(batch)


def test_a_data_set_that_changes_its_length_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="the data set had 24 samples when this pass began, and has 23 now"):
        fanwise.run(shrinking, devices=2, pool=pool)


def test_lambdas_and_closures_travel(pool: Pool) -> None:
    offset = 3

    def train(run: Run) -> int:
        return run.world_size + offset

    assert fanwise.run(train, devices=2, pool=pool) == 5
    assert fanwise.run(lambda run: run.world_size * offset, devices=2, pool=pool) == 6
    assert fanwise.run(functools.partial(lambda factor, run: factor * run.shards, 2), devices=3, pool=pool) == 6


def test_what_cannot_travel_is_named(pool: Pool) -> None:
    lock = threading.Lock()
    with pytest.raises(NotSendableError, match="lock"):
        fanwise.run(lambda run: lock.acquire(), devices=2, pool=pool)


def test_a_wrong_option_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown on_loss='respwan'; did you mean 'respawn'\?"):
        fanwise.run(small_batches, devices=2, on_loss="respwan")
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        fanwise.run(small_batches, devices=2, processes=0)
    with pytest.raises(TypeError, match=r"processes must be a whole number, got 1\.5"):
        fanwise.run(small_batches, devices=2, processes=1.5)  # type: ignore[arg-type]  # wrong on purpose


def where(run: Run) -> tuple[int, int]:
    return os.getpid(), run.world_size


def test_one_device_is_this_process_whatever_the_processes() -> None:
    assert fanwise.run(where, devices=1, processes=3) == (os.getpid(), 1)
    assert fanwise.run(where, devices=3, processes=1) == (os.getpid(), 1)


def test_more_processes_than_a_pool_has_cpus_is_refused_and_leaves_nothing() -> None:
    with Pool(cpus=5, seed=0) as small:
        with pytest.raises(
            LeaseError, match="2 processes, threads=3, need 6 CPUs at once, and the pool has 5"
        ) as raised:
            fanwise.run(where, devices=2, threads=3, pool=small)
        assert "processes=1" in str(raised.value)


def test_a_missing_checkpoint_is_an_error_of_the_caller(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fanwise.run(where, devices=2, resume=tmp_path / "none", pool=pool)


def test_eight_runs_at_once_in_threads_do_not_clash(pool: Pool) -> None:
    expected = fanwise.run(small_batches, shards=4)
    found: list[Any] = [None] * 8  # Any: results

    def work(number: int) -> None:
        found[number] = fanwise.run(small_batches, devices=2, shards=4, pool=pool)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(all(map(torch.equal, expected, each)) for each in found)


def run_inside(number: int) -> list[Tensor]:
    return fanwise.run(small_batches, devices=2, shards=4, seed=0)


def test_eight_runs_at_once_in_processes_do_not_clash(pool: Pool) -> None:
    expected = fanwise.run(small_batches, shards=4)
    jobs = [pool.needs(cpus=2).submit(run_inside, number) for number in range(8)]
    assert all(all(map(torch.equal, expected, job.result(60))) for job in jobs)


def test_runs_without_a_pool_share_one_that_can_be_closed() -> None:
    try:
        pids = [fanwise.run(where, devices=2)[0] for _ in range(2)]
        assert os.getpid() not in pids
    finally:
        close_own_pool()
        close_own_pool()

"""The arguments of torch's DataLoader, by name or in a loader: understood, or refused with what to do instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, WeightedRandomSampler

import fanwise
from fanwise.parallel import Run
from fanwise.pool import Pool

N = 13


class Squares(Dataset[tuple[int, int]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


def collate(samples: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor([square for _, square in samples])


def batches(run: Run, *args: Any, **options: Any) -> list[list[list[int]]]:
    """The members of each batch."""
    return [[member.tolist() for member in batch] for batch in run.batches(*args, **options)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("loader", "args", "options"),
    [
        pytest.param({"batch_size": 4, "shuffle": True}, (4,), {}, id="shuffled"),
        pytest.param({"batch_size": 4}, (4,), {"shuffle": False}, id="in order"),
        pytest.param({"batch_size": 4, "drop_last": True}, (4,), {"shuffle": False, "drop_last": True}, id="drop_last"),
        pytest.param({"collate_fn": collate}, (1,), {"shuffle": False, "collate_fn": collate}, id="collate_fn"),
    ],
)
def test_a_loader_means_its_data_set_and_its_arguments(loader: Any, args: Any, options: Any, workers: int) -> None:
    expected = batches(fanwise.here(), Squares(), *args, **options)
    given = DataLoader(Squares(), num_workers=workers, **loader)
    assert fanwise.run(lambda run: batches(run, given), devices="cpu") == expected


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(
            lambda: DataLoader(Squares(), 4, sampler=WeightedRandomSampler([1.0] * N, N)),
            "a DataLoader with a WeightedRandomSampler is not supported: the order is made here",
            id="sampler",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), 4, sampler=RandomSampler(Squares(), replacement=True)),
            "a DataLoader with a RandomSampler is not supported",
            id="replacement",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), 4, sampler=RandomSampler(Squares(), num_samples=5)),
            "a DataLoader with a RandomSampler is not supported",
            id="num_samples",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(Squares()), 4, False)),
            "a DataLoader with batches of its own is not supported: batches are cut here",
            id="batch_sampler",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), batch_size=None), "a DataLoader with batches of its own", id="no batches"
        ),
        pytest.param(
            lambda: DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator()),
            "a DataLoader with generator= is not supported: .* come from the seed of the run",
            id="generator",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), 4, num_workers=1, multiprocessing_context="spawn"),
            "a DataLoader with multiprocessing_context= is not supported",
            id="context",
        ),
        pytest.param(
            lambda: DataLoader(Squares(), 4, num_workers=1, in_order=False),
            "in_order=False is not supported",
            id="order",
        ),
    ],
)
def test_a_loader_with_an_order_of_its_own_is_refused(make: Callable[[], DataLoader[Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fanwise.here().batches(make())


def test_arguments_beside_a_loader_are_refused() -> None:
    loader = DataLoader(Squares(), 4)
    with pytest.raises(ValueError, match="batch_size, shuffle and drop_last of a DataLoader are its own"):
        fanwise.here().batches(loader, 4)
    with pytest.raises(ValueError, match="the arguments of a DataLoader are its own"):
        fanwise.here().batches(loader, num_workers=2)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"sampler": [1, 2]}, TypeError, "unexpected keyword argument 'sampler'"),
        ({"num_workers": -1}, ValueError, "num_workers must be at least 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor must be at least 1"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor=2 is about workers, and num_workers is 0"),
        ({"persistent_workers": True}, ValueError, "persistent_workers=True is about workers"),
        ({"timeout": 1}, ValueError, "timeout=1 is about workers"),
        ({"num_workers": 1, "timeout": -1}, ValueError, "timeout is a number of seconds"),
        ({"num_workers": 1, "persistent_workers": "yes"}, TypeError, "persistent_workers is True or False"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        fanwise.here().batches(Squares(), 4, **options)


def test_batch_size_is_asked_for() -> None:
    with pytest.raises(TypeError, match="batch_size is missing"):
        fanwise.here().batches(Squares())


def test_a_job_has_no_more_workers_than_cpus_of_its_lease(forked_pools: None) -> None:
    def train(run: Run) -> tuple[list[int], int]:
        pids: set[int] = set()
        found = []
        for batch in run.batches(Squares(), 4, num_workers=3):
            tasks = Path("/proc/self/task")
            pids |= {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}
            found += next(iter(batch)).tolist()
        return found, len(pids)

    expected = [index for indices, _ in batches(fanwise.here(), Squares(), 4) for index in indices]
    with Pool(cpus=4) as pool:
        for cpus, workers in ((1, 0), (3, 2), (4, 3)):
            job = pool.needs(cpus=cpus).submit(fanwise.run, train, devices="cpu", seed=0)
            assert job.result(within_s=60.0) == (expected, workers)

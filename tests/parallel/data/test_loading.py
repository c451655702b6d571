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
    ("make", "name"),
    [
        (lambda: DataLoader(Squares(), 4, sampler=WeightedRandomSampler([1.0] * N, N)), "sampler"),
        (lambda: DataLoader(Squares(), 4, sampler=RandomSampler(Squares(), replacement=True)), "sampler"),
        (lambda: DataLoader(Squares(), 4, sampler=RandomSampler(Squares(), num_samples=5)), "sampler"),
        (
            lambda: DataLoader(Squares(), batch_sampler=BatchSampler(SequentialSampler(Squares()), 4, False)),
            "batch_sampler",
        ),
        (lambda: DataLoader(Squares(), batch_size=None), "batch_sampler"),
        (lambda: DataLoader(Squares(), 4, shuffle=True, generator=torch.Generator()), "generator"),
        (lambda: DataLoader(Squares(), 4, num_workers=1, multiprocessing_context="spawn"), "multiprocessing_context"),
        (lambda: DataLoader(Squares(), 4, num_workers=1, in_order=False), "in_order"),
    ],
)
def test_a_loader_that_determines_the_order_is_refused(make: Callable[[], DataLoader[Any]], name: str) -> None:
    with pytest.raises(ValueError, match=f"does not support a DataLoader with {name}"):
        fanwise.here().batches(make())


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"shuffle": False}, {"num_workers": 2}], ids=str)
def test_options_beside_a_loader_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="takes all options from the DataLoader"):
        fanwise.here().batches(DataLoader(Squares(), 4), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"num_workers": 1, "timeout": -1},
    ],
    ids=str,
)
def test_options_that_dataloader_refuses_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"num_workers|prefetch_factor|timeout"):
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

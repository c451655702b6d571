"""Loader workers: equal bits on any number of devices and workers, also when a rank dies."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset

import fanwise
from fanwise.parallel import Run
from fanwise.pool import Pool

N, B = 42, 8  # five batches of shards of two, and one of two samples
IMAGES = torch.randint(0, 256, (N, 6, 6), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


class Augmented(Dataset[tuple[Tensor, int]]):
    """Images that are cropped, flipped and made noisy with all three generators."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = IMAGES[index].float() / 255
        top, left = random.randint(0, 2), int(np.random.randint(0, 3))
        image = image[top : top + 4, left : left + 4]
        if torch.rand(()) < 0.5:
            image = image.flip(1)
        return image + 0.01 * torch.randn(4, 4), index % 3


Before = Callable[[Run, int], object]


def images(run: Run, workers: int, before: Before = lambda run, number: None, epochs: int = 2) -> list[Tensor]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = run.step(model, optimizer, lambda m, x, y: cross_entropy(m(x), y, reduction="none"))
    number = 0
    for _ in run.epochs(epochs):
        for batch in run.batches(Augmented(), B, num_workers=workers):
            before(run, number)
            step(batch)
            number += 1
        loss = run.mean(
            lambda m, x, y: cross_entropy(m(x), y, reduction="none"), model, Augmented(), num_workers=workers
        )
    return [*(value.detach() for value in model.state_dict().values()), torch.tensor(loss)]


class Tape(IterableDataset[tuple[Tensor, int]]):
    """Images in the order of a shuffle buffer; they are augmented when they are collated."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        buffer: list[int] = []
        for index in range(N):
            buffer.append(index)
            if len(buffer) > 9:
                chosen = buffer.pop(random.randrange(len(buffer)))
                yield IMAGES[chosen].float() / 255, chosen % 3
        yield from ((IMAGES[index].float() / 255, index % 3) for index in buffer)


def flipped(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return (
        torch.stack([image.flip(1) if torch.rand(()) < 0.5 else image for image, _ in samples]),
        torch.tensor([label for _, label in samples]),
    )


def tape(run: Run, workers: int, before: Before = lambda run, number: None) -> list[Tensor]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = run.step(model, optimizer, lambda m, x, y: cross_entropy(m(x), y, reduction="none"))
    number = 0
    for _ in run.epochs(2):
        for batch in run.batches(Tape(), B, collate_fn=flipped, num_workers=workers):
            before(run, number)
            step(batch)
            number += 1
    return [value.detach() for value in model.state_dict().values()]


def run_in_job(pool: Pool, train: Callable[[Run], Any], devices: int, workers: int, **options: Any) -> Any:
    """Run in a job that has leased a CPU for each device and each worker."""
    cpus = devices * (1 + workers)
    job = pool.needs(cpus=cpus).submit(fanwise.run, train, devices=["cpu"] * devices, seed=0, **options)
    return job.result(within_s=100.0)


@pytest.mark.parametrize(
    "several",
    [[(1, 1), (3, 1)], pytest.param([(2, 0), (2, 1)], marks=pytest.mark.soak)],
    ids=["one and three devices", "two"],
)
@pytest.mark.parametrize("program", [images, tape])
def test_bits_are_the_same_for_any_number_of_devices_and_workers(
    pool: Pool, program: Callable[..., list[Tensor]], several: list[tuple[int, int]]
) -> None:
    expected = fanwise.run(partial(program, workers=0), devices="cpu")
    for devices, workers in several:
        actual = run_in_job(pool, partial(program, workers=workers), devices, workers)
        assert all(map(torch.equal, actual, expected)), (devices, workers)


@pytest.mark.parametrize(
    ("devices", "workers", "program"),
    [
        (3, 1, images),
        (1, 0, tape),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((1, 1, images), (3, 1, tape))),
    ],
)
def test_a_run_with_workers_resumes_within_an_epoch(
    pool: Pool, tmp_path: Path, devices: int, workers: int, program: Callable[..., list[Tensor]]
) -> None:
    path = tmp_path / "run.pt"

    def save(run: Run, number: int) -> None:
        if number == 8:  # of 12, in the second epoch
            run.save(path)
            run.print("saved")

    whole = run_in_job(pool, partial(program, workers=1, before=save), 2, 1)
    assert torch.load(path)["run"]["position"]["passes"][0]["done"] == 2 * B
    resumed = run_in_job(pool, partial(program, workers=workers), devices, workers, resume=path)
    assert all(map(torch.equal, resumed, whole))


def kill_once(run: Run, number: int, *, flag: Path) -> None:
    """Kill rank 1 before the ninth batch."""
    if number == 8 and run.rank == 1 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("program", [images, pytest.param(tape, marks=pytest.mark.soak)])
def test_bits_are_the_same_when_a_rank_dies(pool: Pool, tmp_path: Path, program: Callable[..., list[Tensor]]) -> None:
    expected = fanwise.run(partial(program, workers=0), devices="cpu")
    kill = partial(kill_once, flag=tmp_path / "killed")
    actual = run_in_job(pool, partial(program, workers=1, before=kill), 3, 1)
    assert (tmp_path / "killed").exists()
    assert all(map(torch.equal, actual, expected))

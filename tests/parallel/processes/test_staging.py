"""Gradients that are copied out of the shared memory and back, as those of a GPU are: the bits of the direct way."""

import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.launch.local import Supervisor
from fanwise.parallel.launch.settings import Settings
from fanwise.pool import Pool
from fanwise.testing.kills import kill_some, works_here

# N: samples, B: samples of a global batch
N, B, SHARDS = 53, 16, 8
X = torch.randn(N, 1, 6, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """With buffers, dropout, and parameters without gradients; more values than fit into one piece."""

    def __init__(self, layout: torch.memory_format, columns: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(4, 4, 3))
        self.head = nn.Linear(16, 3)
        self.large = nn.Embedding(4, columns)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stub forgets this form

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.frozen(self.head(self.body(x).flatten(1)))
        return found + self.large.weight[:3, :5].sum(1)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def train(
    layout: torch.memory_format,
    columns: int,
    options: dict[str, Any],  # Any: of run.step
    here: Callable[[Run, int], None],
    epochs: int,
    run: Run,
) -> tuple[dict[str, Tensor], int]:
    model = Net(layout, columns)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    step = run.step(model, optimizer, losses, **options)
    for _ in run.epochs(epochs):
        for batch in run.batches((X, Y), B):
            here(run, step.batches)
            step(batch)
    return dict(model.state_dict()), len(optimizer.state)


def nothing(run: Run, turn: int) -> None:
    """Nobody dies."""


def staged(train: Callable[[Run], Any], pool: Pool, processes: int, **settings: Any) -> Any:  # Any: its result
    return Supervisor(pool, train, Settings((("cpu",),) * processes, SHARDS, all_reduce="staged", **settings)).run()


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


CASES: dict[str, tuple[torch.memory_format, int, dict[str, Any], int]] = {  # Any: options of run.step; and epochs
    "large": (torch.contiguous_format, 270_000, {}, 1),
    "channels last, clipped, accumulated": (torch.channels_last, 9, {"clip_norm": 0.5, "accumulate": 3}, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_where_gradients_are_added(case: str, pool: Pool) -> None:
    layout, columns, options, epochs = CASES[case]
    training = functools.partial(train, layout, columns, options, nothing, epochs)
    expected, _ = fanwise.run(training, devices="cpu", shards=SHARDS)
    for processes in (2, 5):
        found, states = staged(training, pool, processes)
        assert same(expected, found), f"{processes} processes"
        assert states == 9  # whole in each process, not in slices: all but what is frozen or unused


def test_what_is_fast_is_staged_too(pool: Pool) -> None:
    training = functools.partial(train, torch.contiguous_format, 9, {}, nothing, 1)
    direct, _ = fanwise.run(training, devices=["cpu"] * 3, shards=SHARDS, reduce="fast", pool=pool)
    assert same(direct, staged(training, pool, 3, reduce="fast")[0])


def test_kills_at_any_moment_keep_the_bits(pool: Pool, tmp_path: Path) -> None:
    survives(0, pool, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 20))
def test_many_kills_keep_the_bits(seed: int, pool: Pool, tmp_path: Path) -> None:
    survives(seed, pool, tmp_path)


def survives(seed: int, pool: Pool, tmp_path: Path) -> None:
    epochs, path, over = 15, tmp_path / "pids", threading.Event()
    killed: list[int] = []
    trains = functools.partial(train, torch.contiguous_format, 9, {})
    expected, _ = fanwise.run(functools.partial(trains, nothing, epochs), devices="cpu", shards=SHARDS)
    thread = kill_some(path, over, random.Random(seed), killed)
    try:
        training = functools.partial(trains, functools.partial(works_here, path), epochs)
        found, _ = staged(training, pool, 4)
    finally:
        over.set()
        thread.join()
    assert same(expected, found)
    assert killed

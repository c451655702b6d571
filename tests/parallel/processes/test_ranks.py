"""What processes tell each other rank by rank: its order and bits, and what becomes of it when one of them dies."""

import functools
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fanwise
from fanwise.base.errors import NotSendableError
from fanwise.parallel import Run
from fanwise.pool import Pool

N, CHUNK = 40, 6
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(1))


@dataclass
class Metric:
    """Has a __call__, as the metrics of several libraries."""

    value: int

    def __call__(self) -> None:
        raise AssertionError("gather called it")


def kills_once(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_gathered_comes_by_rank_in_every_process(pool: Pool) -> None:
    def train(run: Run) -> list[Any]:  # Any: as given
        large = torch.full((300_000,), float(run.rank)).to(torch.float8_e4m3fn)  # which pickle alone cannot send
        means = [each.float().mean().item() for each in run.gather(large)]
        return run.gather((run.rank, means, run.gather({"rank": run.rank})))

    each: Any = [0.0, 1.0, 2.0], [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert fanwise.run(train, devices=3, pool=pool) == [(rank, *each) for rank in range(3)]
    assert fanwise.run(train, devices=1) == [(0, [0.0], [{"rank": 0}])]


def scores(run: Run) -> Tensor:
    """Of all samples, in their order: the same on any number of devices, because the chunks are."""

    def mine() -> dict[int, Tensor]:
        return {start: X[start : start + CHUNK].sum(1) for start in range(CHUNK * run.rank, N, CHUNK * run.world_size)}

    found = {start: chunk for theirs in run.gather(mine) for start, chunk in theirs.items()}
    return torch.cat([found[start] for start in sorted(found)])


def test_what_is_gathered_chunk_by_chunk_does_not_depend_on_the_devices(pool: Pool) -> None:
    one, three = fanwise.run(scores, devices=1), fanwise.run(scores, devices=3, pool=pool)
    assert len(one) == N and torch.equal(one, three)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_function_is_called_again_when_a_process_was_lost(victim: int, pool: Pool, tmp_path: Path) -> None:
    def train(run: Run) -> tuple[Tensor, list[int]]:
        step = run.step(model := torch.nn.Linear(5, 1), torch.optim.SGD(model.parameters(), 0.1))
        for x in step.shards(X):
            step.backward(model(x).square())
        step.update()

        def mine() -> dict[int, Tensor]:
            if run.world_size == 3 and run.rank == victim:
                kills_once(tmp_path / "killed")
            starts = range(CHUNK * run.rank, N, CHUNK * run.world_size)
            return {start: X[start : start + CHUNK].sum(1) for start in starts}

        found = {start: chunk for theirs in run.gather(mine) for start, chunk in theirs.items()}
        run.barrier()
        whole = torch.cat([found[start] for start in sorted(found)])
        return whole, run.gather(run.rank)

    whole, ranks = fanwise.run(train, devices=3, pool=pool)
    assert (tmp_path / "killed").exists()
    assert torch.equal(whole, fanwise.run(scores, devices=1))
    assert ranks == [0, 1]


@pytest.mark.parametrize("devices", [1, 2])
def test_only_functions_and_methods_are_called_by_gather(devices: int, pool: Pool) -> None:
    def train(run: Run) -> list[Any]:  # Any: as given
        model = torch.nn.Linear(2, 1)
        model.weight.data.fill_(run.rank)
        weights = [each.weight[0, 0].item() for each in run.gather(model)]
        partials = [each() for each in run.gather(functools.partial(int, run.rank))]
        return [weights, partials, run.gather(dict), run.gather(Metric(3))]

    results = fanwise.run(train, devices=devices, pool=pool if devices > 1 else None)
    ranks = list(range(devices))
    assert results[:3] == [ranks, ranks, [dict] * devices]
    assert results[3] == [Metric(3)] * devices


@pytest.mark.parametrize("devices", [1, 2])
def test_what_cannot_be_sent_is_refused_on_one_device_too(devices: int, pool: Pool) -> None:
    said = "cannot send a generator to the other processes, because it cannot be pickled: "
    with pytest.raises(NotSendableError, match=said):
        fanwise.run(lambda run: run.gather(each for each in "ab"), devices=devices, pool=pool if devices > 1 else None)

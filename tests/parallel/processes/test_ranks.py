"""`run.gather`: the order and bits of the gathered values, errors, and the loss of a process meanwhile."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from kills import is_first, kill
from torch import Tensor

import fanwise
from fanwise.base.errors import NotSendableError
from fanwise.parallel import Run
from fanwise.pool import Pool

N, CHUNK = 40, 6
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(1))


@dataclass
class Metric:
    """Has a `__call__`, like the metrics of several libraries."""

    value: int

    def __call__(self) -> None:
        raise AssertionError("gather called it")


def test_every_process_gets_the_values_by_rank(pool: Pool) -> None:
    def train(run: Run) -> list[Any]:  # Any: of several types
        large = torch.full((300_000,), float(run.rank)).to(torch.float8_e4m3fn)  # pickle alone cannot send it
        means = [tensor.float().mean().item() for tensor in run.gather(large)]
        return run.gather((run.rank, means, run.gather({"rank": run.rank})))

    gathered: Any = [0.0, 1.0, 2.0], [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert fanwise.run(train, devices=3, pool=pool) == [(rank, *gathered) for rank in range(3)]
    assert fanwise.run(train, devices=1) == [(0, [0.0], [{"rank": 0}])]


def scores(run: Run, before_each: Callable[[], None] = lambda: None) -> Tensor:
    """Return the scores of all samples, in order. The chunks, and so the bits, do not depend on the devices."""

    def scores_of_rank() -> dict[int, Tensor]:
        before_each()
        return {start: X[start : start + CHUNK].sum(1) for start in range(CHUNK * run.rank, N, CHUNK * run.world_size)}

    chunks = {start: chunk for of_rank in run.gather(scores_of_rank) for start, chunk in of_rank.items()}
    return torch.cat([chunks[start] for start in sorted(chunks)])


def test_gathered_chunks_do_not_depend_on_the_devices(pool: Pool) -> None:
    one, three = fanwise.run(scores, devices=1), fanwise.run(scores, devices=3, pool=pool)
    assert len(one) == N and torch.equal(one, three)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_function_is_called_again_when_a_process_was_lost(victim: int, pool: Pool, tmp_path: Path) -> None:
    def train(run: Run) -> tuple[Tensor, list[int]]:
        step = run.step(model := torch.nn.Linear(5, 1), torch.optim.SGD(model.parameters(), 0.1))
        for x in step.shards(X):
            step.backward(model(x).square())
        step.update()

        def kill_victim() -> None:
            if run.world_size == 3 and run.rank == victim and is_first(tmp_path / "killed"):
                kill()

        all_scores = scores(run, kill_victim)
        run.barrier()
        return all_scores, run.gather(run.rank)

    all_scores, ranks = fanwise.run(train, devices=3, pool=pool)
    assert (tmp_path / "killed").exists()
    assert torch.equal(all_scores, fanwise.run(scores, devices=1))
    assert ranks == [0, 1]


@pytest.mark.parametrize("devices", [1, 2])
def test_only_functions_and_methods_are_called_by_gather(devices: int, pool: Pool) -> None:
    def train(run: Run) -> list[Any]:  # Any: of several types
        model = torch.nn.Linear(2, 1)
        model.weight.data.fill_(run.rank)
        weights = [gathered.weight[0, 0].item() for gathered in run.gather(model)]
        partials = [function() for function in run.gather(functools.partial(int, run.rank))]
        return [weights, partials, run.gather(dict), run.gather(Metric(3))]

    results = fanwise.run(train, devices=devices, pool=pool if devices > 1 else None)
    ranks = list(range(devices))
    assert results[:3] == [ranks, ranks, [dict] * devices]
    assert results[3] == [Metric(3)] * devices


@pytest.mark.parametrize("devices", [1, 2])
def test_a_value_that_cannot_be_sent_is_refused_on_one_device_too(devices: int, pool: Pool) -> None:
    message = "cannot send a generator to the other processes, because it cannot be pickled: "
    with pytest.raises(NotSendableError, match=message):
        fanwise.run(lambda run: run.gather(x for x in "ab"), devices=devices, pool=pool if devices > 1 else None)

"""Batch normalisation over the whole batch, and float16, in several processes: the bits of one device."""

from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run
from fanwise.pool import Pool

# N: samples, B: samples of a global batch
N, B, EPOCHS, SHARDS = 49, 16, 2, 8
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 1, 6, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).float(), y, reduction="none")


def training(**options: Any) -> Any:  # Any: what run takes
    def train(run: Run) -> list[Tensor]:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)]
        model = nn.Sequential(*layers)
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), losses, **options)
        # The last batch has one sample: a single shard is executed, by one process.
        seen = [step(batch) for _ in run.epochs(EPOCHS) for batch in run.batches((X, Y), B)]
        return [*model.state_dict().values(), *seen]

    return train


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_norm": "global"}, {"autocast": torch.float16}, {"batch_norm": "global", "autocast": torch.float16}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_bits_do_not_depend_on_the_processes(options: dict[str, Any], pool: Pool) -> None:
    one = fanwise.run(training(**options), devices=1, shards=SHARDS)
    for devices in (2, 3):
        found = fanwise.run(training(**options), devices=devices, shards=SHARDS, pool=pool)
        assert all(torch.equal(first, other) for first, other in zip(one, found, strict=True)), devices

"""`run.step(autocast=torch.float16)`: the same on any devices; what checkpoints hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from classification import losses, same
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR, LRScheduler, OneCycleLR

import fanwise
from fanwise.parallel import LossScale, Run

# N: samples, B: samples of a global batch
N, B, EPOCHS, SHARDS = 37, 16, 2, 8
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 1, 6, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)


def network() -> nn.Module:
    conv, linear = nn.Conv2d(1, 4, 3), nn.Linear(64, 3)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), linear)


def loud(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """So large for some batches that float16 overflows."""
    return losses(model, x, y) * (1e4 if bool((y[0] == 0) & (len(y) == 2)) else 1.0)


def test_a_checkpoint_holds_the_scale(tmp_path: Path) -> None:
    def train(run: Run) -> list[Tensor]:
        model, scale = network(), LossScale()
        scale.load_state_dict(scale.state_dict() | {"growth_interval": 2})
        step = run.step(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            loud,
            autocast=torch.float16,
            loss_scale=scale,
        )
        seen = []
        for epoch in run.epochs(4):
            for batch in run.batches((X, Y), B):
                seen.append(step(batch))
            if epoch == 1 and run.seed == 0:
                run.save(tmp_path / "checkpoint.pt")
        return [*model.state_dict().values(), *seen[-6:], torch.tensor(step.updates)]

    whole = fanwise.run(train, shards=SHARDS)
    assert same(fanwise.run(train, resume=tmp_path / "checkpoint.pt"), whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autocast": torch.float32}, "autocast must be torch.bfloat16, torch.float16 or None, got torch.float32"),
        ({"loss_scale": LossScale()}, "loss_scale= requires autocast=torch.float16, got autocast=None"),
        ({"batch_norm": "sync"}, "batch_norm must be one of shard, global, got 'sync'"),
    ],
    ids=["autocast", "loss_scale", "batch_norm"],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=message):
        fanwise.here().step(model, torch.optim.SGD(model.parameters(), 0.1), losses, **options)


def test_a_float16_model_is_refused_for_a_scaled_loss() -> None:
    model = network().half()
    with pytest.raises(ValueError, match=r"'0.weight' of the model is float16"):
        fanwise.here().step(model, torch.optim.SGD(model.parameters(), 0.1), losses, autocast=torch.float16)


def warming(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return LinearLR(optimizer, 0.25, total_iters=4)


def one_cycle(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return OneCycleLR(optimizer, 0.8, total_steps=10)


@pytest.mark.parametrize("make", [warming, one_cycle])
@pytest.mark.parametrize("made_last", [False, True], ids=["first", "last"])
def test_a_resumed_scheduler_continues_wherever_it_is_made(
    make: Callable[[torch.optim.Optimizer], LRScheduler], made_last: bool, tmp_path: Path
) -> None:
    def train(run: Run) -> list[tuple[float, float]]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.8, momentum=0.9)
        scheduler = None if made_last else make(optimizer)
        step = run.step(model, optimizer, lambda m, x: m(x).square().sum(1))
        scheduler = scheduler or make(optimizer)
        run.keep(scheduler=scheduler)
        actual = []
        for epoch in run.epochs(8):
            for batch in run.batches(torch.ones(2, 2), 2):
                actual.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
                step(batch)
                scheduler.step()
            if epoch == 2:
                run.save(tmp_path / "checkpoint.pt")
        return actual

    whole = train(fanwise.here())
    resumed = fanwise.here()
    resumed.restore(tmp_path / "checkpoint.pt")
    assert train(resumed) == whole[3:]

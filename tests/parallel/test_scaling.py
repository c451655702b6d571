"""Rates for larger batches, and the way up to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, StepLR

import fanwise
from fanwise.parallel import Run, scale_lr, warm_up


@pytest.mark.parametrize(
    ("rule", "batch_size", "expected"),
    [
        ("linear", 1024, 0.8),
        ("linear", 128, 0.1),
        ("linear", 256, 0.2),
        ("sqrt", 1024, 0.4),
        ("sqrt", 64, 0.1),
        ("none", 1024, 0.2),
    ],
)
def test_a_rate_follows_its_rule(rule: Any, batch_size: int, expected: float) -> None:  # Any: a literal
    assert scale_lr(0.2, batch_size, 256, rule=rule) == pytest.approx(expected, rel=1e-15)


def test_linear_is_what_is_taken_without_a_rule() -> None:
    assert scale_lr(0.1, 8192, 256) == scale_lr(0.1, 8192, 256, rule="linear") == 0.1 * 32


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((0.0, 2, 1), ValueError, "lr must be above 0 and finite, got 0.0"),
        ((float("nan"), 2, 1), ValueError, "got nan"),
        ((float("inf"), 2, 1), ValueError, "got inf"),
        (("0.1", 2, 1), TypeError, "lr must be a number, got '0.1'"),
        ((True, 2, 1), TypeError, "lr must be a number, got True"),
        ((0.1, 0, 1), ValueError, "batch_size must be at least 1, got 0"),
        ((0.1, 2, 0), ValueError, "base_batch_size must be at least 1, got 0"),
        ((0.1, 2.0, 1), TypeError, "batch_size must be a whole number, got 2.0"),
    ],
    ids=str,
)
def test_numbers_that_make_no_rate_are_refused(arguments: Any, error: type[Exception], said: str) -> None:  # Any: wrong
    with pytest.raises(error, match=said):
        scale_lr(*arguments)


def test_a_misspelt_rule_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown rule='liner'; did you mean 'linear'"):
        scale_lr(0.1, 2, 1, rule="liner")  # type: ignore[arg-type]  # wrong on purpose


def sgd(*rates: float) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates], 1.0)


def rates_of(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, steps: int) -> list[list[float]]:
    """The rates at which each step is made."""
    found = []
    for _ in range(steps):
        found.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def test_the_first_steps_rise_evenly_and_the_others_are_made_at_the_full_rate() -> None:
    optimizer = sgd(0.8, 8.0)
    found = rates_of(optimizer, warm_up(optimizer, 4, start_factor=0.25), 6)
    expected = [0.2, 0.35, 0.5, 0.65, 0.8, 0.8]
    assert found == [pytest.approx([rate, 10 * rate]) for rate in expected]
    assert found[-1] == [0.8, 8.0]  # exactly


def test_a_warm_up_may_begin_at_nothing_and_at_everything() -> None:
    for factor, first in ((0, 0.0), (1, 0.8)):
        optimizer = sgd(0.8)
        assert rates_of(optimizer, warm_up(optimizer, 2, start_factor=factor), 3)[0] == [first]


def test_another_scheduler_begins_when_the_warm_up_is_over() -> None:
    optimizer = sgd(0.8)
    scheduler = warm_up(optimizer, 2, start_factor=0.5, then=StepLR(optimizer, 2, gamma=0.5))
    found = [rate for (rate,) in rates_of(optimizer, scheduler, 8)]
    assert found == pytest.approx([0.4, 0.6, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2])


@pytest.mark.parametrize(
    ("steps", "factor", "error", "said"),
    [
        (0, 0.5, ValueError, "steps must be at least 1, got 0"),
        (1.5, 0.5, TypeError, "steps must be a whole number, got 1.5"),
        (2, 1.5, ValueError, "start_factor must be from 0 to 1, got 1.5"),
        (2, -0.1, ValueError, "got -0.1"),
        (2, float("nan"), ValueError, "got nan"),
        (2, "0", TypeError, "start_factor must be a number, got '0'"),
    ],
    ids=str,
)
def test_a_warm_up_that_is_none_is_refused(
    steps: Any, factor: Any, error: type[Exception], said: str
) -> None:  # Any: wrong
    optimizer = sgd(0.8)
    with pytest.raises(error, match=said):
        warm_up(optimizer, steps, start_factor=factor)
    assert optimizer.param_groups[0]["lr"] == 0.8


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="then= is a scheduler of another optimizer"):
        warm_up(sgd(0.8), 2, start_factor=0.5, then=StepLR(sgd(0.8), 2))


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().sum(1)


def plain(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return warm_up(optimizer, 4, start_factor=0.25)


def followed(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return warm_up(optimizer, 3, start_factor=0.25, then=StepLR(optimizer, 2, gamma=0.5))


@pytest.mark.parametrize("make", [plain, followed])
@pytest.mark.parametrize("saved_after", [2, 5])
def test_a_checkpoint_holds_the_place_in_the_warm_up(
    make: Callable[[torch.optim.Optimizer], LRScheduler], saved_after: int, tmp_path: Path
) -> None:
    def train(run: Run) -> list[float]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.8)
        scheduler = make(optimizer)
        run.keep(scheduler=scheduler)
        step = run.step(model, optimizer, squares)
        rates = []
        for epoch in run.epochs(8):
            for batch in run.batches(torch.ones(2, 2), 2):
                rates.append(float(optimizer.param_groups[0]["lr"]))
                step(batch)
                scheduler.step()
            if epoch + 1 == saved_after:
                run.save(tmp_path / "checkpoint.pt")
        return rates

    whole = train(fanwise.here())
    assert len(set(whole)) > 3
    resumed = fanwise.here()
    resumed.restore(tmp_path / "checkpoint.pt")
    assert train(resumed) == whole[saved_after:]

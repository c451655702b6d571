"""A single step: losses and counts, gradients, buffers, failures."""

import logging
import math
from typing import Any

import pytest
import torch
from classification import losses
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise

# B: samples, D: features
X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def linear() -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(4, 3)


def sgd(model: nn.Module, lr: float = 1.0) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr)


def moved_by(loss_fn: Any, shards: int, batch: Any = (X, Y), **options: Any) -> Tensor:  # Any: a step's arguments
    """Return the change of the weights by one step at rate 1, which is the gradient."""
    model = linear()
    before = model.weight.detach().clone()
    fanwise.here(shards=shards).step(model, sgd(model), loss_fn, **options)(batch)
    return before - model.weight.detach()


WHOLE = moved_by(losses, 1)


@pytest.mark.parametrize("shards", [2, 3, 7, 10, 16])
def test_uneven_and_empty_shards_give_the_gradient_of_the_whole_batch(shards: int) -> None:
    torch.testing.assert_close(moved_by(losses, shards), WHOLE, rtol=1e-6, atol=1e-7)


def test_a_mean_counts_for_its_samples_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = linear()
    step = fanwise.here(shards=3).step(model, sgd(model), lambda m, x, y: cross_entropy(m(x), y))
    with caplog.at_level(logging.WARNING):
        step((X, Y))
        step((X, Y))
    assert [record.message[:27] for record in caplog.records] == ["loss_fn returned one number"]
    means = moved_by(lambda m, x, y: cross_entropy(m(x), y), 3)
    torch.testing.assert_close(means, WHOLE, rtol=1e-6, atol=1e-7)


def test_every_token_counts_the_same() -> None:
    """Losses of shape (B, tokens): the mean is over all tokens."""
    twice = moved_by(lambda m, x, y: losses(m, x, y)[:, None].expand(-1, 2), 3)
    torch.testing.assert_close(twice, WHOLE, rtol=1e-6, atol=1e-7)


def test_weights_are_divided_by_their_sum_over_the_whole_batch() -> None:
    weights = torch.arange(10) % 4.0

    def weighted(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return losses(model, x, y) * w, w

    model = linear()
    (losses(model, X, Y) * weights).sum().div(weights.sum()).backward()  # type: ignore[no-untyped-call]  # torch's
    assert model.weight.grad is not None
    actual = moved_by(weighted, 3, (X, Y, weights))
    torch.testing.assert_close(actual, model.weight.grad, rtol=1e-6, atol=1e-7)


def test_a_batch_that_counts_nothing_is_refused_and_changes_nothing() -> None:
    model = linear()
    before = model.weight.detach().clone()
    step = fanwise.here().step(model, sgd(model), lambda m, x, y: (losses(m, x, y) * 0, 0))
    with pytest.raises(ValueError, match="sum to 0 for this batch of 10 samples"):
        step((X, Y))
    assert torch.equal(model.weight, before)
    assert step.batches == 0


def test_a_step_returns_the_mean_loss_of_the_batch() -> None:
    model = linear()
    expected = losses(model, X, Y).mean().detach()
    loss = fanwise.here(shards=3).step(model, sgd(model), losses)((X, Y))
    assert loss.shape == () and not loss.requires_grad
    torch.testing.assert_close(loss, expected)


def test_frozen_and_unused_parameters_stay_as_they_are() -> None:
    model = nn.ModuleDict({"used": linear(), "unused": nn.Linear(2, 2), "frozen": nn.Linear(4, 4)})
    model["frozen"].requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)  # it would decay parameters with a gradient of zeros
    fanwise.here(shards=3).step(model, optimizer, lambda m, x, y: losses(m["used"], m["frozen"](x), y))((X, Y))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"used.weight", "used.bias"}
    assert all(param.grad is None for param in model.parameters())


def test_a_parameter_that_one_shard_uses_gets_its_gradient() -> None:
    model = nn.ModuleList([linear(), linear()])

    def by_sign(m: nn.ModuleList, x: Tensor, y: Tensor) -> Tensor:
        return losses(m[int(x[0, 0] > 0)], x, y)

    ordered = X[X[:, 0].argsort()]
    fanwise.here(shards=10).step(model, sgd(model), by_sign)((ordered, Y))
    fresh = linear()
    assert not torch.equal(model[0].weight, fresh.weight)  # type: ignore[arg-type]  # ModuleList holds any module
    assert not torch.equal(model[1].weight, fresh.weight)  # type: ignore[arg-type]


def test_autocast_computes_in_bfloat16_and_keeps_parameters_in_float32() -> None:
    seen = []

    def watched(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(m(x).dtype)
        return losses(m, x, y)

    actual = moved_by(watched, 2, autocast=torch.bfloat16)
    assert set(seen) == {torch.bfloat16}
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, WHOLE, rtol=0.05, atol=0.01)
    assert not torch.equal(actual, WHOLE)


def test_gradients_too_small_for_float16_are_kept() -> None:
    norms = []
    for autocast in (None, torch.float16):
        model, run = linear(), fanwise.here(shards=3)
        tiny = lambda m, x, y: losses(m, x, y) * 1e-8  # noqa: E731
        step = run.step(model, sgd(model), tiny, autocast=autocast, clip_norm=math.inf)
        step((X, Y))
        norms.append(step.grad_norm)
    torch.testing.assert_close(norms[1], norms[0], rtol=0.02, atol=0)


def test_running_statistics_are_means_over_the_shards() -> None:
    def after(shards: int) -> nn.BatchNorm1d:
        norm = nn.BatchNorm1d(4, momentum=0.5)
        fanwise.here(shards=shards).step(norm, sgd(norm), lambda m, x: m(x).square().sum(1))((X,))
        return norm

    one, three = after(1), after(3)
    assert int(three.num_batches_tracked or 0) == 1
    assert one.running_mean is not None and three.running_mean is not None and three.running_var is not None
    # The mean of means, weighted by 4, 3 and 3 samples, is that of the whole batch; a variance is that of its shard.
    torch.testing.assert_close(three.running_mean, one.running_mean)
    variances = torch.stack([X[:4].var(0) * 4, X[4:7].var(0) * 3, X[7:].var(0) * 3]).sum(0) / 10
    torch.testing.assert_close(three.running_var, 0.5 + 0.5 * variances)


class Counting(nn.Module):
    """Counts its calls, and holds a table that nothing changes."""

    table: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.register_buffer("table", torch.rand(3) / 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1  # another tensor in its place
        out: Tensor = self.linear(x) + self.table
        return out


@pytest.mark.parametrize("shards", [1, 3])
def test_constant_buffers_keep_their_bits_and_counters_count_batches(shards: int) -> None:
    model = Counting()
    table = model.table.clone()
    step = fanwise.here(shards=shards).step(model, sgd(model), losses)
    step((X, Y))
    step((X, Y))
    assert torch.equal(model.table, table)
    assert int(model.calls) == 2


def test_a_failed_shard_is_named_and_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), linear())
    failing = True

    def fails(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        result = losses(m, x, y)
        if failing and torch.equal(x[-1], X[-1]):
            raise KeyError("a bad sample")
        return result

    step = fanwise.here(shards=3).step(model, sgd(model), fails)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    chance = torch.get_rng_state()
    with pytest.raises(KeyError, match="a bad sample") as caught:
        step((X, Y))
    assert caught.value.__notes__ == ["in shard 2 of 3, with 3 samples of the batch"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())
    assert torch.equal(torch.get_rng_state(), chance)
    failing = False
    step((X, Y))
    assert step.updates == 1


def test_each_shard_of_each_batch_draws_its_own_numbers() -> None:
    drawn: list[float] = []

    def draws(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        drawn.append(float(torch.rand(())))
        return losses(m, x, y)

    model = linear()
    step = fanwise.here(shards=3).step(model, sgd(model), draws)
    step((X, Y))
    step((X, Y))
    assert len(set(drawn)) == 6

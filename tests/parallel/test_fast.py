"""`reduce="fast"` over a process group: the exchange of gradients during the backward pass, with a recording group."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fanwise.parallel.comm import fast
from fanwise.parallel.comm.fast import FastAllReduce, FlatGrads
from fanwise.parallel.comm.sums import TeamSums
from fanwise.parallel.comm.team import Alone
from fanwise.parallel.comm.torch_group import TorchGroup
from fanwise.parallel.optim.step_optimizer import StepOptimizer
from fanwise.parallel.step.gradients import Partial
from fanwise.parallel.step.replicas import Replica, ShardWork
from fanwise.parallel.step.tree import Node
from fanwise.tensor.random.keys import Key

CPU = torch.device("cpu")
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class RecordingGroup:
    """The group of one process, whose sums are the operands. Records its calls, in order with other events."""

    is_broken = False

    def __init__(self) -> None:
        self.events: list[str] = []
        self.started: list[Tensor] = []

    def start_all_reduce(self, tensor: Tensor) -> None:
        self.events.append("start")
        self.started.append(tensor.clone())

    def finish_all_reduces(self) -> None:
        self.events += ["finish"] if self.started else []


class Training:
    """Batches of one process that is the only one of its group."""

    def __init__(self, model: nn.Module, **options: Any) -> None:  # Any: of Replica
        self.group = RecordingGroup()
        self.replica = Replica(model, losses, **options)
        self.fast = FastAllReduce(cast(TorchGroup, self.group), self.replica.params, CPU)
        optimizer = StepOptimizer(self.replica.params, torch.optim.SGD(self.replica.params), allow_slices=False)
        self.sums = TeamSums(Alone(), self.fast, optimizer, CPU, is_fast=True)

    def nodes(self, sizes: Sequence[int], *, overlaps: bool = True) -> list[Node[Partial]]:
        self.group.events.clear()
        self.group.started.clear()
        work = [ShardWork(index, lambda index: (X + index,), size, False) for index, size in enumerate(sizes)]
        return self.replica.execute(work, Key(0), len(sizes), self.fast if overlaps else None)

    def grads(self, sizes: Sequence[int] = (4, 4, 4, 4), *, overlaps: bool = True) -> list[Tensor | None]:
        nodes = self.nodes(sizes, overlaps=overlaps)
        total = self.sums.reduce("makes a step", nodes, len(sizes), mean=True)
        grads = [None if grad is None else grad.clone() for grad in self.sums.gather_grads()]
        for index, rest in total.sparse.items():
            dense, mean = grads[index], (rest / total.count).to_dense()
            grads[index] = mean if dense is None else dense + mean
        return grads


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return cast(Tensor, model(x)).square().sum(1)


def check_same(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> None:
    assert [grad is None for grad in some] == [grad is None for grad in others]
    for one, other in zip(some, others, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_BUCKET_BYTES", 256)  # one weight of 8 x 8


def test_the_first_all_reduce_starts_before_the_backward_pass_has_ended() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    training = Training(model)
    first = cast(nn.Linear, model[0]).weight
    training.grads()
    first.register_hook(lambda grad: training.group.events.append("gradient"))  # type: ignore[no-untyped-call]
    overlapped = training.grads((4, 4, 4, 4))
    events = training.group.events
    assert events[:3] == ["gradient"] * 3, "the shards before the last one start nothing"
    last = events[3:]
    assert (
        last.index("start") < last.index("gradient") < len(last) - last[::-1].index("start") - 1 < last.index("finish")
    )
    check_same(overlapped, training.grads(overlaps=False))


@pytest.mark.parametrize("sizes", [(4,), (4, 4, 4, 0, 0), (0, 4, 4), (4, 4, 4, 4, 4, 4, 4)], ids=str)
def test_sums_are_those_of_an_exchange_after_the_backward_pass(sizes: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 9, bias=False), nn.PReLU())
    cast(nn.Linear, model[0]).bias.requires_grad_(False)
    training = Training(model)
    expected = training.grads(sizes, overlaps=False)
    for _ in range(3):
        check_same(training.grads(sizes), expected)
    assert all(param.grad is None for param in model.parameters())
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters()), "the hooks are removed"


class Branches(nn.Module):
    """Uses another layer in each batch, or an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(3, 8, sparse=True)])
        self.number = 0

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layers[self.number]
        result: Tensor = layer((x.sum(1) > 0).long() if isinstance(layer, nn.Embedding) else x)
        return result


def test_parameters_that_gain_or_lose_their_gradient_have_the_same_sums() -> None:
    model = Branches()
    training = Training(model)
    for number in [0, 1, 0, 0, 2, 2, 1]:
        model.number = number
        overlapped = training.grads()
        check_same(overlapped, training.grads(overlaps=False))


def test_buckets_start_in_order_and_those_without_gradients_are_zeros() -> None:
    params = [nn.Parameter(torch.zeros(8, 8)) for _ in range(3)]
    grads = FlatGrads(params, [True] * 3, CPU)
    ones = torch.ones(8, 8)
    assert grads.put(1, [None, ones]) and grads.take_complete() == []
    assert grads.put(2, [ones, None, ones])
    assert [float(bucket.mean()) for bucket in grads.take_complete()] == [2, 1]
    assert not grads.put(0, [None])
    assert [float(bucket.mean()) for bucket in grads.take_complete()] == [0]


def test_a_parameter_larger_than_a_bucket_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    params = [nn.Parameter(torch.zeros(size)) for size in (3, 1 << 21, 0, 5)]
    grads = FlatGrads(params, [True] * 4, CPU)
    assert [bucket.numel() for bucket in grads.buckets] == [5, 1 << 20, 1 << 20, 3]
    for index, complete in ((3, 1), (1, 0), (2, 2), (0, 1)):
        grads.put(index, [torch.ones_like(params[index])])
        assert len(grads.take_complete()) == complete


def test_a_shard_that_raises_starts_the_remaining_buckets_in_the_same_order() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    training = Training(model)
    training.grads()
    sizes = [tensor.numel() for tensor in (training.grads(), training.group.started)[1]]

    def poison(grad: Tensor) -> None:
        raise KeyError("poison")

    hook = cast(nn.Linear, model[0]).weight.register_hook(poison)  # type: ignore[no-untyped-call]
    with pytest.raises(KeyError, match="poison"):
        training.nodes((4, 4))
    assert [tensor.numel() for tensor in training.group.started] == sizes
    hook.remove()
    training.replica.clear_grads()
    check_same(training.grads(), training.grads(overlaps=False))


def test_a_process_without_samples_starts_zeros() -> None:
    training = Training(nn.Linear(8, 8))
    training.grads()
    training.nodes((0, 0))
    assert [float(bucket.abs().sum()) for bucket in training.group.started] == [0, 0]


class Checkpointed(nn.Module):
    """Computes the gradient of one layer twice in a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = cast(Tensor, checkpoint(partial(_twice, self), self.first(x), use_reentrant=True))
        return cast(Tensor, self.last(x))


def _twice(model: Checkpointed, x: Tensor) -> Tensor:
    return cast(Tensor, model.shared(x)).tanh()


def test_a_gradient_that_is_computed_again_after_its_bucket_was_started_is_added() -> None:
    training = Training(Checkpointed())
    expected = training.grads(overlaps=False)
    for _ in range(3):
        check_same(training.grads(), expected)
    assert not training.fast.overlaps

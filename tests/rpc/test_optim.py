"""DistributedOptimizer: the same step as one process makes, `.grad` untouched, errors of all owners."""

from typing import Any

import pytest
import torch
import torch._dynamo  # torch.optim loads it at its first use, which takes seconds: so it is loaded before workers fork
from rpc_workers import Workers

import fanwise.rpc as rpc
from fanwise.rpc import autograd
from fanwise.rpc.optim import DistributedOptimizer

# Any: references, and optimizers of torch, which has no type for their classes.


class Layer:
    def __init__(self, seed: int) -> None:
        self.weight = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        self.unused = torch.ones(2, requires_grad=True)
        self.unused.grad = torch.full((2,), 5.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight @ x

    def parameters(self) -> list[Any]:
        return [rpc.RRef(self.weight), rpc.RRef(self.unused)]

    def state(self) -> tuple[torch.Tensor, torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"]:
        return self.weight.detach(), self.unused.detach(), self.weight.grad, self.unused.grad


def loss_of(first: Any, second: Any, x: torch.Tensor) -> torch.Tensor:
    return second(first(x)).sum()  # type: ignore[no-any-return]  # of either kind


def train(optimizer_class: Any, **kwargs: float) -> list[Any]:
    layers = [rpc.remote(f"w{rank}", Layer, args=(rank,)) for rank in (1, 2)]
    params = [param for layer in layers for param in layer.rpc_sync().parameters()]
    optimizer = DistributedOptimizer(optimizer_class, params, **kwargs)
    for step in range(3):
        with autograd.context() as context_id:
            loss = loss_of(layers[0].rpc_sync().forward, layers[1].rpc_sync().forward, torch.full((3, 3), 1.0 + step))
            autograd.backward(context_id, [loss])
            optimizer.step(context_id)
    return [layer.rpc_sync().state() for layer in layers]


def test_a_parameter_without_a_gradient_and_every_grad_stay_as_they_are(real_workers: Workers) -> None:
    one, _two, _three = real_workers.group(3)
    for _weight, unused, grad, grad_of_unused in one.do(train, torch.optim.SGD, lr=0.1):
        assert grad is None and torch.equal(unused, torch.ones(2))
        assert torch.equal(grad_of_unused, torch.full((2,), 5.0))


class Refusing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError(f"no step on {rpc.get_worker_info().name}")


def test_the_first_error_has_the_others_as_notes(real_workers: Workers) -> None:
    one, _two, _three = real_workers.group(3)
    with pytest.raises(ValueError, match="no step on w1 / a note of w2: True"):
        one.do(failing_step)


def failing_step() -> None:
    try:
        train(Refusing)
    except ValueError as error:
        noted = any("no step on w2" in note for note in error.__notes__)
        raise ValueError(f"{error} / a note of w2: {noted}") from None

"""An update in blocks leaves the bits of `optimizer.step()`, in the parameters and in the optimizer's own state."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.optimizers.blocked import BlockedStep, pays

BLOCK_BYTES = 1 << 10
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {  # Any: a class of optimizers, its settings
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD, Nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {}),
    "Adam, AMSGrad, maximised": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "AdamW, for each": (torch.optim.AdamW, {"foreach": True}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
}


def parameters() -> list[nn.Parameter]:
    """Large ones, whose last block is no multiple of anything; a small one; two that are not cut."""
    chance = torch.Generator().manual_seed(0)
    shapes = ((61, 37), (70, 91), (300,), (16, 8, 3, 3), (41, 23))
    made = [nn.Parameter(torch.randn(shape, generator=chance)) for shape in shapes]
    made[3] = nn.Parameter(made[3].detach().to(memory_format=torch.channels_last))
    made[4] = nn.Parameter(made[4].detach().t())
    return [*made, nn.Parameter(torch.randn(3001, generator=chance, dtype=torch.float64))]


def give_gradients(params: list[nn.Parameter], turn: int) -> None:
    """Those of a batch; now and then a parameter is not reached, and one is only from the third on."""
    chance = torch.Generator().manual_seed(turn)
    for place, param in enumerate(params):
        grad = torch.randn(param.shape, generator=chance, dtype=param.dtype)
        reached = (place + turn) % 5 and (place != 1 or turn > 2)
        param.grad = grad if reached else None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_the_whole(name: str) -> None:
    kind, settings = OPTIMIZERS[name]
    made = []
    for params in (parameters(), parameters()):
        groups: list[dict[str, Any]] = [{"params": params[:2]}, {"params": params[2:], "lr": 0.05}]  # Any: settings
        made.append((params, kind(groups, lr=0.01, **settings)))
    (whole, optimizer), (cut, other) = made
    blocked = BlockedStep(other, BLOCK_BYTES)
    for turn in range(8):
        for each in (whole, cut):
            give_gradients(each, turn)
        optimizer.step()
        blocked.step()
        if turn == 4:  # what a schedule, or a checkpoint, changes
            for its in (optimizer, other):
                its.param_groups[0]["lr"] = 0.002
                its.load_state_dict(its.state_dict())
        if turn == 5:
            cut[0].data = cut[0].data.clone()
    assert all(map(torch.equal, whole, cut))
    expected, found = optimizer.state_dict(), other.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    for number, state in expected["state"].items():
        assert all(torch.equal(found["state"][number][key], value) for key, value in state.items())


class OwnAdamW(torch.optim.AdamW):
    """Whatever it does."""


def watched(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(params)
    optimizer.register_step_pre_hook(lambda *arguments: None)
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda params: torch.optim.Adam(params[2:3]), id="too small"),
        pytest.param(lambda params: torch.optim.Adam(params, fused=True), id="fused"),
        pytest.param(torch.optim.Rprop, id="of another kind"),
        pytest.param(lambda params: torch.optim.SGD(params, momentum=0.9), id="of few passes"),
        pytest.param(OwnAdamW, id="a subclass"),
        pytest.param(watched, id="watched"),
        pytest.param(lambda params: torch.optim.Adam(params, differentiable=True), id="differentiable"),
    ],
)
def test_others_are_left_alone(make: Any) -> None:  # Any: of one argument
    params = [*parameters(), nn.Parameter(torch.zeros(1 << 20))]
    assert pays(torch.optim.Adam(params), params)
    optimizer = make(params)
    assert not pays(optimizer, [param for group in optimizer.param_groups for param in group["params"]])


def squares(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).square().mean(1)
    return found


def trained(run: Run, kind: type[torch.optim.AdamW]) -> list[Tensor]:
    model = nn.Sequential(nn.Linear(30, 600), nn.Linear(600, 1900))
    optimizer = kind(model.parameters(), lr=0.01)
    step = run.step(model, optimizer, squares)
    for batch in run.batches(torch.linspace(-1, 1, 480).view(16, 30), 4):
        step(batch)
    return [*model.state_dict().values(), *(state["exp_avg_sq"] for state in optimizer.state.values())]


def test_a_run_gives_the_bits_of_an_optimizer_that_is_not_cut() -> None:
    found, expected = (fanwise.run(partial(trained, kind=kind)) for kind in (torch.optim.AdamW, OwnAdamW))
    assert all(map(torch.equal, found, expected))

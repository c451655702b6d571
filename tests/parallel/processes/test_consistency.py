"""Optimizer state, settings and batches that processes must share: the same on one and two devices, or an error."""

import collections
import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from classification import same
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.comm.shared_memory import AllReduceKind
from fanwise.pool import Pool

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
Between = Callable[[nn.Module, torch.optim.Optimizer], object]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def losses(m: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = m(x).square().mean(1)
    return result


def steps(run: Run, step: Callable[[Any], Tensor], count: int = 2) -> None:
    for _, batch in zip(range(count), run.batches(X, 8), strict=False):
        step(batch)


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def on_both(train: Callable[[Run], Any], pool: Pool) -> list[Any]:  # Any: its result or error
    """Return the results of one device and of two, or their errors."""
    actual: list[Any] = []
    for devices in (1, 2):
        try:
            actual.append(fanwise.run(train, devices=devices, shards=4, pool=pool if devices > 1 else None))
        except (ValueError, TypeError) as error:
            actual.append((type(error), str(error)))
    return actual


def train_with_two_steps(run: Run) -> list[Tensor]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    plain = run.step(model, optimizer, losses)
    steps(run, plain)
    clipped = run.step(model, optimizer, losses, clip_norm=0.1)
    steps(run, clipped)
    steps(run, plain)
    return weights(model)


def test_several_steps_share_the_state_of_an_optimizer(all_reduce: AllReduceKind, pool: Pool) -> None:
    one, two = on_both(train_with_two_steps, pool)
    assert same(one, two)


def train_with_change(change: Between) -> Callable[[Run], list[Tensor]]:
    def train(run: Run) -> list[Tensor]:
        model = net()
        optimizer = torch.optim.Adam(model[0].parameters(), 0.1)
        step = run.step(model, optimizer, losses)
        steps(run, step)
        change(model, optimizer)
        steps(run, step, 3)
        return weights(model)

    return train


def halves(model: nn.Module) -> Callable[..., None]:
    def halve(*_: object) -> None:
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(0.5)

    return halve


def add_group(model: Any, optimizer: torch.optim.Optimizer) -> None:  # Any: a Sequential
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})


def add_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.register_step_post_hook(halves(model))


def add_hook_to_all(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    handle = register_optimizer_step_pre_hook(halves(model))
    optimizer.register_step_post_hook(lambda *_: handle.remove())


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state_dict()
    add_hooks(model, optimizer)
    optimizer.load_state_dict(state)


@pytest.mark.parametrize("change", [add_group, add_hooks, add_hook_to_all, load])
def test_later_changes_of_an_optimizer_take_effect(change: Between, all_reduce: AllReduceKind, pool: Pool) -> None:
    one, two = on_both(train_with_change(change), pool)
    assert same(one, two)
    assert not same(one, fanwise.run(train_with_change(lambda *_: None), devices=1, shards=4))


def test_a_hook_in_one_process_ends_sharding_in_all(all_reduce: AllReduceKind, pool: Pool) -> None:
    def train(run: Run) -> list[Tensor]:
        def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            if run.rank == 0:
                optimizer.register_step_pre_hook(lambda *_: None)

        return train_with_change(watch)(run)

    one, two = on_both(train, pool)
    assert same(one, two)


def use_state(run: Run, where: str, at: int = 0) -> list[Tensor]:
    """Use the optimizer state after batch `at`, and read it again after later batches."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    step = run.step(model, optimizer, losses)
    weight, averages, param_state = next(model.parameters()), [], None
    for number, batch in enumerate(run.batches(X, 8)):
        step(batch)
        if number == at:
            if where == "read" or (where == "read in one" and run.rank == 0):
                param_state = optimizer.state[weight]
            elif where == "copied":
                param_state = copy.deepcopy(optimizer).state_dict()["state"][0]
            elif where == "iterated":
                param_state = next(state for param, state in optimizer.state.items() if param is weight)
            elif where == "changed":
                optimizer.state[weight]["exp_avg"].zero_()
            elif where == "cleared":
                optimizer.state.clear()
            elif where == "replaced":
                optimizer.state = collections.defaultdict(dict)
        if param_state is not None:
            averages.append(param_state["exp_avg"].clone())
    first = optimizer.state_dict()["state"][0]
    assert sorted(optimizer.state[weight]) == sorted(first) == ["exp_avg", "exp_avg_sq", "step"]
    return [*weights(model), *first.values(), *averages]


USES = ["read", "read in one", "iterated", "copied", "changed", "cleared", "replaced"]


@pytest.mark.parametrize("where", USES)
def test_optimizer_state_can_be_read_and_changed(where: str, all_reduce: AllReduceKind, pool: Pool) -> None:
    one, two = on_both(functools.partial(use_state, where=where), pool)
    assert same(one, two)
    unseen = fanwise.run(functools.partial(use_state, where=""), devices=1, shards=4)
    assert same(one[: len(unseen)], unseen) == (where in USES[:4])


def test_every_process_gets_the_settings_of_the_program_which_are_restored(pool: Pool) -> None:
    def train(run: Run) -> list[Any]:  # Any: plain values
        actual = [torch.get_default_dtype(), torch.get_float32_matmul_precision(), sys.argv[-1]]
        torch.set_default_dtype(torch.float16)
        return actual

    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        sys.argv.append("--option")
        one, two = on_both(train, pool)
        assert one == two == [torch.float64, "medium", "--option"]
        assert torch.get_default_dtype() == torch.float64
    finally:
        sys.argv.remove("--option")
        torch.set_default_dtype(before[0])
        torch.set_float32_matmul_precision(before[1])


def spoil_parameter(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model[0].bias.data[0] += 1e-7


def spoil_buffer(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model[1].running_var[0] += 1e-7


def freeze(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model[0].bias.requires_grad_(False)


def change_rate(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.2


@pytest.mark.parametrize(
    ("change", "verify", "message"),
    [
        (
            spoil_parameter,
            1,
            r"batch 2 of step 0, 0\.bias is not the same in all processes: float32 \(3,\) with .* in ",
        ),
        (spoil_parameter, 2, r"batch 2 of step 0, 0\.bias is"),
        (spoil_parameter, 5, r"batch 3 of step 0, 0\.(weight|bias) is"),
        (freeze, 1, r"batch 2 of step 0, 0\.bias is not .* in processes 0 and 1, .*, frozen in process 2"),
        (spoil_buffer, 1, r"batch 2 of step 0, 1\.running_var is not the same"),
        (change_rate, 1, r"lr of parameter group 0 is not .*: 0\.1 in processes 0 and 1, 0\.2 in process 2"),
    ],
)
def test_verify_names_the_first_difference(change: Between, verify: int, message: str, pool: Pool) -> None:
    def train(run: Run) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = run.step(model, optimizer, losses)
        for number, batch in enumerate(run.batches(X, 8)):
            if number == 2 and run.rank == run.world_size - 1:
                change(model, optimizer)
            step(batch)

    with pytest.raises(ValueError, match=f"before {message}" if message.startswith("batch") else message):
        fanwise.run(train, devices=3, verify=verify, pool=pool)


def by_rank(run: Run, where: str) -> None:
    model = net()
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), losses)
    own = X[run.rank :: run.world_size]
    if where == "data":
        step(next(iter(run.batches(own, 8, shuffle=False))))
    if where == "sampler":
        sampler: Any = DistributedSampler(TensorDataset(X), run.world_size, run.rank)
        for batch in DataLoader(TensorDataset(X), 8, sampler=sampler):
            step(batch)
    for part in torch.tensor_split(own, len(own) // 4):
        step([part])


@pytest.mark.parametrize("where", ["data", "list", "sampler"])
def test_samples_by_rank_are_refused(where: str, pool: Pool) -> None:
    with pytest.raises(ValueError, match="the processes called step 0 with different batches, first batch 0") as caught:
        fanwise.run(functools.partial(by_rank, where=where), devices=2, pool=pool)
    assert "right:  for batch in run.batches(data, 32): step(batch)" in str(caught.value)
    fanwise.run(functools.partial(by_rank, where=where), devices=1)  # rank 0 of 1 has all samples

"""What one device does and several did otherwise without a word: it is the same now, or the same error on both."""

import collections
import copy
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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


def on_both(train: Callable[[Run], Any], pool: Pool) -> list[Any]:  # Any: its result, or what it raises
    """Of one device and of two."""
    found: list[Any] = []
    for devices in (1, 2):
        try:
            found.append(fanwise.run(train, devices=devices, shards=4, pool=pool if devices > 1 else None))
        except (ValueError, TypeError) as error:
            found.append((type(error), str(error)))
    return found


def equal(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


def two_steps(run: Run) -> list[Tensor]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for factor in (1.0, 2.0):
        steps(run, run.step(model, optimizer, lambda m, x, factor=factor: factor * losses(m, x)))
    return weights(model)


def by_turns(run: Run) -> list[Tensor]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    first, second = (run.step(model, optimizer, losses) for _ in range(2))
    for number, batch in enumerate(run.batches(X, 8)):
        (second if number % 2 else first)(batch)
    return weights(model)


def a_clipped_step_too(run: Run) -> list[Tensor]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    plain = run.step(model, optimizer, losses)
    steps(run, plain)
    clipped = run.step(model, optimizer, losses, clip_norm=0.1)
    steps(run, clipped)
    steps(run, plain)
    return weights(model)


def a_step_of_a_part(run: Run) -> list[Tensor]:
    model = net()
    optimizer = torch.optim.Adam(model[2].parameters(), 0.1)
    whole = run.step(model, optimizer, losses)
    steps(run, whole)
    steps(run, run.step(model[2], optimizer, lambda m, x: m(x @ torch.ones(4, 16)).square().mean(1)))
    steps(run, whole)
    return [*weights(model), *(state["exp_avg"] for state in optimizer.state_dict()["state"].values())]


def a_layer_more(run: Run) -> list[Tensor]:
    model, layer = net(), nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    steps(run, run.step(model, optimizer, losses))
    model.append(layer)
    optimizer.add_param_group({"params": layer.parameters(), "lr": 0.01})
    steps(run, run.step(model, optimizer, losses))
    return weights(model)


@pytest.mark.parametrize("train", [two_steps, by_turns, a_clipped_step_too, a_step_of_a_part, a_layer_more])
def test_an_optimizer_has_one_state_however_many_steps_use_it(
    train: Callable[[Run], list[Tensor]], all_reduce: AllReduceKind, pool: Pool
) -> None:
    one, two = on_both(train, pool)
    assert equal(one, two)


def later(what: Between) -> Callable[[Run], list[Tensor]]:
    def train(run: Run) -> list[Tensor]:
        model = net()
        optimizer = torch.optim.Adam(model[0].parameters(), 0.1)
        step = run.step(model, optimizer, losses)
        steps(run, step)
        what(model, optimizer)
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


@pytest.mark.parametrize("what", [add_group, add_hooks, add_hook_to_all, load])
def test_what_is_added_to_an_optimizer_later_counts(what: Between, all_reduce: AllReduceKind, pool: Pool) -> None:
    one, two = on_both(later(what), pool)
    assert equal(one, two)
    assert not equal(one, fanwise.run(later(lambda *_: None), devices=1, shards=4))


def test_a_hook_in_one_process_alone_takes_the_state_home_in_all(all_reduce: AllReduceKind, pool: Pool) -> None:
    def train(run: Run) -> list[Tensor]:
        def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            if run.rank == 0:
                optimizer.register_step_pre_hook(lambda *_: None)

        return later(watch)(run)

    one, two = on_both(train, pool)
    assert equal(one, two)


def looks_into_the_state(run: Run, where: str, at: int = 0) -> list[Tensor]:
    """After so many batches; what is looked at is held, and looked at again later."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    step = run.step(model, optimizer, losses)
    weight, seen, held = next(model.parameters()), [], None
    for number, batch in enumerate(run.batches(X, 8)):
        step(batch)
        if number == at:
            if where == "read" or (where == "read in one" and run.rank == 0):
                held = optimizer.state[weight]
            elif where == "copied":
                held = copy.deepcopy(optimizer).state_dict()["state"][0]
            elif where == "walked":
                held = next(state for param, state in optimizer.state.items() if param is weight)
            elif where == "changed":
                optimizer.state[weight]["exp_avg"].zero_()
            elif where == "cleared":
                optimizer.state.clear()
            elif where == "replaced":
                optimizer.state = collections.defaultdict(dict)
        if held is not None:
            seen.append(held["exp_avg"].clone())
    first = optimizer.state_dict()["state"][0]
    assert sorted(optimizer.state[weight]) == sorted(first) == ["exp_avg", "exp_avg_sq", "step"]
    return [*weights(model), *first.values(), *seen]


LOOKS = ["read", "read in one", "walked", "copied", "changed", "cleared", "replaced"]


@pytest.mark.parametrize("where", LOOKS)
def test_the_state_of_an_optimizer_can_be_looked_into_and_changed(
    where: str, all_reduce: AllReduceKind, pool: Pool
) -> None:
    one, two = on_both(functools.partial(looks_into_the_state, where=where), pool)
    assert equal(one, two)
    unseen = fanwise.run(functools.partial(looks_into_the_state, where=""), devices=1, shards=4)
    assert equal(one[: len(unseen)], unseen) == (where in LOOKS[:4])


def test_numpys_and_pythons_chance_in_a_loss_is_that_of_the_shard(pool: Pool) -> None:
    def train(run: Run, first: int = 0) -> list[Tensor]:
        turns = 0

        def drawing(m: nn.Module, x: Tensor) -> Tensor:
            if turns < first:
                return losses(m, x)
            return losses(m, x) * (float(np.random.rand()) + random.gauss() + float(np.random.normal()))

        model = net()
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), drawing)
        for batch in run.batches(X, 4):
            step(batch)
            turns += 1
        return [*weights(model), torch.tensor([np.random.rand(), random.random()])]

    one, two = on_both(train, pool)
    assert equal(one, two)
    later_one, later_two = on_both(lambda run: train(run, 3), pool)
    assert equal(later_one, later_two)
    assert not torch.equal(one[0], later_one[0]), "it draws"
    assert torch.equal(one[-1], later_one[-1]), "and the program's own streams do not notice"


def test_settings_of_the_program_reach_every_process_and_are_put_back(pool: Pool) -> None:
    def train(run: Run) -> list[Any]:  # Any: plain values
        found = [torch.get_default_dtype(), torch.get_float32_matmul_precision(), sys.argv[-1]]
        torch.set_default_dtype(torch.float16)
        return found

    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        sys.argv.append("--mine")
        one, two = on_both(train, pool)
        assert one == two == [torch.float64, "medium", "--mine"]
        assert torch.get_default_dtype() == torch.float64
    finally:
        sys.argv.remove("--mine")
        torch.set_default_dtype(before[0])
        torch.set_float32_matmul_precision(before[1])


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda m, x: (losses(m, x).mean(), m(x)), "float32 of shape (B, 3) with a gradient"),
        (lambda m, x: (losses(m, x), m(x).detach()), "losses of shape (B,) and torch.float32 of shape (B, 3)."),
        (lambda m, x: (losses(m, x).mean(), m(x).argmax(1)), "losses of shape () and torch.int64 of shape (B,)."),
        (lambda m, x: (losses(m, x), x, x), "got tuple of 3"),
        (lambda m, x: {"loss": losses(m, x)}, "got dict"),
    ],
    ids=["logits", "detached", "labels", "three", "dict"],
)
def test_what_are_no_losses_and_counts_is_refused_alike(result: Any, said: str, pool: Pool) -> None:  # Any: a loss
    def train(run: Run) -> None:
        model = net()
        steps(run, run.step(model, torch.optim.SGD(model.parameters(), 0.1), result))

    one, two = on_both(train, pool)
    assert one == two
    assert said in one[1]
    assert "\n  wrong:  return loss, logits" in one[1]
    assert "\n  right:  return " in one[1]


def spoiled(run: Run, what: str) -> None:
    """After two batches the last process changes something for itself."""
    model: Any = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))  # Any: its parts are of many types
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = run.step(model, optimizer, losses)
    for number, batch in enumerate(run.batches(X, 8)):
        if number == 2 and run.rank == run.world_size - 1:
            with torch.no_grad():
                if what == "parameter":
                    model[0].bias[0] += 1e-7
                elif what == "buffer":
                    model[1].get_buffer("running_var")[0] += 1e-7
                elif what == "frozen":
                    model[0].bias.requires_grad_(False)
                else:
                    optimizer.param_groups[0]["lr"] = 0.2
        step(batch)


@pytest.mark.parametrize(
    ("what", "verify", "said"),
    [
        (
            "parameter",
            1,
            r"before batch 2 of step 0 0\.bias is not the same in all processes: float32 \(3,\) with .* in ",
        ),
        ("parameter", 2, r"before batch 2 of step 0 0\.bias is"),
        ("parameter", 5, r"before batch 3 of step 0 0\.weight is|before batch 3 of step 0 0\.bias is"),
        (
            "frozen",
            1,
            r"before batch 2 of step 0 0\.bias is not .* in processes 0 and 1, .*, frozen in process 2",
        ),
        ("buffer", 1, r"before batch 2 of step 0 1\.running_var is not the same"),
        (
            "rate",
            1,
            r"lr of parameter group 0 is not the same in all processes: 0\.1 in processes 0 and 1, 0\.2 in process 2",
        ),
    ],
)
def test_verify_names_what_differs_first(what: str, verify: int, said: str, pool: Pool) -> None:
    with pytest.raises(ValueError, match=said):
        fanwise.run(functools.partial(spoiled, what=what), devices=3, verify=verify, pool=pool)


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
        step({"x": part}["x"] if where == "tensor" else [part])


@pytest.mark.parametrize("where", ["data", "tensor", "list", "sampler"])
def test_samples_by_rank_are_refused_with_the_way(where: str, pool: Pool) -> None:
    with pytest.raises(ValueError, match="the processes gave other batches to step 0, first in batch 0") as caught:
        fanwise.run(functools.partial(by_rank, where=where), devices=2, pool=pool)
    assert "right:  for batch in run.batches(data, 32): step(batch)" in str(caught.value)
    fanwise.run(functools.partial(by_rank, where=where), devices=1)  # where it is the whole data


def test_another_number_of_samples_is_refused(pool: Pool) -> None:
    def train(run: Run) -> None:
        model = net()
        run.step(model, torch.optim.SGD(model.parameters(), 0.1), losses)(X[: 8 + run.rank])

    with pytest.raises(ValueError, match="the number of samples is 8 in process 0, 9 in process 1"):
        fanwise.run(train, devices=2, pool=pool)

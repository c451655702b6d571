"""Loops over `step.shards(batch)` on one device: gradients, counts, checkpoints, and errors in the body."""

import gc
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import ManualStep, Run

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(10) % 3


def made(run: Run, model: nn.Module) -> ManualStep:
    return run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def backward(step: ManualStep, model: nn.Module, batch: object = (X, Y)) -> None:
    for x, y in step.shards(batch):
        step.backward(cross_entropy(model(x), y, reduction="none"))


def grads(model: nn.Module) -> list[Tensor | None]:
    return [param.grad for param in model.parameters()]


def plain(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> list[Tensor]:
    return list(torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))


def close(some: list[Tensor | None], others: list[Tensor]) -> bool:
    both = zip(some, others, strict=True)
    return all(one is not None and torch.allclose(one, other, atol=1e-6) for one, other in both)


def test_after_a_loop_grad_is_the_gradient_of_the_mean_loss_of_the_whole_batch() -> None:
    model = nn.Linear(4, 3)
    step = made(fanwise.here(), model)
    backward(step, model)
    assert close(grads(model), plain(model))
    assert torch.allclose(step.loss, cross_entropy(model(X), Y))
    assert (step.batches, step.executions, step.updates) == (1, 4, 0)
    step.update()
    assert grads(model) == [None, None]
    assert step.updates == 1


def test_a_loop_adds_to_what_is_in_grad() -> None:
    model = nn.Linear(4, 3)
    step = made(fanwise.here(), model)
    backward(step, model)
    backward(step, model, (X[:5], Y[:5]))
    sums = [one + other for one, other in zip(plain(model), plain(model, X[:5], Y[:5]), strict=True)]
    assert close(grads(model), sums)
    model.zero_grad()
    backward(step, model)
    assert close(grads(model), plain(model))


def test_two_backwards_of_a_shard_are_the_gradient_of_their_sum() -> None:
    model = nn.Linear(4, 3)
    step = made(fanwise.here(), model)
    for x, y in step.shards((X, Y)):
        step.backward(cross_entropy(model(x), y, reduction="none"))
        step.backward(model(x).square().sum(1))
    both = cross_entropy(model(X), Y) + model(X).square().sum(1).mean()
    assert close(grads(model), list(torch.autograd.grad(both, list(model.parameters()))))
    assert torch.allclose(step.loss, both)


def test_in_a_body_grad_is_the_gradient_of_the_shard() -> None:
    model = nn.Linear(4, 3)
    step = made(fanwise.here(), model)
    backward(step, model)
    seen = []
    for x, y in step.shards((X, Y)):
        assert grads(model) == [None, None]
        step.backward(cross_entropy(model(x), y, reduction="none"))
        assert model.bias.grad is not None
        seen.append(model.bias.grad.clone())
    assert torch.allclose(torch.stack(seen).sum(0), plain(model)[1] * len(X), atol=1e-6)


def test_an_error_in_a_body_leaves_everything_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    step = made(fanwise.here(shards=2), model)
    backward(step, model)
    before, held, random = [each.clone() for each in model.state_dict().values()], grads(model), torch.get_rng_state()

    def fails() -> None:
        for x, y in step.shards((X, Y)):
            step.backward(cross_entropy(model(x), y, reduction="none"))
            torch.rand(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(one is other for one, other in zip(grads(model), held, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    with pytest.raises(ValueError, match=r"a loop over step\.shards\(batch\) was left early"):
        step.update()


def test_graphs_of_a_body_are_freed_after_its_loop() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def train(run: Run) -> None:
        model = nn.Linear(4, 3)
        step = made(run, model)
        for _ in range(2):  # the first batches are checked
            for x, y in step.shards((X, Y)):
                out = model(x)
                seen.append(weakref.ref(out))
                step.backward(cross_entropy(out, y, reduction="none"))
            gc.disable()
            try:
                del out
                assert [each() for each in seen if each() is not None] == []
            finally:
                gc.enable()
            step.update()

    train(fanwise.here())


def test_gradients_that_wait_for_an_update_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"

    def train(run: Run, end: int = 6, saves: bool = False) -> list[Tensor]:
        model = nn.Linear(4, 3)
        step = made(run, model)
        for batch in run.batches((X, Y), 2):
            backward(step, model, batch)
            if step.batches % 2 == 0:
                step.update()
            if saves:
                run.save(path)
            if step.batches == end:
                break
        return [param.detach() for param in model.parameters()]

    expected = fanwise.run(train, devices=1)
    fanwise.run(lambda run: train(run, 3, saves=True), devices=1)
    actual = fanwise.run(train, devices=1, resume=path)
    assert all(map(torch.equal, expected, actual))


def test_models_and_optimizers_of_one_step_have_names_of_their_own_in_a_checkpoint(tmp_path: Path) -> None:
    def train(run: Run) -> None:
        body, head = nn.Linear(4, 2), nn.Linear(2, 3)
        run.step([body, head], [torch.optim.SGD(body.parameters(), 0.1), torch.optim.Adam(head.parameters(), 0.1)])
        run.save(tmp_path / "run.pt")

    fanwise.run(train, devices=1)
    held = torch.load(tmp_path / "run.pt")
    assert held["model"]["weight"].shape == (2, 4) and held["model2"]["weight"].shape == (3, 2)
    assert {"optimizer", "optimizer2"} <= held.keys()


@pytest.mark.parametrize("clip_norm", [math.inf, 0.01])
def test_grad_norm_is_the_norm_before_clipping(clip_norm: float) -> None:
    model = nn.Linear(4, 3)
    own, whole = made(fanwise.here(), model), fanwise.here()
    backward(own, model, (large := 50 * X, Y))
    expected = nn.utils.get_total_norm([grad for grad in grads(model) if grad is not None])
    model.zero_grad()
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    step = whole.step(model, optimizer, lambda m, x, y: cross_entropy(m(x), y, reduction="none"), clip_norm=clip_norm)
    with pytest.raises(ValueError, match=r"step\.grad_norm is that of the last update, and there was none yet"):
        _ = step.grad_norm
    step((large, Y))
    assert expected > 1
    assert torch.equal(step.grad_norm, expected)
    moved = torch.cat([(model.weight - weight).flatten(), model.bias - bias]).norm()
    assert torch.allclose(moved, min(expected, torch.tensor(clip_norm)), rtol=1e-4)


def test_several_models_with_a_loss_function_are_refused() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"run\.step got several models and a loss function"):
        fanwise.here().step([model, nn.Linear(3, 3)], optimizer, lambda m, x: x)  # type: ignore[call-overload]  # wrong

"""Wrong arguments of a run are refused before it starts, with the value and a way out."""

from typing import Any

import pytest
import torch
from torch import nn

import fanwise


def refused(message: str, error: type[Exception] = ValueError, /, **options: Any) -> None:  # Any: wrong on purpose
    with pytest.raises(error, match=message):
        fanwise.run(lambda run: None, **options)


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        (0, ValueError, "devices must be at least 1 and at most 1024, got 0"),
        (-1, ValueError, "got -1"),
        (5000, ValueError, "at most 1024, got 5000"),
        ([], ValueError, r'a run needs at least one, as \["cpu"\]'),
        ("gpu", ValueError, "there is no device 'gpu'; this machine has: cpu"),
        ("meta", ValueError, "devices='meta': a run uses CPU devices or GPUs"),
        (True, TypeError, "devices must be a number"),
        (1.5, TypeError, "got 1.5"),
        ([1], TypeError, "a device is named by text"),
    ],
    ids=str,
)
def test_devices_that_are_none_are_refused(devices: Any, error: type[Exception], message: str) -> None:  # Any: wrong
    refused(message, error, devices=devices)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shards": 0}, ValueError, "shards must be at least 1, got 0"),
        ({"shards": "all"}, ValueError, "shards='all': give a number, or 'devices' for one shard on each device"),
        ({"shards": 2.0}, TypeError, "shards must be a whole number, got 2.0"),
        ({"threads": 0}, ValueError, "threads must be at least 1, got 0"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"seed": 2**64}, ValueError, "seed must be below"),
        ({"reduce": "exacts"}, ValueError, "reduce must be one of exact, fast, got 'exacts'; did you mean 'exact'?"),
        ({"reduce": "sum"}, ValueError, "reduce must be one of exact, fast, got 'sum'"),
    ],
    ids=str,
)
def test_settings_of_a_run_are_checked(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:  # Any: wrong
    refused(message, error, **options)


def test_a_call_in_place_of_a_function_is_explained() -> None:
    with pytest.raises(TypeError, match=r"got a NoneType, not a function.\n  wrong:  fanwise.run\(train\(run\)\)"):
        fanwise.run(None)  # type: ignore[arg-type]  # wrong on purpose


LINEAR = nn.Linear(2, 2)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1)


META = nn.Linear(2, 2, device="meta")
LAZY = nn.LazyLinear(2)


@pytest.mark.parametrize(
    ("model", "optimizer", "options", "message"),
    [
        (META, sgd(META), {}, r"'weight' of the model is on meta, and this run's device is cpu.\nCall model.to\(run"),
        (LAZY, sgd(LINEAR), {}, "'weight' of the model has no shape yet. Call the model with a batch"),
        (LINEAR, torch.optim.LBFGS(LINEAR.parameters()), {}, "LBFGS evaluates the loss several times per update"),
        (LINEAR, sgd(LINEAR), {"clip_norm": 0.0}, "clip_norm must be above 0, got 0.0"),
    ],
    ids=["elsewhere", "lazy", "closure", "clip"],
)
def test_a_step_is_checked_when_it_is_made(
    model: Any, optimizer: Any, options: Any, message: str
) -> None:  # Any: wrong
    with pytest.raises(ValueError, match=message):
        fanwise.here().step(model, optimizer, lambda m, x: m(x), **options)


def test_what_is_no_model_or_optimizer_is_refused() -> None:
    run = fanwise.here()
    with pytest.raises(TypeError, match=r"the model must be a torch\.nn\.Module, got function"):
        run.step(lambda x: x, sgd(LINEAR), lambda m, x: m(x))  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, got list"):
        run.step(LINEAR, [], lambda m, x: m(x))  # type: ignore[call-overload]  # wrong on purpose


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (3.0, TypeError, "loss_fn returned a float. It must be a tensor of losses"),
        (
            torch.zeros(3, requires_grad=True),
            ValueError,
            r"loss_fn returned a tensor of shape \(3,\) for 4 samples",
        ),
        ((torch.zeros(4, requires_grad=True), -1), ValueError, "with counts -1; counts must be numbers of at least 0"),
        (
            (torch.zeros(4, requires_grad=True).mean(), torch.zeros(4, 3, requires_grad=True)),
            (TypeError, ValueError),
            r"float32 of shape \(4, 3\) with a gradient(.|\n)*\n  wrong:  return loss, logits(.|\n)*\n  right: ",
        ),
        (
            (torch.zeros(4, requires_grad=True), torch.zeros(4, 3)),
            (TypeError, ValueError),
            r"losses of shape \(4,\) and torch.float32 of shape \(4, 3\)\.(.|\n)*\n  wrong:  return loss, logits",
        ),
        ({"loss": torch.zeros(4, requires_grad=True)}, (TypeError, ValueError), "returned a dict"),
    ],
    ids=["float", "rows", "counts", "logits", "detached", "dict"],
)
def test_what_is_no_loss_is_refused(result: Any, error: Any, message: str) -> None:  # Any: wrong on purpose
    step = fanwise.here(shards=1).step(LINEAR, sgd(LINEAR), lambda m, x: result)
    with pytest.raises(error, match=message):
        step(torch.rand(4, 2))


def test_only_what_has_a_state_is_kept_and_once() -> None:
    run = fanwise.here()
    with pytest.raises(TypeError, match=r"run.keep\(ema=...\): a int has no state_dict"):
        run.keep(ema=3)  # type: ignore[arg-type]  # wrong on purpose
    run.keep(ema=LINEAR)
    with pytest.raises(ValueError, match=r"run.keep\(ema=...\): another object has this name"):
        run.keep(ema=LINEAR)


def test_a_negative_number_of_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="the number of epochs must be at least 0, got -1"):
        next(fanwise.here().epochs(-1))

"""Train with `capture=True` on the simulated accelerator of stand_in.py, and print the results as JSON.

A captured operation is recorded instead of executed. A replay executes the recorded operations without running Python
code of the model. Branches are replayed in reverse order, so that a branch that needs another one gives other bits.
"""

import functools
import importlib
import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import stand_in
import torch
from stand_in import B, Far, X, Y, cpu_tensor, in_this_process, network, plain, same, to_device
from torch import Tensor, nn
from torch.utils import _pytree as trees
from trainings import capturable_adamw, losses, sgd

from fanwise.parallel import LossScale, Run
from fanwise.parallel.rng import isolated_generators, seed_generators
from fanwise.parallel.step import cuda_graph
from fanwise.tensor.random.keys import Key

T = TypeVar("T")
_ATEN = torch.ops.aten
_execute = stand_in.execute


@dataclass
class FarGraph:
    """Replaces `CudaGraph` on the simulated accelerator."""

    device: torch.device
    branches: int
    replays: int = 0
    operations: list[tuple[int | None, Any, Any, Any, Any]] = field(default_factory=list)
    current: int | None = None
    keys: dict[int, Key] = field(default_factory=dict)
    written: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def capture(self, body: Callable[[], T]) -> T:
        graphs.append(self)
        recording.append(self)
        try:
            return body()
        finally:
            recording.clear()
            for tensor, before in self.written.values():  # nothing was executed
                tensor.copy_(before)
            self.written.clear()

    @contextmanager
    def branch(self, number: int) -> Iterator[None]:
        self.current = number
        try:
            yield
        finally:
            self.current = None

    def join(self) -> None:
        assert self.current is None

    def seed(self, number: int, key: Key) -> None:
        self.keys[number] = key

    def replay(self) -> None:
        self.replays += 1
        with isolated_generators():
            for branch in reversed(range(self.branches)):
                seed_generators(self.keys[branch])
                self._replay(branch)
            self._replay(None)

    def _replay(self, branch: int | None) -> None:
        for _, func, args, kwargs, result in (operation for operation in self.operations if operation[0] == branch):
            new = func(*args, **kwargs)
            operands = {x.untyped_storage().data_ptr() for x in trees.tree_leaves((args, kwargs)) if is_tensor(x)}
            for old, value in zip(trees.tree_leaves(result), trees.tree_leaves(new), strict=True):
                if is_tensor(old) and old.untyped_storage().data_ptr() not in operands:
                    old.copy_(value)

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in (_ATEN._local_scalar_dense.default, _ATEN.equal.default, _ATEN.nonzero.default):
            raise RuntimeError("operation not permitted when stream is capturing")
        if func is _ATEN._to_copy.default and torch.device(kwargs.get("device", "far")).type == "cpu":
            raise RuntimeError("operation not permitted when stream is capturing")
        bare_args, bare_kwargs = trees.tree_map(cpu_tensor, (args, kwargs))
        if "device" in kwargs:
            bare_kwargs["device"] = torch.device("cpu")
        if func is _ATEN._to_copy.default:
            bare_kwargs.pop("non_blocking", None)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for leaf in trees.tree_leaves(value):
                    tensor = cpu_tensor(leaf)
                    self.written.setdefault(id(tensor), (tensor, tensor.clone()))
        result = _execute(func, args, kwargs)
        self.operations.append((self.current, func, bare_args, bare_kwargs, trees.tree_map(cpu_tensor, result)))
        return result


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


graphs: list[FarGraph] = []
recording: list[FarGraph] = []


def record_or_execute(func: Any, args: Any, kwargs: Any) -> Any:
    return recording[0].record(func, args, kwargs) if recording else _execute(func, args, kwargs)


def register() -> None:
    """Capture steps on the simulated accelerator in this process."""
    stand_in.register()
    stand_in.execute = record_or_execute
    autocast = stand_in._library.Library("_", "IMPL", "AutocastPrivateUse1")
    autocast.fallback(torch.library.fallthrough_kernel)
    stand_in._libraries.append(autocast)
    cuda_graph.GRAPHS["far"] = FarGraph


def large(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 1000 * losses(model, x, y)


Make = Callable[[], nn.Module]
Optimizer = Callable[[Any], torch.optim.Optimizer]


def adamw_with_a_tensor_as_rate(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, Far(torch.tensor(0.01)), capturable=True)


def weighted(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Losses with counts that only the device knows."""
    return losses(model, x, y) * (y + 1), y + 1


def train(
    make: Make,
    optimizer: Optimizer,
    options: dict[str, Any],
    run: Run,
    *,
    loss_fn: Callable[..., Any] = losses,
    is_resident: bool = False,
    schedule: Literal["none", "epochs", "batches"] = "none",
    scale: float | None = None,
) -> dict[str, Any]:
    model = to_device(make(), run)
    own_optimizer = optimizer(model.parameters())
    if scale is not None:  # gradients of some batches are not finite
        loss_scale = LossScale()
        loss_scale.load_state_dict(loss_scale.state_dict() | {"scale": scale, "growth_interval": 2})
        options = {**options, "loss_scale": loss_scale}
    step = run.step(model, own_optimizer, loss_fn, **options)
    halving = torch.optim.lr_scheduler.StepLR(own_optimizer, 2, 0.5) if schedule == "epochs" else None
    decay = torch.optim.lr_scheduler.ExponentialLR(own_optimizer, 0.9) if schedule == "batches" else None
    data: Any = (Far(X), Far(Y)) if is_resident else (X, Y)
    mean_losses, norms = [], []
    for _ in run.epochs(3):
        for batch in run.batches(data, B):
            mean_losses.append(step(batch))
            if options.get("clip_norm"):
                norms.append(step.grad_norm)
            if decay is not None:
                decay.step()
        if halving is not None:
            halving.step()
    state = [value for values in own_optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
    tensors = [*model.parameters(), *model.buffers(), *mean_losses, *norms, *state]
    counts = [step.batches, step.updates, step.executions]
    return {"values": [cpu_tensor(tensor.detach()) for tensor in tensors], "accuracy": counts}


def random_branch(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses(model, x, y) * (1 + int(random.random() < 0.5))


def waits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    values = losses(model, x, y)
    return values if values.sum().item() > 0 else values.neg()


def counts_calls(model: nn.Module, x: Tensor, y: Tensor, calls: list[int]) -> Tensor:
    """Behaves differently after the step was captured."""
    calls[0] += 1
    return losses(model, x, y) * (1 if calls[0] < 24 else 2)


class Warnings(logging.Handler):
    """Counts warnings of too many kinds of steps."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += "combinations of batch shapes" in record.getMessage()


def error_of(training: Callable[[Run], Any]) -> str:
    try:
        in_this_process(training)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


CASES: dict[str, tuple[Make, Optimizer, dict[str, Any], dict[str, Any]]] = {
    "batch norm and dropout, AdamW": (network, capturable_adamw, {}, {}),
    "batch norm and dropout, SGD": (network, sgd, {}, {}),
    "clipped": (network, capturable_adamw, {"clip_norm": 0.1}, {}),
    "counts on the device": (plain, sgd, {}, {"loss_fn": weighted}),
    "data on the device": (network, capturable_adamw, {}, {"is_resident": True}),
    "learning rate schedule": (plain, sgd, {}, {"schedule": "epochs"}),
    "a new rate for each batch": (plain, sgd, {}, {"schedule": "batches"}),
    "a new rate for each batch, as a tensor": (plain, adamw_with_a_tensor_as_rate, {}, {"schedule": "batches"}),
    "scaled losses": (plain, sgd, {"autocast": torch.float16}, {"loss_fn": large, "scale": 2.0**127}),
}


def main() -> None:
    register()
    warnings = Warnings()
    logging.getLogger(cuda_graph.__name__).addHandler(warnings)
    equal, counts, replays = {}, {}, {}
    for name, (make, optimizer, options, more) in CASES.items():
        expected = in_this_process(functools.partial(train, make, optimizer, options, **more))
        graphs.clear()
        captured = in_this_process(functools.partial(train, make, optimizer, {**options, "capture": True}, **more))
        equal[name] = same(captured, expected)
        counts[name] = captured["accuracy"]
        replays[name] = [graph.replays for graph in graphs]
    wrong: dict[str, tuple[Optimizer, dict[str, Any], Callable[..., Any]]] = {
        "waits": (sgd, {}, waits),
        "random branch": (sgd, {}, random_branch),
        "counter": (sgd, {}, functools.partial(counts_calls, calls=[0])),
        "not capturable": (torch.optim.AdamW, {}, losses),
    }
    errors = {
        name: error_of(functools.partial(train, plain, optimizer, {**options, "capture": True}, loss_fn=loss_fn))
        for name, (optimizer, options, loss_fn) in wrong.items()
    }
    report = {"equal": equal, "counts": counts, "replays": replays, "warnings": warnings.number, "errors": errors}
    print(json.dumps(report))


if __name__ == "__main__":
    importlib.import_module("captured").main()

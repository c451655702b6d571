"""Train on a simulated accelerator, and print the results as JSON.

The accelerator is a backend of torch in Python that keeps its data in CPU tensors, so it gives the bits of the CPU. As
on a GPU, an operator with tensors of both devices fails. Operations that would wait for a GPU are counted. A backend
cannot be unregistered, so the tests run this file in a process of its own.
"""

import functools
import importlib
import json
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from torch.utils.data import Dataset
from trainings import is_correct, losses

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.comm.torch_team import TorchTeam
from fanwise.parallel.config import Plan
from fanwise.parallel.data.dataset import Data
from fanwise.parallel.data.position import DataPosition
from fanwise.parallel.process_settings import run_environment

_ATEN = torch.ops.aten
_library: Any = torch.library  # Any: torch has not annotated it
# N: samples, B: samples of a global batch
N, B, SHARDS = 26, 8, 4
X = torch.randn(N, 1, 6, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2))

waits: Counter[str] = Counter()
moves: Counter[str] = Counter()
late: list[tuple[Tensor, Tensor]] = []
on_side_streams: Counter[str] = Counter()  # operations on other streams than the current one
_libraries: list[Any] = []  # Any: not annotated by torch. Operators are registered as long as these objects exist


@dataclass
class Current:
    """The copies of the current stream, or None for the default stream."""

    copies: list[tuple[Tensor, Tensor]] | None = None


_current = Current()


class Far(Tensor):
    """A tensor on the device "far:0"."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> "Far":
        tensor: Far = Tensor._make_wrapper_subclass(
            cls,
            on_cpu.shape,
            strides=on_cpu.stride(),
            storage_offset=int(on_cpu.storage_offset()),
            dtype=on_cpu.dtype,
            device=torch.device("far:0"),
        )
        tensor.on_cpu = on_cpu
        return tensor

    def data_ptr(self) -> int:
        return self.on_cpu.data_ptr()

    def record_stream(self, s: Any) -> None:  # Any: a FarStream
        on_side_streams["kept for a stream"] += 1

    # The stub of torch has another signature than its documentation.
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch's
        return execute(func, args, kwargs or {})


def execute(func: Any, args: Any, kwargs: Any) -> Any:
    """Execute an operator on tensors of the device."""
    if func is _ATEN.copy_.default:
        return copy(*args)
    if func is _ATEN._to_copy.default and torch.device(kwargs.get("device", "far")).type == "cpu":
        waits["a copy to the CPU"] += 1
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking")}
        return func(args[0].on_cpu, **kwargs).clone()
    leaves = [x for x in trees.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    far = {id(x.on_cpu): x for x in leaves if isinstance(x, Far)}
    # As on a GPU, a scalar on the CPU may be an operand.
    assert not [x for x in leaves if not isinstance(x, Far) and x.ndim], f"{func} got tensors of both devices"
    if func in (_ATEN._local_scalar_dense.default, _ATEN.equal.default):
        waits[str(func)] += 1
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    bare_args, bare_kwargs = trees.tree_map(cpu_tensor, (args, kwargs))
    result = func(*bare_args, **bare_kwargs)
    return trees.tree_map(lambda x: to_far(x, far), result)


def to_far(x: Any, known: dict[int, Far]) -> Any:  # Any: a leaf of a tree
    """Return a result as a tensor of the device. A tensor that the operator has changed in place stays the same."""
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else Far(x)


def copy(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between devices. A non-blocking copy to the CPU has its values only after the stream is waited for."""
    if isinstance(to, Far) != isinstance(source, Far):
        moves["to the device" if isinstance(to, Far) else "to the CPU"] += 1
        waits["a copy"] += not non_blocking
    if isinstance(source, Far) and not isinstance(to, Far) and non_blocking:
        late.append((to, source.on_cpu.clone()))
    elif isinstance(to, Far) and not isinstance(source, Far) and _current.copies is not None:
        on_side_streams["to the device"] += 1
        cpu_tensor(to).fill_(99)  # until a stream has waited for it
        _current.copies.append((to.on_cpu, source.clone()))
    else:
        cpu_tensor(to).copy_(cpu_tensor(source))
    return to


class FarStream:
    """A stream. A copy to the device on a side stream has its values only after another stream has waited for it."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.copies: list[tuple[Tensor, Tensor]] = []

    def record_event(self) -> list[tuple[Tensor, Tensor]]:
        copies, self.copies = self.copies, []
        return copies

    def wait_event(self, event: list[tuple[Tensor, Tensor]]) -> None:
        on_side_streams["waited for by a stream"] += 1
        for to, source in event:
            to.copy_(source)

    def synchronize(self) -> None:
        waits["the stream"] += 1
        while late:
            to, source = late.pop(0)
            to.copy_(source)


class Module(_DummyBackendModule):
    """The counterpart of torch.cuda for this kind of device."""

    Stream = FarStream

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16]

    def current_stream(self, device: torch.device) -> FarStream:
        return FarStream()

    @contextmanager
    def stream(self, stream: FarStream) -> Iterator[None]:
        _current.copies = stream.copies
        try:
            yield
        finally:
            _current.copies = None


def empty(size: Sequence[int], **settings: Any) -> Tensor:  # Any: as torch's
    return Far(torch.empty(size, dtype=settings["dtype"]))


def empty_strided(size: Sequence[int], stride: Sequence[int], **settings: Any) -> Tensor:  # Any: as torch's
    return Far(torch.empty_strided(size, stride, dtype=settings["dtype"]))


def cpu_tensor(x: Any) -> Any:  # Any: a leaf of a tree
    return x.on_cpu if isinstance(x, Far) else x


def register() -> None:
    """Register the device in this process."""
    if torch._C._get_privateuse1_backend_name() != "far":
        _setup_privateuseone_for_python_backend("far", Module())
        _libraries.append(_library.Library("aten", "IMPL"))
        _libraries[0].impl("empty.memory_format", empty, "PrivateUse1")
        _libraries[0].impl("empty_strided", empty_strided, "PrivateUse1")


# -- trainings ---------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    conv = nn.Conv2d(1, 4, 3)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3))


def plain() -> nn.Module:
    """Return a model without buffers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def to_device(model: nn.Module, run: Run) -> nn.Module:
    """Like `model.to(run.device)`, which cannot create tensor subclasses."""
    if run.device.type == "far":
        for module in model.modules():
            for name, param in module._parameters.items():
                module._parameters[name] = None if param is None else nn.Parameter(Far(param.detach().clone()))
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else Far(buffer.clone())
    return model


class StepInLoop:
    """A manual step in the form of a step function."""

    def __init__(self, run: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.step = model, run.step(model, optimizer)

    @property
    def batches(self) -> int:
        return self.step.batches

    def __call__(self, batch: Any) -> Tensor:  # Any: a Batch
        for x, y in self.step.shards(batch):
            self.step.backward(losses(self.model, x, y))
        nn.utils.clip_grad_value_(self.model.parameters(), 0.01)
        self.step.update()
        return self.step.loss


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """The same data, sample by sample."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


def train(
    make: Callable[[], nn.Module],
    options: dict[str, Any],  # Any: of run.step, or by_hand
    run: Run,
    *,
    is_resident: bool = False,
    workers: int = 0,
    before: Callable[[Run, int], None] = lambda run, number: None,
) -> dict[str, Any]:
    """Train for two epochs. Return tensors in main memory, and the counted operations of each step."""
    if run.device.type != "cpu":
        register()
    model = to_device(make(), run)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    by_hand = options.get("by_hand", False)
    step = StepInLoop(run, model, optimizer) if by_hand else run.step(model, optimizer, losses, **options)
    data: Data = (Far(X), Far(Y)) if is_resident else (X, Y)
    if workers:
        data = Rows()
    mean_losses, counts = [], []
    for _ in run.epochs(2):
        for batch in run.batches(data, B, num_workers=workers):
            before(run, step.batches)
            waits.clear()
            moves.clear()
            mean_losses.append(step(batch))
            counts.append({**waits, **moves})
    accuracy = run.mean(is_correct, model, data)
    tensors = [*model.parameters(), *model.buffers(), *mean_losses]
    assert all(tensor.device == run.device for tensor in tensors)
    assert len(optimizer.state) == len(list(model.parameters())) or run.device.type == "cpu"
    return {"values": [cpu_tensor(tensor.detach()) for tensor in tensors], "accuracy": accuracy, "counts": counts}


def in_this_process(training: Callable[[Run], Any], shards: int = SHARDS, resume: Path | None = None) -> Any:
    register()
    run = Run(Plan(shards, 1, DataPosition(0)), torch.device("far:0"))
    with run_environment(1, run.device):
        torch.manual_seed(0)
        if resume is not None:
            run.restore(resume)
        return training(run)


class OneProcess:
    """A process group of one process, which pickles contents as if there were others."""

    index, size, num_fast = 0, 1, 0
    is_broken = has_stepped = False

    def gather(self, content: Any, within_s: float | None = None) -> list[Any]:  # Any: as TorchGroup
        return [pickle.loads(pickle.dumps(content))]

    def all_to_all(
        self, send: Tensor, receive: Tensor, send_bytes: Sequence[int], receive_bytes: Sequence[int]
    ) -> None:
        receive.copy_(send)

    def all_gather(self, memory: Tensor) -> None: ...

    def start_all_reduce(self, tensor: Tensor) -> None: ...

    def finish_all_reduce(self) -> None: ...


def in_group(training: Callable[[Run], Any], reduce: str = "exact", shards: int = SHARDS) -> Any:  # Any: its result
    """Run with a process group of one process."""
    group: Any = OneProcess()  # Any: instead of TorchGroup
    device = torch.device("far:0")
    run = Run(Plan(shards, 1, DataPosition(0)), device, team=TorchTeam(group, device, reduce))
    with run_environment(1, device):
        torch.manual_seed(0)
        return training(run)


class Stop(Exception):
    """Ends the first training."""


def save_and_stop(path: Path, run: Run, number: int) -> None:
    """Save a checkpoint after the third batch, and stop."""
    if number == 3:
        run.save(path)
        raise Stop


def train_in_two_runs(folder: Path) -> Any:  # Any: as `train` returns
    path = folder / "run.pt"
    training = functools.partial(train, network, {})
    try:
        in_this_process(functools.partial(training, before=functools.partial(save_and_stop, path)))
    except Stop:
        return in_this_process(training, resume=path)
    raise AssertionError("the first training did not end")


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {  # Any: options of run.step
    "batch norm": (network, {}),
    "by hand": (network, {"by_hand": True}),
    "clipped": (network, {"clip_norm": 0.1}),
    "plain": (plain, {}),
}


def same(result: dict[str, Any], expected: dict[str, Any], num_values: int | None = None) -> bool:
    """Compare the bits of the first `num_values` tensors, or of all."""
    pairs = zip(result["values"][:num_values], expected["values"][:num_values], strict=True)
    return all(torch.equal(*pair) for pair in pairs) and bool(result["accuracy"] == expected["accuracy"])


def main() -> None:
    register()  # before the first backward pass, at which torch counts devices
    equal: dict[str, bool] = {}
    counts: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(dir="."))
    for name, (make, options) in CASES.items():
        training = functools.partial(train, make, options)
        expected = fanwise.run(training, devices=["cpu"], shards=SHARDS)
        local = in_this_process(training)
        equal[f"{name}, here"], counts[name] = same(local, expected), local["counts"]
        equal[f"{name}, in a group"] = same(in_group(training), expected)
    in_group(functools.partial(train, network, {}), "fast")
    with_global_norm = functools.partial(train, network, {"batch_norm": "global"})
    expected = fanwise.run(with_global_norm, devices=["cpu"], shards=1)
    equal["global batch norm, in a group"] = same(in_group(with_global_norm, shards=1), expected)
    expected = fanwise.run(functools.partial(train, network, {}), devices=["cpu"], shards=SHARDS)
    equal["resumed"] = same(train_in_two_runs(folder), expected, num_values=len(network().state_dict()))
    resident = in_this_process(functools.partial(train, plain, {}, is_resident=True), shards=1)
    expected = fanwise.run(functools.partial(train, plain, {}), devices=["cpu"], shards=1)
    equal["resident"], counts["resident"] = same(resident, expected), resident["counts"]
    on_side_streams.clear()
    equal["workers"] = same(in_this_process(functools.partial(train, plain, {}, workers=2), shards=1), expected)
    print(json.dumps({"equal": equal, "counts": counts, "on_side_streams": on_side_streams}))


if __name__ == "__main__":
    # Imported by name, so that workers can unpickle its classes.
    importlib.import_module("stand_in").main()

"""A program: runs on an accelerator that does not exist, and what came of them, as JSON.

torch lets Python stand for an accelerator. Here it keeps its data in CPU tensors, so it gives the bits of the CPU; an
operator that gets tensors of it and of the CPU fails, as on a GPU; what would wait for a GPU is counted. The
registration holds for a whole process, so the tests run this file in one of its own.
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
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as trees
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from torch.utils.data import Dataset

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
aside: Counter[str] = Counter()  # on other streams than the current one
_libraries: list[Any] = []  # Any: what is registered, as long as it is held


@dataclass
class Current:
    """Copies of the stream that operators are queued on; None: the first one."""

    aside: list[tuple[Tensor, Tensor]] | None = None


_current = Current()


class Far(Tensor):
    """A tensor on the device "far:0"."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Far":
        made: Far = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=int(held.storage_offset()),
            dtype=held.dtype,
            device=torch.device("far:0"),
        )
        made.held = held
        return made

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def record_stream(self, s: Any) -> None:  # Any: a FarStream
        aside["kept for a stream"] += 1

    # The stub of torch has another signature than its documentation.
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch's
        return done(func, args, kwargs or {})


def done(func: Any, args: Any, kwargs: Any) -> Any:
    """One operator on tensors of the device."""
    if func is _ATEN.copy_.default:
        return copied(*args)
    if func is _ATEN._to_copy.default and torch.device(kwargs.get("device", "far")).type == "cpu":
        waits["a copy to the CPU"] += 1
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking")}
        return func(args[0].held, **kwargs).clone()
    leaves = [x for x in trees.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    far = {id(x.held): x for x in leaves if isinstance(x, Far)}
    # As on a GPU, one number of the CPU may be an operand.
    assert not [x for x in leaves if not isinstance(x, Far) and x.ndim], f"{func} got tensors of both devices"
    if func in (_ATEN._local_scalar_dense.default, _ATEN.equal.default):
        waits[str(func)] += 1
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    bare_args, bare_kwargs = trees.tree_map(held_of, (args, kwargs))
    result = func(*bare_args, **bare_kwargs)
    return trees.tree_map(lambda x: far_of(x, far), result)


def far_of(x: Any, known: dict[int, Far]) -> Any:  # Any: of a tree
    """A result on the device; what an operator has written into is what it was."""
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else Far(x)


def copied(to: Tensor, of: Tensor, non_blocking: bool = False) -> Tensor:
    """A copy to the CPU that does not wait comes late: when somebody waits for the stream."""
    if isinstance(to, Far) != isinstance(of, Far):
        moves["to the device" if isinstance(to, Far) else "to the CPU"] += 1
        waits["a copy"] += not non_blocking
    if isinstance(of, Far) and not isinstance(to, Far) and non_blocking:
        late.append((to, of.held.clone()))
    elif isinstance(to, Far) and not isinstance(of, Far) and _current.aside is not None:
        aside["to the device"] += 1
        held_of(to).fill_(99)  # until a stream has waited for it
        _current.aside.append((to.held, of.clone()))
    else:
        held_of(to).copy_(held_of(of))
    return to


class FarStream:
    """Of the device; see `copied`. What is copied to the device on one that is not the current one comes late, too."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.under_way: list[tuple[Tensor, Tensor]] = []

    def record_event(self) -> list[tuple[Tensor, Tensor]]:
        done, self.under_way = self.under_way, []
        return done

    def wait_event(self, event: list[tuple[Tensor, Tensor]]) -> None:
        aside["waited for by a stream"] += 1
        for to, of in event:
            to.copy_(of)

    def synchronize(self) -> None:
        waits["the stream"] += 1
        while late:
            to, of = late.pop(0)
            to.copy_(of)


class Module(_DummyBackendModule):
    """What torch has for a kind of device, as torch.cuda."""

    Stream = FarStream

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16]

    def current_stream(self, device: torch.device) -> FarStream:
        return FarStream()

    @contextmanager
    def stream(self, stream: FarStream) -> Iterator[None]:
        _current.aside = stream.under_way
        try:
            yield
        finally:
            _current.aside = None


def empty(size: Sequence[int], **settings: Any) -> Tensor:  # Any: as torch's
    return Far(torch.empty(size, dtype=settings["dtype"]))


def empty_strided(size: Sequence[int], stride: Sequence[int], **settings: Any) -> Tensor:  # Any: as torch's
    return Far(torch.empty_strided(size, stride, dtype=settings["dtype"]))


def held_of(x: Any) -> Any:  # Any: of a tree
    return x.held if isinstance(x, Far) else x


def register() -> None:
    """The device exists in this process."""
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
    """Nothing in it is a buffer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def onto(model: nn.Module, run: Run) -> nn.Module:
    """As `model.to(run.device)`, which cannot make subclasses."""
    if run.device.type == "far":
        for module in model.modules():
            for name, param in module._parameters.items():
                module._parameters[name] = None if param is None else nn.Parameter(Far(param.detach().clone()))
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else Far(buffer.clone())
    return model


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = model(x).argmax(1) == y
    return found


class ByHand:
    """A step with a loop of its own."""

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
    """The same, sample by sample."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


def train(
    make: Callable[[], nn.Module],
    options: dict[str, Any],  # Any: of run.step; or by_hand
    run: Run,
    *,
    is_resident: bool = False,
    workers: int = 0,
    before: Callable[[Run, int], None] = lambda run, turn: None,
) -> dict[str, Any]:
    """Trains for two epochs. All that comes of it is in main memory; waits are those of each step."""
    if run.device.type != "cpu":
        register()
    model = onto(make(), run)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    by_hand = options.get("by_hand", False)
    step = ByHand(run, model, optimizer) if by_hand else run.step(model, optimizer, losses, **options)
    data: Data = (Far(X), Far(Y)) if is_resident else (X, Y)
    if workers:
        data = Rows()
    seen, each = [], []
    for _ in run.epochs(2):
        for batch in run.batches(data, B, num_workers=workers):
            before(run, step.batches)
            waits.clear()
            moves.clear()
            seen.append(step(batch))
            each.append({**waits, **moves})
    accuracy = run.mean(right, model, data)
    found = [*model.parameters(), *model.buffers(), *seen]
    assert all(each.device == run.device for each in found)
    assert len(optimizer.state) == len(list(model.parameters())) or run.device.type == "cpu"
    return {"values": [held_of(each.detach()) for each in found], "accuracy": accuracy, "each": each}


def in_this_process(training: Callable[[Run], Any], shards: int = SHARDS, resume: Path | None = None) -> Any:
    register()
    made = Run(Plan(shards, 1, DataPosition(0)), torch.device("far:0"))
    with run_environment(1, made.device):
        torch.manual_seed(0)
        if resume is not None:
            made.restore(resume)
        return training(made)


class OneProcess:
    """The process group of a run with one process. Its contents are pickled, as they are for others."""

    index, size, num_fast = 0, 1, 0
    is_broken = has_stepped = False

    def gather(self, content: Any, within_s: float | None = None) -> list[Any]:  # Any: as TorchGroup
        return [pickle.loads(pickle.dumps(content))]

    def all_to_all(
        self, send: Tensor, receive: Tensor, send_bytes: Sequence[int], receive_bytes: Sequence[int]
    ) -> None:
        receive.copy_(send)

    def all_gather(self, memory: Tensor) -> None:
        """There is one part."""

    def start_all_reduce(self, tensor: Tensor) -> None:
        """There is one operand."""

    def finish_all_reduce(self) -> None: ...


def in_group(training: Callable[[Run], Any], reduce: str = "exact", shards: int = SHARDS) -> Any:  # Any: its result
    """Run with a process group of one process."""
    group: Any = OneProcess()  # Any: in the place of TorchGroup
    device = torch.device("far:0")
    made = Run(Plan(shards, 1, DataPosition(0)), device, team=TorchTeam(group, device, reduce))
    with run_environment(1, device):
        torch.manual_seed(0)
        return training(made)


class Stop(Exception):
    """Where a first training ends."""


def saved(path: Path, run: Run, turn: int) -> None:
    """Ends after the checkpoint of the third batch."""
    if turn == 3:
        run.save(path)
        raise Stop


def resumed(folder: Path) -> Any:  # Any: what `train` returns
    path = folder / "run.pt"
    training = functools.partial(train, network, {})
    try:
        in_this_process(functools.partial(training, before=functools.partial(saved, path)))
    except Stop:
        return in_this_process(training, resume=path)
    raise AssertionError("the first training did not end")


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {  # Any: options of run.step
    "batch norm": (network, {}),
    "by hand": (network, {"by_hand": True}),
    "clipped": (network, {"clip_norm": 0.1}),
    "plain": (plain, {}),
}


def same(found: dict[str, Any], expected: dict[str, Any], of_first: int = 0) -> bool:
    pairs: Sequence[tuple[Tensor, Tensor]] = list(zip(found["values"], expected["values"], strict=not of_first))
    pairs = pairs[:of_first] if of_first else pairs
    return all(torch.equal(one, other) for one, other in pairs) and found["accuracy"] == expected["accuracy"]


def main() -> None:
    register()  # before the first backward pass, at which torch counts devices
    equal: dict[str, bool] = {}
    each: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(dir="."))
    for name, (make, options) in CASES.items():
        training = functools.partial(train, make, options)
        expected = fanwise.run(training, devices=["cpu"], shards=SHARDS)
        local = in_this_process(training)
        equal[f"{name}, here"], each[name] = same(local, expected), local["each"]
        equal[f"{name}, in a group"] = same(in_group(training), expected)
    in_group(functools.partial(train, network, {}), "fast")
    together = functools.partial(train, network, {"batch_norm": "global"})
    expected = fanwise.run(together, devices=["cpu"], shards=1)
    equal["global batch norm, in a group"] = same(in_group(together, shards=1), expected)
    expected = fanwise.run(functools.partial(train, network, {}), devices=["cpu"], shards=SHARDS)
    equal["resumed"] = same(resumed(folder), expected, of_first=len(network().state_dict()))
    resident = in_this_process(functools.partial(train, plain, {}, is_resident=True), shards=1)
    expected = fanwise.run(functools.partial(train, plain, {}), devices=["cpu"], shards=1)
    equal["resident"], each["resident"] = same(resident, expected), resident["each"]
    aside.clear()
    equal["workers"] = same(in_this_process(functools.partial(train, plain, {}, workers=2), shards=1), expected)
    print(json.dumps({"equal": equal, "each": each, "aside": aside}))


if __name__ == "__main__":
    # By its name, so that workers import what is in it, too.
    importlib.import_module("stand_in").main()

"""What processes on played hosts do: trainings, in which some of them are killed at a point, or raise."""

import hashlib
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.hosts.mesh import Mesh
from fanwise.testing.networks import PlayedHost

# N: samples, B: samples of a global batch
N, B, EPOCHS, SHARDS = 53, 16, 2, 8
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 1, 6, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)
HIDDEN = 8


class Net(nn.Module):
    """Dropout, batch normalisation, a frozen weight, one that few shards reach, and one of another type."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.middle, self.last = nn.Linear(64, hidden), nn.Linear(hidden, 3)
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.rare = nn.Parameter(torch.zeros(3))
        self.precise = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.relu(self.norm(self.conv(x))), 0.3, self.training)
        out: Tensor = self.last(self.middle(hidden.flatten(1))) * self.precise.float() * self.frozen.sum()
        return out + self.rare if x.sum() > 0 else out


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = model(x).argmax(1) == y
    return found


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def training(run: Run, hidden: int = HIDDEN, **options: Any) -> tuple[str, float, int]:  # Any: of a step
    """The bits of parameters and losses, an accuracy, and how many processes are left."""
    model = Net(hidden)
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), losses, **options)
    seen = [step(batch) for _ in run.epochs(EPOCHS) for batch in run.batches((X, Y), B)]
    accuracy = run.mean(correct, model, (X, Y), batch_size=7)
    return digest([*model.state_dict().values(), *seen]), accuracy, len(run.gather(None))


def by_hand(run: Run) -> tuple[str, float, int]:
    model, seen = Net(HIDDEN), []
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01))
    for _ in run.epochs(EPOCHS):
        for batch in run.batches((X, Y), B):
            for x, y in step.shards(batch):
                step.backward(losses(model, x, y))
            step.update()
            seen.append(step.loss)
    accuracy = run.mean(correct, model, (X, Y), batch_size=7)
    return digest([*model.state_dict().values(), *seen]), accuracy, len(run.gather(None))


def raises(run: Run) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if run.rank == run.world_size - 1:
            raise KeyError("poison")
        return losses(model, x, y)

    model = Net(HIDDEN)
    run.step(model, torch.optim.AdamW(model.parameters()), loss)((X, Y))


def goes_another_way(run: Run) -> None:
    if run.rank:
        run.mean(correct, Net(HIDDEN), (X, Y))


TRAININGS: dict[str, Callable[[Run], Any]] = {  # Any: as `training` returns
    "small": training,
    "large": partial(training, hidden=4096),
    "clipped": partial(training, clip_norm=0.5),
    "accumulated": partial(training, accumulate=2),
    "by hand": by_hand,
    "raises": raises,
    "another way": goes_another_way,
}


def do(what: dict[str, Any]) -> Any:  # Any: plain values; as the program returns
    """Runs of these trainings, by name; of one that fails, what it raises."""
    for kill in what.get("kills", []):
        if os.environ.get("RANK") in kill["ranks"]:
            _end_at(kill["at"], kill["call"], kill.get("signal", signal.SIGKILL))
    if "cut_at" in what and os.environ.get("RANK") == "0":
        _at("loss", what["cut_at"], PlayedHost(os.environ["HOSTS_CABLE"], "").cut)
    options: dict[str, Any] = what.get("options", {})  # Any: of `fanwise.run`
    names = what["training"].split(",")
    return {name: fanwise.run(TRAININGS[name], shards=SHARDS, progress=False, **options) for name in names}


def _end_at(point: str, call: int, number: int) -> None:
    """Kill this process as a power cut does, or stop it, at a call of one of these."""
    _at(point, call, lambda: os.kill(os.getpid(), number))


def _at(point: str, call: int, do: Callable[[], None]) -> None:
    owner: Any = {"loss": nn.Conv2d, "exchange": Mesh, "sent": Mesh, "update": torch.optim.AdamW}[point]  # Any: classes
    name = {"loss": "forward", "exchange": "exchange", "sent": "_carry_out", "update": "step"}[point]
    before, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:  # Any: as the function
        nonlocal calls
        calls += 1
        if calls == call and point == "sent":
            before(*args, **kwargs)
        if calls == call:
            do()
        return before(*args, **kwargs)

    setattr(owner, name, counted)

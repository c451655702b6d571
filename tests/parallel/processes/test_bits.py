"""Runs in several processes give the same bits as on one device and execute each shard once, for many models."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from classification import losses
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.comm.shared_memory import AllReduceKind
from fanwise.parallel.step.tree import cut
from fanwise.pool import Pool

# N: samples, B: samples of a global batch
N, B, EPOCHS, SHARDS = 53, 16, 2, 8
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 1, 6, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)
# Batches of 16, 16 and 16 have 8 shards with samples, the last one of 5 has 5.
EXECUTIONS = EPOCHS * (8 + 8 + 8 + 5)


class Net(nn.Module):
    """Has layers whose results could depend on which process executes a shard, and parameters without gradients."""

    def __init__(self, layout: torch.memory_format) -> None:
        super().__init__()
        conv: Callable[[int, int], nn.Module] = functools.partial(nn.Conv2d, kernel_size=3)
        self.body = nn.Sequential(conv(1, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), conv(4, 4))
        self.head = nn.Linear(16, 3)
        self.frozen = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stub forgets this form

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.frozen(self.head(self.body(x).flatten(1)))
        return logits


def counted_losses(path: Path, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Write the process and the number of samples of this shard to the file."""
    line = f"{os.getpid()} {len(x)}\n".encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, line)
    os.close(fd)
    return losses(model, x, y)


def momentum(model: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)


def adamw(model: Net) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [  # Any: settings
        {"params": model.body.parameters(), "lr": 0.02},
        {"params": model.head.parameters(), "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([*groups, {"params": model.unused.parameters()}], 0.01)


def is_correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    correct: Tensor = model(x).argmax(1) == y
    return correct


def train(
    optimizer: Callable[[Net], torch.optim.Optimizer],
    path: Path,
    layout: torch.memory_format,
    options: dict[str, Any],  # Any: of run.step
    run: Run,
) -> tuple[dict[str, Tensor], list[Tensor], float, int]:
    model = Net(layout)
    step = run.step(model, optimizer(model), functools.partial(counted_losses, path), **options)
    mean_losses = [step(batch) for _ in run.epochs(EPOCHS) for batch in run.batches((X, Y), B)]
    accuracy = run.mean(is_correct, model, (X, Y), batch_size=7)
    return dict(model.state_dict()), mean_losses, accuracy, run.executions


def have_same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


CASES: dict[str, tuple[Callable[[Net], torch.optim.Optimizer], torch.memory_format, dict[str, Any]]] = {  # Any: options
    "momentum": (momentum, torch.contiguous_format, {}),
    "adamw, groups": (adamw, torch.contiguous_format, {}),
    "clipped": (momentum, torch.contiguous_format, {"clip_norm": 0.5}),
    "channels last, adamw, clipped": (adamw, torch.channels_last, {"clip_norm": 0.5}),
    "bfloat16": (adamw, torch.contiguous_format, {"autocast": torch.bfloat16}),
}


@pytest.mark.usefixtures("all_reduce")
@pytest.mark.parametrize(
    "device_counts",
    [[3], pytest.param([2, 5], marks=pytest.mark.soak)],
    ids=["three", "others"],
)
@pytest.mark.parametrize("case", CASES)
def test_bits_executions_and_accuracy_do_not_depend_on_the_processes(
    case: str, device_counts: list[int], pool: Pool, tmp_path: Path
) -> None:
    optimizer, layout, options = CASES[case]

    def run(name: str, **spread: Any) -> tuple[Any, set[str]]:  # Any: options of fanwise.run, and what train returns
        path = tmp_path / name
        training = functools.partial(train, optimizer, path, layout, options)
        result = fanwise.run(training, shards=SHARDS, pool=pool, **spread)
        lines = path.read_text().split("\n")[:-1]
        # The first shard is executed twice before the first step, as a check.
        assert len(lines) == EXECUTIONS + 2
        assert sum(int(line.split()[1]) for line in lines) == EPOCHS * N + 2 * len(cut(B, SHARDS)[0])
        return result, {line.split()[0] for line in lines}

    (params, mean_losses, accuracy, executions), _ = run("1", devices=1)
    assert executions == EXECUTIONS
    assert round(accuracy * N) / N == accuracy
    for devices in device_counts:
        result, pids = run(f"{devices}", devices=devices)
        assert len(pids) == devices and str(os.getpid()) not in pids
        assert have_same_bits(params, result[0]), f"{devices} devices"
        assert torch.equal(torch.stack(mean_losses), torch.stack(result[1]))
        assert result[2:] == (accuracy, executions)


class Stop(Exception):
    """Ends the first run."""


def train_until(stop_at: int | None, path: Path, run: Run) -> dict[str, Tensor]:
    """Save a checkpoint after `stop_at` batches and raise Stop. None: train to the end."""
    model = Net(torch.contiguous_format)
    updates = momentum(model)
    step = run.step(model, updates, losses)
    schedule = torch.optim.lr_scheduler.ExponentialLR(updates, 0.5)
    run.keep(schedule=schedule)
    for _ in run.epochs(3):
        for batch in run.batches((X, Y), B):
            step(batch)
            if step.batches == stop_at:
                run.save(path)
                raise Stop
        schedule.step()
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Tensor]:
    """The parameters after a training on one device."""
    return fanwise.run(functools.partial(train_until, None, Path(os.devnull)), shards=SHARDS)


@pytest.mark.usefixtures("all_reduce")
@pytest.mark.parametrize(
    ("first", "second"), [(1, 3), (3, 2), *(pytest.param(*pair, marks=pytest.mark.soak) for pair in ((2, 1), (2, 5)))]
)
def test_a_run_resumes_in_mid_epoch_on_other_processes(
    first: int, second: int, pool: Pool, uninterrupted: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(Stop):
        fanwise.run(functools.partial(train_until, 6, path), devices=first, shards=SHARDS, pool=pool)
    assert torch.load(path)["run"]["shards"] == SHARDS
    resumed = functools.partial(train_until, None, path)
    assert have_same_bits(uninterrupted, fanwise.run(resumed, devices=second, resume=path, pool=pool))


def modules_that_training_loads(run: Run) -> list[str]:
    before = set(sys.modules)
    train(momentum, Path(os.devnull), torch.contiguous_format, {}, run)
    return [name for name in sys.modules if name.startswith("fanwise") and name not in before]


def test_training_loads_no_more_modules_of_fanwise(pool: Pool) -> None:
    assert fanwise.run(modules_that_training_loads, devices=2, shards=SHARDS, pool=pool) == []


# -- parameters of several types and layouts that not all shards use --------------------------------------------------


class Branches(nn.Module):
    """Each sample takes one of four branches, so a shard uses only some of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(5, 4).double()
        # Their elements do not fill a range of memory. The second cannot be viewed as one dimension either.
        self.third = nn.Parameter(torch.randn(4, 10)[:, ::2])
        self.fourth = nn.Parameter(torch.randn(4, 10)[:, :5])
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Parameter(torch.arange(4), requires_grad=False)
        self.last = nn.Parameter(torch.randn(5, 4).t())

    def forward(self, x: Tensor, branch: int) -> Tensor:
        if branch == 0:
            outputs: Tensor = self.first(x)
        elif branch == 1:
            outputs = self.second(x.double()).float()
        elif branch == 2:
            outputs = self.first(x) + self.second(x.double()).float()
        else:
            outputs = x @ (self.third + self.fourth).t() + x @ self.last.t()
        return outputs + self.empty.sum() + self.frozen


def train_branches(run: Run) -> list[Tensor]:
    model = Branches()
    trained = [param for param in model.parameters() if param.requires_grad]

    def loss(model: nn.Module, x: Tensor, branches: Tensor) -> Tensor:
        return torch.stack([model(row, index).square().sum() for row, index in zip(x, branches.tolist(), strict=True)])

    step = run.step(model, torch.optim.SGD(trained, 0.01, momentum=0.9), loss)
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(2))
    # Whole batches, shards, or single samples take one branch.
    branches = torch.tensor(
        [0] * 10 + [2] * 10 + [3] * 10 + [0, 1, 2, 1, 3, 0, 3, 3, 2, 1] + [3] * 5 + [0] * 5 + [1, 3] * 5
    )
    mean_losses = [step(batch) for batch in run.batches((x, branches), 10, shuffle=False)]
    return [*model.state_dict().values(), *mean_losses]


def test_bits_of_parameters_that_some_shards_use(all_reduce: AllReduceKind, pool: Pool) -> None:
    one = fanwise.run(train_branches, devices=1, shards=5)
    for devices in (2, 3, 5):
        several = fanwise.run(train_branches, devices=devices, shards=5, pool=pool)
        assert all(map(torch.equal, one, several)), f"{devices} devices, {all_reduce}"


class Sparse(nn.Module):
    """Has an embedding with sparse gradients, which are dense in some batches, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, sparse=True)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.table(x)).square().sum(1)
        return out + self.table.weight.sum() if int(x[0]) == 7 else out


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch warns of its own Adagrad
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "SparseAdam"])
def test_bits_of_sparse_gradients(optimizer: str, all_reduce: AllReduceKind, pool: Pool) -> None:
    def train(run: Run) -> list[Tensor]:
        model = Sparse()
        params = model.table.parameters() if optimizer == "SparseAdam" else model.parameters()
        step = run.step(model, getattr(torch.optim, optimizer)(params, 0.1), lambda model, x: model(x))
        for first in (1, 2, 3) if optimizer == "SparseAdam" else (1, 2, 7, 3):
            step(torch.tensor([first, 3, 3, 8, 2, 2, 0]))
        return list(model.state_dict().values())

    one, two, three = (fanwise.run(train, devices=k, shards=4, pool=pool if k > 1 else None) for k in (1, 2, 3))
    assert all(map(torch.equal, one, two))
    assert all(map(torch.equal, one, three))


# -- float16, and batch normalization over the whole batch ------------------------------------------------------------

M = 49  # samples


@pytest.mark.parametrize("autocast", [None, torch.float16], ids=["plain", "float16"])
def test_global_batch_norm_is_that_of_one_process_and_reproducible(autocast: torch.dtype | None, pool: Pool) -> None:
    def train(run: Run) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        step = run.step(model, optimizer, losses, batch_norm="global", autocast=autocast)
        mean_losses = [step(batch) for _ in run.epochs(2) for batch in run.batches((X[:M], Y[:M]), B, drop_last=True)]
        return [*model.state_dict().values(), *mean_losses]

    one = fanwise.run(train, devices=1, shards=1)
    three, three_repeated = (fanwise.run(train, devices=3, shards="devices", pool=pool) for _ in range(2))
    assert all(map(torch.equal, three, three_repeated))
    tolerance = 1e-5 if autocast is None else 0.03
    for left, right in zip(one, three, strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)

"""In several processes: the same bits as on one device, each shard executed once, whatever model and options."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

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
    """What depends on who executes a shard if it is not taken care of; and parameters without gradients."""

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
        found: Tensor = self.frozen(self.head(self.body(x).flatten(1)))
        return found


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).float(), y, reduction="none")


def counted_losses(path: Path, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Writes down that a shard was executed, by whom and with which samples."""
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


def right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = model(x).argmax(1) == y
    return found


def train(
    optimizer: Callable[[Net], torch.optim.Optimizer],
    path: Path,
    layout: torch.memory_format,
    options: dict[str, Any],  # Any: of run.step
    run: Run,
) -> tuple[dict[str, Tensor], list[Tensor], float, int]:
    model = Net(layout)
    step = run.step(model, optimizer(model), functools.partial(counted_losses, path), **options)
    seen = [step(batch) for _ in run.epochs(EPOCHS) for batch in run.batches((X, Y), B)]
    accuracy = run.mean(right, model, (X, Y), batch_size=7)
    return dict(model.state_dict()), seen, accuracy, run.executions


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    assert some.keys() == others.keys()
    return all(torch.equal(some[name], others[name]) for name in some)


CASES: dict[str, tuple[Callable[[Net], torch.optim.Optimizer], torch.memory_format, dict[str, Any]]] = {  # Any: options
    "momentum": (momentum, torch.contiguous_format, {}),
    "adamw, groups": (adamw, torch.contiguous_format, {}),
    "clipped": (momentum, torch.contiguous_format, {"clip_norm": 0.5}),
    "channels last, adamw, clipped": (adamw, torch.channels_last, {"clip_norm": 0.5}),
    "bfloat16": (adamw, torch.contiguous_format, {"autocast": torch.bfloat16}),
}


@pytest.mark.usefixtures("all_reduce")
@pytest.mark.parametrize(
    "several",
    [[3], pytest.param([2, 5], marks=pytest.mark.soak)],
    ids=["three", "others"],
)
@pytest.mark.parametrize("case", CASES)
def test_bits_executions_and_accuracy_do_not_depend_on_the_processes(
    case: str, several: list[int], pool: Pool, tmp_path: Path
) -> None:
    optimizer, layout, options = CASES[case]

    def run(name: str, **spread: Any) -> tuple[Any, set[str]]:  # Any: options of fanwise.run, and what train returns
        path = tmp_path / name
        training = functools.partial(train, optimizer, path, layout, options)
        found = fanwise.run(training, shards=SHARDS, pool=pool, **spread)
        lines = path.read_text().split("\n")[:-1]
        # The first shard is executed twice before the first step, as a check.
        assert len(lines) == EXECUTIONS + 2
        assert sum(int(line.split()[1]) for line in lines) == EPOCHS * N + 2 * len(cut(B, SHARDS)[0])
        return found, {line.split()[0] for line in lines}

    (params, seen, accuracy, executed), _ = run("1", devices=1)
    assert executed == EXECUTIONS
    assert round(accuracy * N) / N == accuracy
    for devices in several:
        found, pids = run(f"{devices}", devices=devices)
        assert len(pids) == devices and str(os.getpid()) not in pids
        assert same(params, found[0]), f"{devices} devices"
        assert torch.equal(torch.stack(seen), torch.stack(found[1]))
        assert found[2:] == (accuracy, executed)


class Stop(Exception):
    """Where a first run ends."""


def interrupted(path: Path, at: int | None, run: Run) -> dict[str, Tensor]:
    """Saves in the middle of the second epoch, and ends there if `at` says so."""
    model = Net(torch.contiguous_format)
    updates = momentum(model)
    step = run.step(model, updates, losses)
    schedule = torch.optim.lr_scheduler.ExponentialLR(updates, 0.5)
    run.keep(schedule=schedule)
    for _ in run.epochs(3):
        for batch in run.batches((X, Y), B):
            step(batch)
            if step.batches == at:
                run.save(path)
                raise Stop
        schedule.step()
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Tensor]:
    """What comes of the training on one device."""
    return fanwise.run(functools.partial(interrupted, Path(os.devnull), None), shards=SHARDS)


@pytest.mark.usefixtures("all_reduce")
@pytest.mark.parametrize(
    ("first", "second"), [(1, 3), (3, 2), *(pytest.param(*pair, marks=pytest.mark.soak) for pair in ((2, 1), (2, 5)))]
)
def test_a_run_resumes_in_mid_epoch_on_other_processes(
    first: int, second: int, pool: Pool, uninterrupted: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(Stop):
        fanwise.run(functools.partial(interrupted, path, 6), devices=first, shards=SHARDS, pool=pool)
    assert torch.load(path)["run"]["shards"] == SHARDS
    resumed = functools.partial(interrupted, path, None)
    assert same(uninterrupted, fanwise.run(resumed, devices=second, resume=path, pool=pool))


def loads(run: Run) -> list[str]:
    before = set(sys.modules)
    train(momentum, Path(os.devnull), torch.contiguous_format, {}, run)
    return [name for name in sys.modules if name.startswith("fanwise") and name not in before]


def test_a_process_finds_all_that_a_training_needs_loaded(pool: Pool) -> None:
    assert fanwise.run(loads, devices=2, shards=SHARDS, pool=pool) == []


# -- parameters that not all shards reach, of several types and layouts -----------------------------------------------


class Branches(nn.Module):
    """Each sample goes one of four ways, so a shard reaches some of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(5, 4).double()
        # Their elements do not fill a range of memory; those of the second cannot be seen as one line either.
        self.third = nn.Parameter(torch.randn(4, 10)[:, ::2])
        self.fourth = nn.Parameter(torch.randn(4, 10)[:, :5])
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.frozen = nn.Parameter(torch.arange(4), requires_grad=False)
        self.last = nn.Parameter(torch.randn(5, 4).t())

    def forward(self, x: Tensor, way: int) -> Tensor:
        if way == 0:
            found: Tensor = self.first(x)
        elif way == 1:
            found = self.second(x.double()).float()
        elif way == 2:
            found = self.first(x) + self.second(x.double()).float()
        else:
            found = x @ (self.third + self.fourth).t() + x @ self.last.t()
        return found + self.empty.sum() + self.frozen


def branches(run: Run) -> list[Tensor]:
    model = Branches()
    trained = [param for param in model.parameters() if param.requires_grad]

    def loss(model: nn.Module, x: Tensor, ways: Tensor) -> Tensor:
        return torch.stack([model(each, way).square().sum() for each, way in zip(x, ways.tolist(), strict=True)])

    step = run.step(model, torch.optim.SGD(trained, 0.01, momentum=0.9), loss)
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(2))
    # Whole batches go one way or another, shards do, and samples do.
    ways = torch.tensor(
        [0] * 10 + [2] * 10 + [3] * 10 + [0, 1, 2, 1, 3, 0, 3, 3, 2, 1] + [3] * 5 + [0] * 5 + [1, 3] * 5
    )
    seen = [step(batch) for batch in run.batches((x, ways), 10, shuffle=False)]
    return [*model.state_dict().values(), *seen]


def test_bits_of_parameters_that_some_shards_reach(all_reduce: AllReduceKind, pool: Pool) -> None:
    one = fanwise.run(branches, devices=1, shards=5)
    for devices in (2, 3, 5):
        found = fanwise.run(branches, devices=devices, shards=5, pool=pool)
        assert all(map(torch.equal, one, found)), f"{devices} devices, {all_reduce}"


class Sparse(nn.Module):
    """A table whose gradients are sparse, and in the last batches dense too; and one of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, sparse=True)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.table(x)).square().sum(1)
        return out + self.table.weight.sum() if int(x[0]) == 7 else out


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch, for what its Adagrad makes
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "SparseAdam"])
def test_bits_of_sparse_gradients(optimizer: str, all_reduce: AllReduceKind, pool: Pool) -> None:
    def train(run: Run) -> list[Tensor]:
        model = Sparse()
        params = model.table.parameters() if optimizer == "SparseAdam" else model.parameters()
        made = getattr(torch.optim, optimizer)(params, 0.1)
        step = run.step(model, made, lambda model, x: model(x))
        for first in (1, 2, 3) if optimizer == "SparseAdam" else (1, 2, 7, 3):
            step(torch.tensor([first, 3, 3, 8, 2, 2, 0]))
        return list(model.state_dict().values())

    one, two, three = (fanwise.run(train, devices=k, shards=4, pool=pool if k > 1 else None) for k in (1, 2, 3))
    assert all(map(torch.equal, one, two))
    assert all(map(torch.equal, one, three))


# -- float16, and batch normalization over the whole batch ------------------------------------------------------------

M = 49  # samples


@pytest.mark.parametrize("autocast", [None, torch.float16], ids=["plain", "float16"])
def test_global_batch_norm_is_that_of_one_process_and_repeats(autocast: torch.dtype | None, pool: Pool) -> None:
    def train(run: Run) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        step = run.step(model, optimizer, losses, batch_norm="global", autocast=autocast)
        seen = [step(batch) for _ in run.epochs(2) for batch in run.batches((X[:M], Y[:M]), B, drop_last=True)]
        return [*model.state_dict().values(), *seen]

    one = fanwise.run(train, devices=1, shards=1)
    three, again = (fanwise.run(train, devices=3, shards="devices", pool=pool) for _ in range(2))
    assert all(map(torch.equal, three, again))
    within = 1e-5 if autocast is None else 0.03
    assert all(torch.allclose(value, other, rtol=within, atol=within) for value, other in zip(one, three, strict=True))

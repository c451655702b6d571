"""Functions that the launched processes of these tests call with their rank. They return picklable values."""

import gc
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.base.errors import TrialStopped, WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.comm import group_reduce
from fanwise.parallel.comm.group_reduce import FastAllReduce
from fanwise.parallel.comm.team import Monitor, report_together
from fanwise.parallel.comm.torch_group import TorchGroup
from fanwise.parallel.comm.torch_team import TorchTeam, join_team
from fanwise.parallel.config import Plan
from fanwise.parallel.data.position import DataPosition
from fanwise.parallel.launch.external import launched
from fanwise.parallel.step.tree import cut
from fanwise.pool.contract import Decision, Reply
from fanwise.pool.current import CurrentJob, enter, leave
from fanwise.testing.within import within

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from all_reduce_contract import CHECKS, Peer  # isort: skip

# N: samples, B: samples of a global batch
N, B, EPOCHS, SHARDS = 53, 16, 2, 8
OUT = Path(os.environ["GUEST_OUT"])
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 1, 6, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)


class Net(nn.Module):
    """Has dropout, batch normalization, channels_last, and parameters that are frozen or that few shards use."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 3)
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.rare = nn.Parameter(torch.zeros(3))
        self.precise = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.conv.weight = nn.Parameter(self.conv.weight.detach().to(memory_format=torch.channels_last))

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.relu(self.norm(self.conv(x))), 0.3, self.training)
        out: Tensor = self.last(hidden.flatten(1)) * self.precise.float() * self.frozen.sum()
        return out + self.rare if x.sum() > 0 else out


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    is_correct: Tensor = model(x).argmax(1) == y
    return is_correct


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), 0.01)
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def training(run: Run, optimizer: str = "momentum", **options: Any) -> tuple[str, int, float, float]:  # Any: of a step
    """Return a digest of parameters and losses, the executions, the accuracy, and the mean loss."""
    model = Net()
    step = run.step(model, optimizer_of(optimizer, model), losses, **options)
    step_losses = [step(batch) for _ in run.epochs(EPOCHS) for batch in run.batches((X, Y), B)]
    accuracy = run.mean(correct, model, (X, Y), batch_size=7)
    mean_loss = run.mean(losses, model, (X, Y))
    return digest([*model.state_dict().values(), *step_losses]), run.executions, accuracy, mean_loss


TRAININGS: dict[str, Callable[[Run], Any]] = {  # Any: as `training` returns
    "momentum": training,
    "adamw": partial(training, optimizer="adamw"),
    "clipped": partial(training, clip_norm=0.5),
}


def bits(rank: int) -> dict[str, Any]:  # Any: as `training` returns
    return {name: fanwise.run(train, shards=SHARDS) for name, train in TRAININGS.items()}


def place(rank: int) -> tuple[int, int, int, str]:
    """Return the rank, the numbers of processes and shards, and the device."""
    return fanwise.run(lambda run: (run.rank, run.world_size, run.shards, str(run.device)), devices="auto")


def fast_and_partly_unreached(rank: int) -> Any:  # Any: as `training` returns
    return fanwise.run(training, shards=2, reduce="fast")


class Branches(nn.Module):
    """Adds its branches in any order, so that ranks compute their gradients in different orders."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(36, 3) for _ in range(5))
        self.rare = nn.Parameter(torch.zeros(3))
        self.unused = nn.Linear(36, 3)
        self.late = nn.Linear(36, 3)

    def forward(self, x: Tensor, rank: int, *, with_late: bool) -> Tensor:
        flat, order = x.flatten(1), list(self.branches)
        out: Tensor = sum(branch(flat) for branch in order[rank:] + order[:rank])  # not 0
        out = out + self.rare if x.sum() > 0 else out
        return out + self.late(flat) if with_late else out


def fast_overlaps(rank: int) -> tuple[str, bool, list[int]]:
    """Make steps, one of which fails.

    Return a digest of the parameters, whether a plain loop agrees, and the number of buckets that each step started
    during backward.
    """
    batches, failing = [range(start, start + 12) for start in range(0, 48, 12)], 2
    started: list[int] = []
    original = FastAllReduce.overlap

    @contextmanager
    def overlap(all_reduce: FastAllReduce) -> Iterator[None]:
        with original(all_reduce):
            yield
        started.append(all_reduce._num_started)

    def train(run: Run) -> tuple[str, bool]:
        torch.manual_seed(0)
        model, number, steps, shard = Branches(), 0, len(batches), 0

        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            nonlocal shard
            if number == failing:
                shard += 1
                if run.rank == 0:
                    raise KeyError("in the first forward pass")
                if shard == 6 // run.world_size:
                    x = x.clone().requires_grad_()
                    x.register_hook(_fail)  # type: ignore[no-untyped-call]  # called after most buckets have started
            return cross_entropy(m(x, run.rank, with_late=number > 2), y, reduction="none")

        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), loss)
        while number < steps:
            rows = slice(batches[number].start, batches[number].stop)
            with suppress(KeyError):
                step((X[rows], Y[rows]))
            number += 1
        params = list(model.parameters())
        bits = hashlib.sha256(b"".join(param.detach().numpy().tobytes() for param in params)).hexdigest()
        expected = [param.detach() for param in _plain_loop(batches, failing)]
        return bits, all(torch.allclose(*pair, atol=1e-6) for pair in zip(params, expected, strict=True))

    with patch.object(FastAllReduce, "overlap", overlap), patch.object(group_reduce, "_BUCKET_BYTES", 512):
        return *fanwise.run(train, shards=6, reduce="fast"), started


def _fail(grad: Tensor) -> None:
    raise KeyError("in the last backward pass")


def _plain_loop(batches: list[range], failing: int) -> list[nn.Parameter]:
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for number, batch in enumerate(batches):
        if number != failing:
            losses = []
            for part in cut(len(batch), 6):  # `rare` depends on the shard
                rows = slice(batch[part.start], batch[part.stop - 1] + 1)
                losses.append(cross_entropy(model(X[rows], 0, with_late=number > 2), Y[rows], reduction="none"))
            optimizer.zero_grad()
            torch.cat(losses).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return list(model.parameters())


def fast_retry_in_one(rank: int) -> None:
    """The first process repeats a step that has failed in this process only."""

    def train(run: Run) -> None:
        model, is_failing = Net(), False

        def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            if is_failing:
                raise KeyError("only here")
            return losses(m, x, y)

        step = run.step(model, optimizer_of("momentum", model), loss)
        for _ in range(3):  # processes compare these batches before they execute them
            step((X, Y))
        if run.rank == 0:
            is_failing = True
            with suppress(KeyError):
                step((X, Y))
            is_failing = False
        step((X, Y))

    fanwise.run(train, shards=4, reduce="fast")


def prints(rank: int) -> None:
    fanwise.run(lambda run: run.print("printed once"))


def error_of_the_last(rank: int) -> None:
    def train(run: Run) -> None:
        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            if run.rank == run.world_size - 1:
                raise KeyError("poison")
            return losses(model, x, y)

        model = Net()
        run.step(model, optimizer_of("momentum", model), loss)((X, Y))

    fanwise.run(train)


def _ends_of_the_last(error: type[BaseException]) -> None:
    def train(run: Run) -> None:
        step = run.step(model := Net(), optimizer_of("momentum", model), losses)
        if run.rank == run.world_size - 1:
            raise error(3)
        step((X, Y))

    fanwise.run(train)


def exit_of_the_last(rank: int) -> None:
    _ends_of_the_last(SystemExit)


def interrupt_of_the_last(rank: int) -> None:
    _ends_of_the_last(KeyboardInterrupt)


def different_ways(rank: int) -> None:
    fanwise.run(lambda run: run.mean(losses, Net(), (X, Y)) if run.rank else None)


def different_arguments(rank: int) -> None:
    fanwise.run(lambda run: None, shards=rank + 1)


def too_many_devices(rank: int) -> None:
    fanwise.run(lambda run: None, devices=7)


def reports(rank: int) -> list[Decision | str]:
    """Return the decisions of three reports in which the job of the first process continues, stops, or raises."""
    own, decisions = launched(), list[Decision | str]()
    assert own is not None
    for decision in (Reply(), Reply("STOP"), None):
        if rank == 0:
            enter(Job(decision))
        try:
            with join_team(own.world, torch.device("cpu"), reduce="exact") as team:
                decisions.append(reported(team))
        finally:
            leave()
    return decisions


def reported(team: TorchTeam) -> Decision | str:
    try:
        report_together(team, Monitor(), 1, {"loss": 0.5})
        return "CONTINUE"
    except TrialStopped:
        return "STOP"
    except ValueError as error:
        return str(error)


def busy_while_the_last_fails(rank: int) -> None:
    """The others take part in the next operation only after the error was raised in the last process."""
    own, raised = launched(), OUT / "raised"
    assert own is not None
    is_last = rank == own.size - 1
    try:
        with join_team(own.world, torch.device("cpu"), reduce="exact", leaving_s=0.01) as team:
            if is_last:
                raise KeyError("poison")
            within(30.0, raised.exists, "the error was raised")
            team.gather("measures", None)
    finally:
        if is_last:
            raised.touch()
            within(30.0, lambda: len(list(OUT.glob("heard*"))) == own.size - 1, "the others have got the error")
        else:
            (OUT / f"heard{rank}").touch()


class Job(CurrentJob):
    """A job whose submitter decides at once."""

    def __init__(self, reply: Reply | None) -> None:
        self._reply = reply

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        assert values == {"loss": 0.5}
        if self._reply is None:
            raise ValueError("no such metric")
        return self._reply


def contract_exact(rank: int) -> dict[str, str]:
    """Return the error of each check of the all-reduce contract, or an empty text."""
    return _contract("exact")


def contract_fast(rank: int) -> dict[str, str]:
    return _contract("fast")


def _contract(reduce: str) -> dict[str, str]:
    own, errors = launched(), dict[str, str]()
    assert own is not None
    for check in CHECKS:
        group = TorchGroup(own.world, torch.device("cpu"))
        team = TorchTeam(group, torch.device("cpu"), reduce)
        left: list[bool] = []

        def leave(group: TorchGroup = group, left: list[bool] = left) -> None:
            group.close()
            left.append(True)

        try:
            check(Peer(team, team.all_reduce, reduce == "exact", leave, WorkerLostError, goes_on=False))
            if "gone" not in check.__name__:
                team.gather("ends", None)
            errors[check.__name__] = ""
        except Exception as error:
            errors[check.__name__] = f"{type(error).__name__}: {error}"
        finally:
            if not left:
                group.close()
    return errors


def group_of_the_program(rank: int) -> tuple[bool, int]:
    """Return whether torch.distributed is initialized after a run, and a sum over the program's own group."""
    if not distributed.is_initialized():
        return False, 0
    tensor = torch.tensor(rank)
    distributed.all_reduce(tensor)
    return True, int(tensor)


def death_of_the_last(rank: int) -> None:
    def train(run: Run) -> None:
        if run.rank == run.world_size - 1:
            os._exit(3)
        run.mean(losses, Net(), (X, Y))

    fanwise.run(train)


def hang_of_the_last(rank: int) -> str:
    """The last process stops itself between two operations. Return the error that another process gets."""
    own, message = launched(), ""
    assert own is not None
    try:
        with join_team(own.world, torch.device("cpu"), reduce="exact", step_timeout_s=1) as team:
            team.agree_on(Plan(4, 1, DataPosition(0)), frozenset())
            team.step_ends()  # the time limit is now one second
            team.gather("measures", None)
            if rank == own.size - 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            team.gather("measures", None)
    except WorkerLostError as error:
        message = str(error)
    gc.collect()
    distributed.destroy_process_group()  # like the end of a program
    return message


if __name__ == "__main__":  # a worker of torchrun
    torch.set_num_threads(1)
    (OUT / f"result{os.environ['RANK']}").write_text(repr(fanwise.run(training, shards=SHARDS)))

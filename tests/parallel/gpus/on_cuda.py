"""Train on real GPUs in several ways, compare the bits, and print the error of each comparison as JSON, "" if equal.

`python on_cuda.py cpu` tests this program on CPUs. If there are fewer GPUs than ranks, the ranks share the first one
and exchange gradients over Gloo, because NCCL needs a GPU for each rank.
"""

import functools
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from trainings import capturable_adamw, is_correct, losses, sgd

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.devices import gpus_here
from fanwise.parallel.launch.local import LocalSupervisor
from fanwise.parallel.launch.pools import own_pool
from fanwise.parallel.launch.ray import RaySupervisor
from fanwise.parallel.launch.settings import Backend, Settings
from fanwise.parallel.progress import Display
from fanwise.parallel.run import run_attempts
from fanwise.pool.devices import find_machine

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from memory_hosts import memory_pool  # isort: skip

# N: samples, B: samples of a global batch
N, B, SHARDS = 200, 48, 4
X = torch.randn(N, 1, 12, 12, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2))


def network() -> nn.Module:
    conv = nn.Conv2d(1, 8, 3)
    return nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(800, 3))


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 3))


def do_nothing(run: Run, number: int) -> None: ...


def die_once(path: Path, victim: int, run: Run, number: int) -> None:
    if run.world_size > 1 and run.rank == victim and number == 3 and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def train(
    make: Callable[[], nn.Module],
    options: dict[str, Any],  # Any: of run.step
    before: Callable[[Run, int], None],
    run: Run,
) -> tuple[list[Tensor], float]:
    """Train for two epochs. Return the parameters and buffers, in main memory, and the accuracy."""
    model = make().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = run.step(model, optimizer, losses, **options)
    for _ in run.epochs(2):
        for batch in run.batches((X, Y), B):
            before(run, step.batches)
            step(batch)
    return [value.cpu() for value in model.state_dict().values()], run.mean(is_correct, model, (X, Y), batch_size=64)


def by_hand(run: Run) -> list[Tensor]:
    """Train like `train` of the plain network with one shard, without `run.step`."""
    model = plain().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in run.epochs(2):
        for x, y in run.batches((X, Y), B):
            assert x.device == y.device == run.device
            loss = losses(model, x, y).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            torch._foreach_div_([param.grad for param in model.parameters() if param.grad is not None], float(len(x)))
            optimizer.step()
            optimizer.zero_grad()
    return [value.cpu() for value in model.state_dict().values()]


def train_without_waiting(is_resident: bool, run: Run) -> None:
    """Train in a mode in which torch raises an error if a step waits for the GPU."""
    model = plain().to(run.device)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), losses, clip_norm=1.0)
    data = (X.to(run.device), Y.to(run.device)) if is_resident else (X, Y)
    for number, batch in enumerate(run.batches(data, B)):
        if number > 0:  # the first step allocates memory
            torch.cuda.set_sync_debug_mode("error")
        try:
            step(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def in_ranks(
    device: str, training: Callable[[Run], Any], count: int, backend: Backend | None = None, restarts: int = 0
) -> Any:  # Any: its result
    """Run in `count` ranks with a GPU each over NCCL. If there are fewer GPUs, they share the first one over Gloo."""
    gpus = gpus_here()
    is_shared = len(gpus) < count
    settings = Settings(
        devices=(device,) * count,
        gpus=0 if not gpus else 1 / count if is_shared else 1,
        shards=SHARDS,
        backend=backend or ("gloo" if is_shared else "nccl"),
    )
    pool = own_pool(gpus[:1] if is_shared else gpus[:count])
    return run_attempts(lambda attempt: LocalSupervisor(pool, training, attempt, Display(False)), settings, restarts)


def over_hosts(device: str, training: Callable[[Run], Any]) -> Any:  # Any: its result
    """Run on two simulated hosts with one process each. Both have the first GPU, which they share over Gloo."""
    life, hosts = memory_pool(cpus=(1, 1), gpus=find_machine().gpus[:1])
    gpus = 0.5 if device != "cpu" else 0
    settings = Settings(devices=(device,) * 2, gpus=gpus, shards=SHARDS, backend="gloo")
    try:
        return RaySupervisor(hosts.engine, training, settings, Display(False)).run()
    finally:
        life.close()


def same(result: Any, expected: Any) -> bool:  # Any: as `train` returns
    pairs = zip(result[0], expected[0], strict=True)
    return all(torch.equal(*pair) for pair in pairs) and bool(result[1] == expected[1])


def generators_are_restored(device: str) -> bool:
    torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's
    before = torch.cuda.get_rng_state_all()
    fanwise.run(lambda run: torch.rand(3, device=run.device).cpu(), devices=device)
    return all(map(torch.equal, before, torch.cuda.get_rng_state_all()))


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """The same samples, with noise, one by one."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + 0.1 * torch.randn_like(X[index]), Y[index]


def workers_give_the_same(device: str) -> bool:
    """Return whether workers, whose shards are copied ahead of the step, change no bits."""

    def training(run: Run, workers: int, pin: bool = True) -> tuple[list[Tensor], float]:
        model = network().to(run.device)
        step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), losses)
        for _ in run.epochs(3):
            for batch in run.batches(Rows(), B, num_workers=workers, pin_memory=pin):
                step(batch)
        return [value.cpu() for value in model.state_dict().values()], run.mean(
            is_correct, model, Rows(), num_workers=workers
        )

    expected = fanwise.run(functools.partial(training, workers=0), devices=device)
    ways = [functools.partial(training, workers=2, pin=pin) for pin in (True, False)]
    return all(same(fanwise.run(way, devices=device), expected) for way in ways)


class Errors(dict[str, str]):
    """The errors of all checks, by name. "" for a check that holds."""

    def check(self, name: str, holds: Callable[[], bool]) -> None:
        """Add the result of a check, which is an error if `holds` raises."""
        try:
            self[name] = "" if holds() else "other bits"
        except Exception:
            self[name] = traceback.format_exc()


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {  # Any: options of run.step
    "batch norm and dropout": (network, {}),
    "clipped": (network, {"clip_norm": 0.1}),
    "bfloat16": (network, {"autocast": torch.bfloat16}),
}


def main() -> None:
    device = "cpu" if sys.argv[1:] == ["cpu"] else "cuda:0"
    errors = Errors()
    folder = Path(tempfile.mkdtemp(dir="."))
    for name, (make, options) in CASES.items():
        training = functools.partial(train, make, options)
        errors.check(name, functools.partial(compare_ways, errors, name, training, device, folder))
    errors.check("a plain loop", lambda: is_a_plain_loop(device))
    errors.check("data read by workers", lambda: workers_give_the_same(device))
    if device != "cpu":
        errors.check("generators are restored", lambda: generators_are_restored(device))
        errors.check("no step waits, data in main memory", lambda: no_step_waits(device, is_resident=False))
        errors.check("no step waits, data on the device", lambda: no_step_waits(device, is_resident=True))
        errors.check("captured, SGD", lambda: captured_is_the_same(sgd, {}))
        errors.check("captured, AdamW", lambda: captured_is_the_same(capturable_adamw, {}))
        errors.check("captured, clipped", lambda: captured_is_the_same(capturable_adamw, {"clip_norm": 0.1}))
        errors.check("captured, bfloat16", lambda: captured_is_the_same(sgd, {"autocast": torch.bfloat16}))
        errors.check("captured, float16", lambda: captured_is_the_same(sgd, {"autocast": torch.float16}))
    print(json.dumps(errors))


def compare_ways(errors: Errors, name: str, training: Callable[..., Any], device: str, folder: Path) -> bool:
    """Compare a training in one process with other ways to run it. Return True."""
    alone = functools.partial(training, do_nothing)
    expected = fanwise.run(alone, devices=device, shards=SHARDS)

    def check(way: str, run: Callable[[], Any]) -> None:
        errors.check(f"{name}: {way}", lambda: same(run(), expected))

    check("repeated", lambda: fanwise.run(alone, devices=device, shards=SHARDS))
    for count in (2, 3):
        check(f"{count} ranks over Gloo", functools.partial(in_ranks, device, alone, count, "gloo"))
    if device != "cpu":
        check("one rank over NCCL", functools.partial(in_ranks, device, alone, 1, "nccl"))
    check("over two hosts", functools.partial(over_hosts, device, alone))
    for victim in (1, 0):
        dying = functools.partial(training, functools.partial(die_once, folder / f"{name} {victim}", victim))
        restarted = functools.partial(in_ranks, device, dying, 3, restarts=1)
        check(f"a restart after the loss of rank {victim}", restarted)
    for count in range(2, len(gpus_here()) + 1):
        check(f"{count} GPUs", functools.partial(fanwise.run, alone, devices=count, shards=SHARDS))
        fast = functools.partial(fanwise.run, devices=count, shards=SHARDS, reduce="fast")
        errors.check(
            f"{name}: fast on {count} GPUs", functools.partial(is_near, functools.partial(fast, alone), expected)
        )
    return True


def is_near(run: Callable[[], Any], expected: Any) -> bool:  # Any: as `train` returns
    pairs = zip(run()[0], expected[0], strict=True)
    return all(torch.allclose(*pair, rtol=0.05, atol=0.05) for pair in pairs)


def captured_is_the_same(optimizer: Callable[[Any], torch.optim.Optimizer], options: dict[str, Any]) -> bool:
    """Return whether CUDA graphs change no bits, for data on the device and in main memory."""

    def training(run: Run, capture: bool, is_resident: bool) -> list[Tensor]:
        model = network().to(run.device)
        step = run.step(model, optimizer(model.parameters()), losses, capture=capture, **options)
        data = (X.to(run.device), Y.to(run.device)) if is_resident else (X, Y)
        mean_losses = [step(batch) for _ in run.epochs(6) for batch in run.batches(data, B)]
        return [value.cpu() for value in (*model.state_dict().values(), *mean_losses)]

    results = [
        fanwise.run(functools.partial(training, capture=capture, is_resident=is_resident), devices="cuda:0")
        for capture in (False, True)
        for is_resident in (False, True)
    ]
    return all(all(map(torch.equal, result, results[0])) for result in results[1:])


def is_a_plain_loop(device: str) -> bool:
    one_shard = fanwise.run(functools.partial(train, plain, {}, do_nothing), devices=device, shards=1)
    return all(map(torch.equal, one_shard[0], fanwise.run(by_hand, devices=device)))


def no_step_waits(device: str, *, is_resident: bool) -> bool:
    """Return True, or raise torch's error about a step that waits."""
    fanwise.run(functools.partial(train_without_waiting, is_resident), devices=device, shards=2)
    return True


if __name__ == "__main__":
    # Imported by name, so that workers can unpickle its classes.
    importlib.import_module("on_cuda").main()

"""On one GPU: how many epochs per second do trials that share it train together, under MPS and taking turns?

LeNet on 60,000 random images of 28 x 28 that are on the GPU, batches of 256: 235 steps are an epoch. Each trial builds
its model, trains an epoch, waits until all trials have done that, and then trains for a fixed time. The figure is the
steps of all trials in that time. Beside fanwise, whose trials are forked processes, Optuna runs trials in threads.
The time to the first objective includes the import of torch in fanwise's warm process; Optuna's process has done that.
Without a GPU it says so and measures nothing.

    python benchmarks/shared_gpu.py [--seconds 12] [--only TEXT]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from measuring import Beside, finish, machine, say, scratch_folder, table

from fanwise.pool import Pool
from fanwise.tune import FIFO, StoppingCriterion, Tuner, loguniform, report

DEVICE = "cuda"
IMAGES, BATCH = 60_000, 256
STEPS_OF_AN_EPOCH = -(-IMAGES // BATCH)
BARRIER_S = 60.0
RUN_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row: so many trials at once."""

    name: str
    trials: int
    mps: bool = False
    is_optuna: bool = False


TURNS, MANY, FEW, PEER = (
    "fanwise, 12 taking turns",
    "fanwise, 12 under MPS",
    "fanwise, 4 under MPS",
    "Optuna, 4 threads",
)
CONTESTANTS = (
    Contestant(MANY, 12, mps=True),
    Contestant(TURNS, 12),
    Contestant(FEW, 4, mps=True),
    Contestant(PEER, 4, is_optuna=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a contestant did."""

    epochs_per_s: float
    first_objective_s: float
    all_trained_s: float


def lenet() -> torch.nn.Module:
    nn = torch.nn
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return nn.Sequential(*features, *head, nn.Linear(84, 10))


def train(
    learning_rate: float, folder: Path, name: str, trials: int, seconds: float, tell: Callable[[float], None]
) -> None:
    """Train for `seconds` once all `trials` have trained an epoch; leave the figures in `folder`."""
    began_s = time.monotonic()
    images = torch.rand(IMAGES, 1, 28, 28, device=DEVICE)
    labels = torch.randint(10, (IMAGES,), device=DEVICE)
    model = lenet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(number: int) -> torch.Tensor:
        first = number % STEPS_OF_AN_EPOCH * BATCH
        loss: torch.Tensor = loss_of(model(images[first : first + BATCH]), labels[first : first + BATCH])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        optimizer.step()
        return loss

    for number in range(STEPS_OF_AN_EPOCH):
        loss = step(number)
    loss.item()
    trained_s = time.monotonic()
    (folder / f"{name}.ready").touch()
    while len(list(folder.glob("*.ready"))) < trials:
        time.sleep(0.005)
        if time.monotonic() > trained_s + BARRIER_S:
            raise RuntimeError(f"{trials} trials are not here within {BARRIER_S:g} s")
    start_s, steps = time.monotonic(), 0
    while time.monotonic() < start_s + seconds:
        loss = step(steps)
        steps += 1
        if steps % 10 == 0:
            value = loss.item()  # the GPU has done what was counted
        if steps % STEPS_OF_AN_EPOCH == 0:
            tell(value)
    loss.item()
    rate = steps / (time.monotonic() - start_s)
    (folder / f"{name}.json").write_text(json.dumps({"began_s": began_s, "trained_s": trained_s, "steps_per_s": rate}))


def objective(learning_rate: float, place: str, trials: int, seconds: float) -> None:
    train(learning_rate, Path(place), str(os.getpid()), trials, seconds, lambda loss: report(loss=loss))
    report(loss=0.0)


def run_fanwise(folder: Path, contestant: Contestant, seconds: float) -> float:
    """Run the trials; return when `run` was called."""
    with Pool() as every:
        gpu = every.machine.gpus[0].visible
    space = {
        "learning_rate": loguniform(1e-3, 1e-1),
        "place": str(folder),
        "trials": contestant.trials,
        "seconds": seconds,
    }
    with Pool(cpus=contestant.trials, gpus=[gpu], mps=contestant.mps, seed=1) as pool:
        tuner = Tuner(
            objective,
            space,
            FIFO(metric="loss", random_seed=1),
            StoppingCriterion(max_num_trials_started=contestant.trials),
            devices_per_trial=1 / contestant.trials,
            pool=pool,
            quiet=True,
        )
        began_s = time.monotonic()
        tuner.run()
    return began_s


def run_optuna(folder: Path, contestant: Contestant, seconds: float) -> float:
    """As `run_fanwise`, with threads of this process."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def peer(trial) -> float:  # type: ignore[no-untyped-def]  # a trial of Optuna
        rate, steps = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True), iter(range(10**6))
        train(rate, folder, str(trial.number), contestant.trials, seconds, lambda loss: trial.report(loss, next(steps)))
        return 0.0

    study = optuna.create_study()
    began_s = time.monotonic()
    study.optimize(peer, n_trials=contestant.trials, n_jobs=contestant.trials)
    return began_s


def measured(folder: Path, contestant: Contestant, began_s: float) -> Measured:
    told = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    if len(told) != contestant.trials:
        raise RuntimeError(f"{contestant.name}: {len(told)} of {contestant.trials} trials have ended well")
    return Measured(
        sum(each["steps_per_s"] for each in told) / STEPS_OF_AN_EPOCH,
        min(each["began_s"] for each in told) - began_s,
        max(each["trained_s"] for each in told) - began_s,
    )


def run_one(contestant: Contestant, seconds: float) -> None:
    """In a process of its own: run it and print what it did as a line of JSON."""
    with scratch_folder() as folder:
        os.environ["FANWISE_HOME"] = str(folder / "home")
        runs = folder / "runs"
        runs.mkdir()
        began_s = (run_optuna if contestant.is_optuna else run_fanwise)(runs, contestant, seconds)
        did = measured(runs, contestant, began_s)
    print(json.dumps([did.epochs_per_s, did.first_objective_s, did.all_trained_s]))


def run_in_process(contestant: Contestant, seconds: float) -> Measured | str:
    """What it did, or why it did not."""
    command = [sys.executable, __file__, "--seconds", str(seconds), "--one", contestant.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"it had not ended after {RUN_LIMIT_S:g} s"
    for line in done.stderr.splitlines():
        if "take turns" in line or "MPS" in line:
            say(f"{contestant.name}: {line}")
    if done.returncode != 0:
        say(done.stderr[-2000:])
        return (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def compare(ours: str, peer: str, did: dict[str, Measured | str]) -> Beside:
    ours_did, peer_did = did.get(ours, "it was left out"), did.get(peer, "it was left out")
    if isinstance(ours_did, str):
        return Beside(ours, peer, None, trouble=ours_did)
    if isinstance(peer_did, str):
        return Beside(ours, peer, None, no_peer=peer_did)
    return Beside(ours, peer, ours_did.epochs_per_s / peer_did.epochs_per_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="epochs per second of trials that share one GPU")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each contestant is measured")
    parser.add_argument("--only", default="", metavar="TEXT", help="contestants with this in their name")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one(next(each for each in CONTESTANTS if each.name == args.one), args.seconds)
        return
    with Pool() as pool:
        if not pool.machine.gpus:
            say("shared_gpu: no GPU was found here; nothing is measured")
            return
    facts = machine()
    did: dict[str, Measured | str] = {}
    for contestant in CONTESTANTS:
        if args.only in contestant.name:
            did[contestant.name] = run_in_process(contestant, args.seconds)
            say(f"{contestant.name}: {did[contestant.name]}")
    base = did.get(TURNS)
    rows = []
    for name, each in did.items():
        if isinstance(each, str):
            rows.append([name, each, "", "", ""])
            continue
        ratio = f"{each.epochs_per_s / base.epochs_per_s:.2f}" if isinstance(base, Measured) else ""
        rows.append(
            [name, f"{each.epochs_per_s:.2f}", ratio, f"{each.first_objective_s:.2f}", f"{each.all_trained_s:.2f}"]
        )
    header = ["trials at once", "epochs/s together", "ratio", "s to the first objective", "s until all have an epoch"]
    beside = [compare(MANY, TURNS, did), compare(MANY, PEER, did), compare(FEW, PEER, did)]
    payload = {name: each if isinstance(each, str) else each.epochs_per_s for name, each in did.items()}
    finish("shared_gpu", [table(header, rows)], {"epochs_per_s": payload}, facts=facts, beside=beside)


if __name__ == "__main__":
    main()

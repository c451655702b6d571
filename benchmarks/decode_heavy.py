"""Training on images that are decoded, cropped and flipped, by workers, beside the same data in memory and DataLoader.

    in each round, for each way: one epoch --> ms a step

JPEGs are made by the script. Ours: one device with 4 shards, its samples in memory (decoded and cropped once), read by
2 workers, or in the step. Theirs: a plain loop over tensors in memory, or over torch's DataLoader with 2 workers. All
have one thread, the same network and the same batch; workers persist, and the epoch before the first round is not
timed. The process that trains has one CPU, each worker another one, since what is asked is what reading costs where
there are cores for it. `--side` and `--channels` choose how much there is to decode, and to compute: workers can keep
up only where two of them read a batch within a step.

    python benchmarks/decode_heavy.py [--rounds 15] [--side 96] [--channels 32]
"""

import argparse
import io
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from measuring import finish, machine, ratio_of_neighbours, say, spread, table
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import fanwise

CPUS = sorted(os.sched_getaffinity(0))
SIZE, CLASSES, B, N, WORKERS = 32, 10, 64, 1280, 2


class Photographs(Dataset[tuple[Tensor, int]]):
    """JPEGs in memory; a sample is a random part of one, perhaps flipped."""

    def __init__(self, side: int) -> None:
        rng = np.random.default_rng(0)
        self._side = side
        self._files = [_jpeg(rng, side) for _ in range(N)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = np.asarray(Image.open(io.BytesIO(self._files[index])))
        top, left = (random.randint(0, self._side - SIZE) for _ in range(2))
        part = torch.from_numpy(image[top : top + SIZE, left : left + SIZE].copy()).permute(2, 0, 1)
        if random.random() < 0.5:
            part = part.flip(2)
        return part.float().div_(255), index % CLASSES


def _jpeg(rng: np.random.Generator, side: int) -> bytes:
    coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def network(channels: int) -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(2 * channels * (SIZE // 4) ** 2, CLASSES))


def ours(channels: int, data: Any, **options: Any) -> Callable[[], float]:  # Any: a data set
    """An epoch of a run in seconds."""
    run = fanwise.here()
    model = network(channels)
    step = run.step(
        model, torch.optim.SGD(model.parameters(), 0.01), lambda m, x, y: cross_entropy(m(x), y, reduction="none")
    )

    def epoch() -> float:
        begun = time.perf_counter()
        for batch in run.batches(data, B, **options):
            step(batch)
        return time.perf_counter() - begun

    return epoch


def theirs(channels: int, batches: Callable[[], Iterable[Any]]) -> Callable[[], float]:
    """An epoch of a plain loop in seconds."""
    model = network(channels)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def epoch() -> float:
        begun = time.perf_counter()
        for x, y in batches():
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
            optimizer.step()
        return time.perf_counter() - begun

    return epoch


def in_order(x: Tensor, y: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """A shuffled epoch over tensors."""
    order = torch.randperm(N)
    return ((x[order[start : start + B]], y[order[start : start + B]]) for start in range(0, N, B))


def own_cpu(number: int) -> None:
    """The last CPUs are those of workers, the first one is that of the process that trains."""
    os.sched_setaffinity(0, {CPUS[-1 - number]})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--channels", type=int, default=32)
    args = parser.parse_args()
    if len(CPUS) <= WORKERS:
        raise SystemExit(f"needs a CPU for each of {WORKERS} workers beside that of the training")
    torch.set_num_threads(1)
    facts = machine()
    os.sched_setaffinity(0, CPUS[:1])
    data = Photographs(args.side)
    begun = time.perf_counter()
    samples = [data[index] for index in range(N)]
    decode_ms = (time.perf_counter() - begun) / (N // B) * 1e3
    x, y = torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])
    options: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "worker_init_fn": own_cpu}
    loader = DataLoader(data, B, shuffle=True, **options)
    ways: dict[str, Callable[[], float]] = {
        "fanwise, data in memory": ours(args.channels, (x, y)),
        f"fanwise, {WORKERS} workers": ours(args.channels, data, **options),
        "fanwise, read in the step": ours(args.channels, data),
        "plain loop, data in memory": theirs(args.channels, lambda: in_order(x, y)),
        f"plain loop, DataLoader, {WORKERS} workers": theirs(args.channels, lambda: loader),
    }
    for epoch in ways.values():
        epoch()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds):
        say(f"round {number + 1} of {args.rounds}")
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(ways[name]() / (N // B) * 1e3)
    rows = []
    for name, found in times.items():
        base = "fanwise, data in memory" if name.startswith("fanwise") else "plain loop, data in memory"
        ratio = "" if name == base else ratio_of_neighbours(times[base], found)
        rows.append([name, spread(found).shown(), ratio])
    shown = table(["an epoch, ms a step", "median (least-greatest)", "beside its data in memory"], rows)
    said = f"To decode a batch of {B} JPEGs of {args.side} x {args.side} takes one core {decode_ms:.1f} ms."
    finish("decode_heavy", [said, shown], {"ms a step": times, "decode_ms": decode_ms}, facts=facts)


if __name__ == "__main__":
    main()

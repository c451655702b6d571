"""Training on one CUDA device: the programs of "Dive into Deep Learning" 13.5 and 13.6 beside fanwise.run.

    for each round, for each program: an epoch that warms up, then some that are timed --> seconds an epoch

Without a folder of Fashion-MNIST the images are noise of the same shape: speed does not depend on what they show, and
accuracies are left out. The bound of an epoch is its multiplications and additions (three times those of a forward
pass, counted by torch) over what the device can do in its data sheet, without sparsity.

    python benchmarks/parallel_gpu.py [--rounds 3] [--epochs 3] [--data FOLDER]
    python benchmarks/parallel_gpu.py --device cpu --samples 1024 --epochs 1     to see that it works
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from measuring import Beside, finish, machine, say, spread, table
from parallel_parts.book import EagerLoop, concise, graph_by_hand, scratch, scratch_resident
from parallel_parts.ours import Ours
from parallel_parts.tasks import NETWORKS, Task, Trained
from torch.utils.flop_counter import FlopCounterMode

from fanwise.zoo import fashion_mnist

TFLOP_S = {
    "H100 80GB HBM3": {"float32": 66.9, "TF32": 494.7, "bfloat16": 989.4},
    "H200": {"float32": 66.9, "TF32": 494.7, "bfloat16": 989.4},
    "H100 PCIe": {"float32": 51.2, "TF32": 378.0, "bfloat16": 756.0},
}
# What must hold, in seconds an epoch or in comparison with another row.
WANTED = {
    ("13.5", "fanwise, 1 shard"): "1.1 x the eager loop",
    ("13.5", "fanwise, 4 shards, captured"): "0.17 s",
    ("13.6", "fanwise, channels_last"): "1.05 x the eager loop",
    ("13.6", "fanwise, channels_last, bfloat16"): "1.05 x the eager loop",
}


@dataclass(slots=True)
class Row:
    """A program, and what it has answered.

    `arithmetic`: that its bound counts with. torch does convolutions in TF32 by default and the rest in float32; the
    small network of 13.5 is far from either.
    """

    section: str
    name: str
    train: Callable[[Task], Trained]
    arithmetic: str
    needs_cuda: bool = False
    trained: list[Trained] = field(default_factory=list)
    trouble: str = ""

    def epochs_s(self) -> list[float]:
        return [seconds for each in self.trained for seconds in each.epochs_s]


def rows() -> list[Row]:
    bf16 = torch.bfloat16
    return [
        Row("13.5", "the book", scratch, "float32"),
        Row("13.5", "the book, data on the device", scratch_resident, "float32"),
        Row("13.5", "eager loop", EagerLoop("13.5"), "float32"),
        Row("13.5", "CUDA graph by hand", graph_by_hand, "float32", needs_cuda=True),
        Row("13.5", "fanwise, 1 shard", Ours("13.5"), "float32"),
        Row("13.5", "fanwise, 4 shards", Ours("13.5", shards=4), "float32"),
        Row("13.5", "fanwise, 4 shards, captured", Ours("13.5", shards=4, capture=True), "float32"),
        Row("13.6", "the book", concise, "TF32"),
        Row("13.6", "eager loop, channels_last", EagerLoop("13.6", channels_last=True), "TF32"),
        Row("13.6", "eager loop, channels_last, bfloat16", EagerLoop("13.6", bf16, channels_last=True), "bfloat16"),
        Row("13.6", "fanwise", Ours("13.6"), "TF32"),
        Row("13.6", "fanwise, channels_last", Ours("13.6", channels_last=True), "TF32"),
        Row("13.6", "fanwise, channels_last, bfloat16", Ours("13.6", autocast=bf16, channels_last=True), "bfloat16"),
        Row("13.6", "fanwise, channels_last, captured", Ours("13.6", capture=True, channels_last=True), "TF32"),
    ]


def task_of(args: argparse.Namespace, device: torch.device) -> Task:
    if args.data:
        data = fashion_mnist(args.data, download=False)
        images = [(each.squeeze(1) * 255).round().byte() for each in (data.train_images, data.test_images)]
        labels = [data.train_labels, data.test_labels]
    else:
        chance = torch.Generator().manual_seed(0)
        sizes = (60_000, 10_000)
        images = [torch.randint(0, 256, (size, 28, 28), dtype=torch.uint8, generator=chance) for size in sizes]
        labels = [torch.randint(0, 10, (size,), generator=chance) for size in sizes]
    train, test = args.samples, args.samples // 6
    return Task(
        device, args.epochs, images[0][:train], labels[0][:train], images[1][:test], labels[1][:test], bool(args.data)
    )


def training_tflop(section: str, samples: int) -> float:
    """Of an epoch: the forward pass, and as much again for the gradients of inputs and of weights."""
    with FlopCounterMode(display=False) as counted:
        NETWORKS[section][0]().eval()(torch.zeros(1, 1, 28, 28))
    return 3 * float(counted.get_total_flops()) * samples / 1e12


def bound_s(row: Row, device: torch.device) -> float | None:
    """What an epoch takes at least; None where the data sheet is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peaks = next((peak for model, peak in TFLOP_S.items() if model in name), None)
    return None if peaks is None else training_tflop(row.section, row.trained[0].samples) / peaks[row.arithmetic]


def times(row: Row, book: Row) -> float:
    """How many times as fast as the book's. An epoch of another length counts as it is for the same samples."""
    share = row.trained[0].samples / book.trained[0].samples
    return statistics.median(book.epochs_s()) / (statistics.median(row.epochs_s()) / share)


def cells(row: Row, book: Row, device: torch.device) -> list[str]:
    share = row.trained[0].samples / book.trained[0].samples
    median_s = statistics.median(row.epochs_s()) / share
    bound = bound_s(row, device)
    right = [each.accuracy for each in row.trained if each.accuracy is not None]
    return [
        row.section,
        row.name,
        spread([seconds / share for seconds in row.epochs_s()]).shown(3),
        f"{times(row, book):.2f}",
        WANTED.get((row.section, row.name), ""),
        "-" if bound is None else f"{bound / share:.3f} ({row.arithmetic})",
        "-" if bound is None else f"{100 * bound / share / median_s:.1f} %",
        f"{statistics.median(right):.4f}" if right else "-",
    ]


def measure(contestants: Sequence[Row], task: Task, rounds: int) -> None:
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for row in contestants:
            if row.trouble:
                continue
            try:
                row.trained.append(row.train(task))
                say(f"  {row.section} {row.name}: {min(row.trained[-1].epochs_s):.3f} s")
            except (RuntimeError, ValueError) as reason:
                row.trouble = str(reason).splitlines()[0]
                say(f"  {row.section} {row.name}: {row.trouble}")
            gc.collect()  # CUDA graphs: a reader of the next one, which is a fork, would abort when it collects them


def main() -> None:
    parser = argparse.ArgumentParser(description="the book's training programs on one device, beside fanwise.run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="that are timed, each round")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--data", help="a folder with the four files of Fashion-MNIST")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("benchmarks/parallel_gpu.py needs a CUDA device, and there is none: nothing was measured.")
        sys.exit(0)
    facts = machine()
    facts["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    facts["torch"] = torch.__version__
    task, contestants = task_of(args, device), rows()
    for row in contestants:
        if row.needs_cuda and device.type != "cuda":
            row.trouble = "CUDA only"
    measure(contestants, task, args.rounds)
    books = {row.section: row for row in reversed(contestants) if row.name == "the book"}
    header = ["D2L", "program", "s an epoch", "book / it", "must hold", "bound, s", "of the bound", "test accuracy"]
    measured = [(row, books[row.section]) for row in contestants if row.trained and books[row.section].trained]
    shown = [cells(row, book, device) for row, book in measured]
    tables = [table(header, shown)]
    if missing := [f"Left out: {row.section} {row.name} ({row.trouble})" for row in contestants if row.trouble]:
        tables.append("\n".join(missing))
    payload = [
        {"section": row.section, "name": row.name, "trouble": row.trouble, "epochs_s": row.epochs_s()}
        for row in contestants
    ]
    ratios = {(row.section, row.name): times(row, book) for row, book in measured}
    beside = [
        Beside(f"{row.section} {row.name}", "the book", ratios.get((row.section, row.name)), row.trouble)
        for row in contestants
        if "fanwise" in row.name
    ]
    finish("parallel_gpu", tables, {"rows": payload}, facts=facts, beside=beside)


if __name__ == "__main__":
    main()

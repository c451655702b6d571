"""Training with torch alone: a plain loop, two processes that exchange nothing, or DistributedDataParallel over Gloo.

    python parallel_torch.py --cpus 0                        one process, one thread
    python parallel_torch.py --cpus 0,1 --together           one process, two threads
    python parallel_torch.py --cpus 0,1                      a process a CPU, each its half of the batch, no exchange
    python parallel_torch.py --cpus 0,1 --gloo               the same with DDP; also allreduce alone

With --kept its processes keep the memory that they free, as those of fanwise.run do.
Rank 0 is this process. The ranks meet in a file, so no port has to be free.
"""

import argparse
import multiprocessing
import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from parallel_measures import ELEMENTS, Blocks, Figures, Loop, Measure, median_ms, part_of, pinned, problem, serve
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanwise.parallel.process_settings import keep_freed_memory


@dataclass(frozen=True, slots=True)
class Order:
    """What all ranks do at the same time: steps of a model, or sums of so many elements."""

    name: str
    count: int
    quick: bool = False


class Rank:
    """One process. It joins the others before it does anything else."""

    def __init__(self, rank: int, processes: int, meeting: str | None) -> None:
        self._rank = rank
        self._processes = processes
        self._is_joined = meeting is not None
        self._loops: dict[str, Loop] = {}
        if meeting is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)

    def do(self, order: Order) -> float:
        """The seconds of the steps, or the milliseconds of a sum."""
        if order.name in ELEMENTS:
            elements = torch.zeros(order.count)
            return median_ms(lambda: dist.all_reduce(elements), order.quick)
        if order.name not in self._loops:
            made = problem(order.name)
            part = part_of(self._rank, self._processes)
            self._loops[order.name] = Loop(made, part, self._called(made.model))
        return self._loops[order.name].seconds(order.count)

    def _called(self, model: nn.Module) -> nn.Module:
        if not self._is_joined:
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)


def other_rank(rank: int, cpus: list[int], meeting: str | None, kept: bool, orders: Connection) -> None:
    """Rank 1 and above: does what rank 0 does, until that one ends."""
    with pinned(cpus[rank : rank + 1], 1), keep_freed_memory() if kept else nullcontext():
        worker = Rank(rank, len(cpus), meeting)
        while True:
            try:
                order = orders.recv()
            except EOFError:
                return
            orders.send(worker.do(order))


class Ranks:
    """All ranks of a contestant, as rank 0 sees them."""

    def __init__(self, own: Rank, others: list[Connection]) -> None:
        self._own = own
        self._others = others

    def do(self, order: Order) -> float:
        """What it took the slowest."""
        for each in self._others:
            each.send(order)
        return max([self._own.do(order), *(float(each.recv()) for each in self._others)])

    def allreduce(self, name: str, quick: bool) -> Figures:
        return {"ms": self.do(Order(name, ELEMENTS[name], quick))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", required=True)
    parser.add_argument("--together", action="store_true", help="one process with a thread a CPU")
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--kept", action="store_true")
    args = parser.parse_args()
    cpus = [int(each) for each in args.cpus.split(",")]
    processes = 1 if args.together else len(cpus)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting" if args.gloo else None
        spawning = multiprocessing.get_context("spawn")
        others = []
        for rank in range(1, processes):
            ours, theirs = spawning.Pipe()
            spawning.Process(target=other_rank, args=(rank, cpus, meeting, args.kept, theirs), daemon=True).start()
            theirs.close()
            others.append(ours)
        threads = len(cpus) // processes
        with (
            pinned(cpus if args.together else cpus[:1], threads),
            keep_freed_memory() if args.kept else nullcontext(),
        ):
            ranks = Ranks(Rank(0, processes, meeting), others)
            measures: dict[str, Measure] = Blocks(lambda name, steps: ranks.do(Order(name, steps))).all()
            for name in ELEMENTS:
                measures[name] = lambda quick, name=name: ranks.allreduce(name, quick)  # type: ignore[misc]
            serve(measures, torch.__version__)


if __name__ == "__main__":
    main()

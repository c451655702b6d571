"""Calls with tensors on a GPU: fanwise.rpc by CUDA IPC, through main memory, and torch.distributed.rpc by device map.

    for each round, for each size: each of the three, by turns --> ms there, and there and back

Both workers use the same GPU: it is the way from process to process that is measured. How it is done stands in rpc.py.
Without a GPU it says so and measures nothing.

    python benchmarks/rpc_gpu.py [--rounds 5] [--quick]
    python benchmarks/rpc_gpu.py --device cpu --quick      to see that it works
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from measuring import Beside, finish, machine, say, spread

from rpc import Contestant, Running, left_out, run, shown

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from rpc_measures import ON_DEVICE

WAYS = {"one_way_on": "one way, all read, ms", "there_and_back_on": "there and back, ms"}


def size_of(size_kib: int) -> str:
    return f"{size_kib} KiB" if size_kib < 1024 else f"{size_kib >> 10} MiB"


def compared(running: Sequence[Running]) -> list[Beside]:
    """fanwise by handles beside each of the others."""
    ours, *others = running
    found = []
    for way, text in WAYS.items():
        for size_kib in ON_DEVICE:
            for peer in others:
                key = (f"{way}_{size_kib}", "ms")
                theirs = peer.samples.get(key, [])
                mine = ours.samples.get(key, [])
                times = spread(theirs).median / spread(mine).median if theirs and mine else None
                name = f"{size_of(size_kib)} {text.removesuffix(', ms')}"
                trouble = "" if mine else ours.trouble or "no answer"
                no_peer = "" if theirs else peer.trouble or "no answer"
                found.append(Beside(name, peer.contestant.name, times, trouble, no_peer))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="remote calls with tensors on a GPU, fanwise beside torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round with fewer calls")
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args(namespace=argparse.Namespace(install=False))
    if args.device != "cpu" and not torch.cuda.is_available():
        say("rpc_gpu: no GPU was found here; nothing is measured")
        return
    facts = machine()
    facts["device"] = "cpu" if args.device == "cpu" else torch.cuda.get_device_name(args.device)
    on = ("--device", args.device)
    contestants = (
        Contestant("fanwise", "rpc_group.py", ("--library", "fanwise", *on)),
        Contestant("fanwise, main memory", "rpc_group.py", ("--library", "fanwise", *on, "--without-ipc")),
        Contestant("torch", "rpc_group.py", ("--library", "torch", *on), stops=True),
    )
    rows = [
        (f"{way}_{size_kib}", "ms", f"{size_of(size_kib)} {text}", 2, "")
        for way, text in WAYS.items()
        for size_kib in ON_DEVICE
    ]
    running = run(contestants, [row[0] for row in rows], 1 if args.quick else args.rounds, args)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    payload = {
        one.contestant.name: {"trouble": one.trouble, **{measure: ms for (measure, _), ms in one.samples.items()}}
        for one in running
    }
    tables = ["\n".join([shown(f"tensors on {args.device}", rows, running), *left_out(running)])]
    finish("rpc_gpu", tables, payload, facts=facts, beside=compared(running))


if __name__ == "__main__":
    main()

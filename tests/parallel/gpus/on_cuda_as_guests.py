"""A program for a launcher of processes with one GPU each. It fails unless they compute the bits of one GPU."""

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.parallel.comm.torch_team import join_team
from fanwise.parallel.launch.external import launched

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from all_reduce_contract import CHECKS, Peer  # isort: skip


def main() -> None:
    on_cuda: Any = importlib.import_module("on_cuda")  # Any: a program beside this one
    for make, options in on_cuda.CASES.values():
        training = functools.partial(on_cuda.train, make, options, on_cuda.do_nothing)
        distributed = fanwise.run(training, shards=on_cuda.SHARDS, progress=False)
        fanwise.run(training, reduce="fast", progress=False)
        variables = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        alone = fanwise.run(training, devices=device, shards=on_cuda.SHARDS, progress=False)
        os.environ.update(variables)
        assert on_cuda.same(distributed, alone), options
    for reduce in ("exact", "fast"):
        check_contract(torch.device(f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"), reduce)


def check_contract(device: torch.device, reduce: str) -> None:
    """Check the all-reduce contract over NCCL, except for lost processes, which end the launcher."""
    own = launched()
    assert own is not None
    for check in CHECKS:
        if "gone" not in check.__name__:
            with join_team(own.world, device, reduce=reduce) as team:
                check(Peer(team, team.all_reduce, reduce == "exact", sys.exit, WorkerLostError, False, device))


if __name__ == "__main__":
    main()

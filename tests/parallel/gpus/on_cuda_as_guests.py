"""A program for a launcher of processes with a GPU each: it fails unless they find the bits of one GPU."""

import functools
import importlib
import os
from typing import Any

import torch

import fanwise


def main() -> None:
    on_cuda: Any = importlib.import_module("on_cuda")  # Any: a program beside this one
    for make, options in on_cuda.CASES.values():
        training = functools.partial(on_cuda.train, make, options, on_cuda.nothing)
        together = fanwise.run(training, shards=on_cuda.SHARDS, progress=False)
        fanwise.run(training, reduce="fast", progress=False)
        launched = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        alone = fanwise.run(training, devices=device, shards=on_cuda.SHARDS, progress=False)
        os.environ.update(launched)
        assert on_cuda.same(together, alone), options


if __name__ == "__main__":
    main()

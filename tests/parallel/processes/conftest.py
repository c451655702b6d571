"""Fixtures of tests of runs in several processes."""

import functools
import importlib
from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

import fanwise
from fanwise.parallel.comm.shared_memory import AllReduceKind
from fanwise.parallel.launch.settings import Settings
from fanwise.pool import Pool


@pytest.fixture(scope="module")
def pool(forked_pools: None) -> Iterator[Pool]:
    """One pool for all tests of a file, because warm processes take seconds to start."""
    importlib.import_module("torch._dynamo")  # the first optimizer loads it, which changes the environment
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # the first one leaves a pipe open
    with Pool(seed=0, cpus=64) as pool:
        fanwise.run(lambda run: None, devices=2, pool=pool)  # starts the processes
        yield pool


@pytest.fixture(params=["one-shot", "two-shot"])
def all_reduce(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AllReduceKind:
    """Make runs use this kind of all-reduce, whatever the size of the model."""
    kind: AllReduceKind = request.param
    run_module = importlib.import_module("fanwise.parallel.run")  # the package has a function of this name
    monkeypatch.setattr(run_module, "Settings", functools.partial(Settings, all_reduce=kind))
    return kind

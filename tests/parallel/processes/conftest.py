"""What tests of runs in several processes share: warm processes, which take seconds to start."""

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
    """For all tests of a file. They leave it as they found it: what they start in it is a job that ends."""
    importlib.import_module("torch._dynamo")  # the first optimizer loads it, which changes the environment
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # the first one leaves a pipe open for good
    with Pool(seed=0, cpus=64) as pool:
        fanwise.run(lambda run: None, devices=2, pool=pool)  # its processes are there before the test begins
        yield pool


@pytest.fixture(params=["one-shot", "two-shot"])
def all_reduce(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AllReduceKind:
    """How runs of this test add gradients, as if their models were of the size for it."""
    how: AllReduceKind = request.param
    run_module = importlib.import_module("fanwise.parallel.run")  # the package has a function of this name
    monkeypatch.setattr(run_module, "Settings", functools.partial(Settings, all_reduce=how))
    return how

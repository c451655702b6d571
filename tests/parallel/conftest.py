"""What tests of runs share: torch's compiler is loaded, and devices are CPUs unless a test says otherwise."""

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which leaves a variable in the environment
from program_runs import LoadedInterpreter
from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler

# The first DataLoader with workers installs it for good, and tests must leave signal handlers as they were.
_set_SIGCHLD_handler()


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of devices is one of GPUs where there are any; gpus/ has the tests that are for them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Arrays are small here: more threads do nothing but wait for each other, at the cost of a whole CPU each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def forked_pools(torch_loaded: LoadedInterpreter) -> Iterator[None]:
    """The processes of a pool that is made in the module have torch at once: each would load it for three seconds."""
    with torch_loaded.forks_here():
        yield

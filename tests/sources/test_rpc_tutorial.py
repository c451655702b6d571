"""Both programs of PyTorch's tutorial on remote calls, as they are printed, with `fanwise.rpc` for torch's."""

import re
from collections.abc import Callable

import pytest

EDITS = [
    ("the library", "import torch.distributed.rpc as rpc", "import fanwise.rpc as rpc"),
    ("the library", "from torch.distributed.rpc import", "from fanwise.rpc import"),
    ("processes that are spawned import the script", "mp.spawn(\n", 'if __name__ == "__main__": mp.spawn(\n'),
    ("spaces that the site has lost", '  r"""\n', '    r"""\n'),
    ("a parenthesis is missing", "input.cuda()).cpu()\n", "input.cuda()).cpu())\n"),
    ("a module of the tutorial's repository", "rnn.RNNModel", "RNNModel"),
    ("the name that it is defined by", " _run_trainer()", " run_trainer()"),
]
# Of the second program the page shows neither the imports nor this function.
NOT_SHOWN = """\
import os
import torch
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
import fanwise.rpc as rpc
import fanwise.rpc.autograd as dist_autograd
from fanwise.rpc import RRef
from fanwise.rpc.optim import DistributedOptimizer

def _remote_method(method, rref, *args):
    return rpc.rpc_sync(rref.owner(), _on_owner, args=(method, rref, *args))

def _on_owner(method, rref, *args):
    return method(rref.local_value(), *args)

if not torch.cuda.is_available():
    torch.Tensor.cuda = nn.Module.cuda = lambda self: self
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cells(read_document: Callable[..., list[str]]) -> list[str]:
    return read_document("pytorch-rpc-tutorial", EDITS)


def test_all_cells_are_found(cells: list[str]) -> None:
    classes = [name for cell in cells for name in re.findall(r"^class (\w+)", cell, re.M)]
    assert classes == ["Policy", "Observer", *["Agent"] * 4, "EmbeddingTable", "Decoder", *["RNNModel"] * 2]
    assert len(cells) == 13


def test_an_agent_learns_from_observers_whose_method_it_sends_them(cells: list[str], run_cells: Run) -> None:
    printed = run_cells(*cells[:7]).splitlines()
    assert printed[0] == "This will run until reward threshold of 15.0 is reached. Ctrl+C to exit."
    for number, line in enumerate(printed[1:-1], 1):
        assert re.fullmatch(rf"Episode {number}0\tLast reward: \d+\.\d\d\tAverage reward: \d+\.\d\d", line)
    solved = re.fullmatch(r"Solved! Running reward is now (\S+)!", printed[-1])
    assert solved and float(solved[1]) > 15


def test_an_rnn_learns_on_two_workers(cells: list[str], run_cells: Run) -> None:
    printed = run_cells(NOT_SHOWN, *cells[7:]).splitlines()
    assert printed == [f"Training epoch {epoch}" for epoch in range(10)]

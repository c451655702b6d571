"""Jobs that use torch: random states, threads, tensors as results, and data loaders with processes of their own."""

import importlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fanwise.base.errors import ClosedError
from fanwise.pool import Pool, current


@pytest.fixture(scope="module")
def torch_pool() -> Iterator[Pool]:
    """A pool whose warm process has imported torch."""
    with Pool(cpus=2, seed=11) as pool:
        pool.submit(draw).result(within_s=120)
        yield pool


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_a_job_that_imports_torch_itself_starts_from_the_same_state(
    torch_pool: Pool, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def early() -> tuple[list[int], float, float]:
        return [torch.initial_seed()], random.random(), float(np.random.random())

    def late() -> tuple[bool, tuple[list[int], float, float]]:
        is_loaded = "torch" in sys.modules
        torch_module = importlib.import_module("".join(("tor", "ch")))  # hides the import from the search for modules
        numpy = importlib.import_module("".join(("num", "py")))
        return is_loaded, (torch_module.seeds, random.random(), float(numpy.random.random()))

    # Stands in for torch, which would be loaded once more: test_seeds has it loaded late.
    (tmp_path / "torch.py").write_text("seeds = []\nmanual_seed = seeds.append\nclass Tensor: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = torch_pool.needs(number=5).submit(early).result(within_s=30)
    assert pool.needs(number=5).submit(late).result(within_s=120) == (False, expected)


def test_torchs_threads_follow_the_lease(torch_pool: Pool) -> None:
    def threads() -> tuple[int, str]:
        torch.rand(400, 400) @ torch.rand(400, 400)  # a parallel operation in a forked process must not hang
        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    assert torch_pool.submit(threads).result(within_s=30) == (1, "1")
    assert torch_pool.needs(cpus=2).submit(threads).result(within_s=30) == (2, "2")


def test_tensors_are_sent_as_arguments_and_results_of_nested_jobs(torch_pool: Pool) -> None:
    def double(tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor * 2

    def parent(tensor: "torch.Tensor") -> "torch.Tensor":
        result: torch.Tensor = Pool().submit(double, tensor).result(30)
        return result

    assert torch.equal(torch_pool.submit(parent, torch.arange(5000)).result(within_s=60), torch.arange(5000) * 2)


class ReportingDataset(torch.utils.data.Dataset[Any]):
    """Tries to report from a data-loading worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        try:
            current().report({"from a data-loading worker": index})
        except ClosedError:
            return index, 1
        return index, 0


def test_data_loading_workers_work_and_send_nothing(torch_pool: Pool) -> None:
    def load() -> list[tuple[int, int]]:
        loader = torch.utils.data.DataLoader(ReportingDataset(), num_workers=2)
        items = [(int(index), int(refused)) for index, refused in loader]
        current().report({"from the job": len(items)})
        return items

    def receive(values: object) -> str:
        received.append(values)
        return "CONTINUE"

    received: list[object] = []
    handle = torch_pool.needs(on_report=receive).submit(load)
    assert handle.result(within_s=60) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert received == [{"from the job": 4}]

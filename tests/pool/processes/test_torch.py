"""Jobs that use torch: threads, and data loaders with worker processes."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fanwise.base.errors import ClosedError
from fanwise.pool import Pool, current


@pytest.fixture(scope="module")
def torch_pool() -> Iterator[Pool]:
    """A pool whose warm process has imported torch."""
    with Pool(cpus=2, seed=11) as pool:
        pool.submit(torch.initial_seed).result(within_s=120)
        yield pool


def test_torchs_threads_follow_the_lease(torch_pool: Pool) -> None:
    def threads() -> tuple[int, str]:
        torch.rand(400, 400) @ torch.rand(400, 400)  # a parallel operation in a forked process must not hang
        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    assert torch_pool.submit(threads).result(within_s=30) == (1, "1")
    assert torch_pool.needs(cpus=2).submit(threads).result(within_s=30) == (2, "2")


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

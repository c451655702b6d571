"""Runs that share a pool in which there is room for one of them."""

import threading

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.pool import Pool


def summed(run: Run) -> float:
    return run.sum(values, nn.Identity(), torch.arange(10))


def values(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x)
    return found


@pytest.mark.usefixtures("forked_pools")
def test_runs_at_once_come_one_after_another_where_there_is_room_for_one() -> None:
    begin = threading.Barrier(4)
    found: list[float] = []

    def work() -> None:
        begin.wait()
        found.extend(fanwise.run(summed, devices=2, pool=small) for _ in range(2))

    with Pool(seed=0, cpus=2) as small:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [45] * 8

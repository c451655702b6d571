"""Runs that share a pool in which there is not room for all of them."""

import functools
import logging
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import LeaseError
from fanwise.parallel import Run
from fanwise.pool import Pool
from fanwise.pool.current import current, in_job
from fanwise.testing import within


def averaged(run: Run) -> float:
    return run.mean(values, nn.Identity(), torch.arange(10))


def values(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x)
    return found


@pytest.mark.usefixtures("forked_pools")
@pytest.mark.parametrize("cpus", [2, 3])
def test_runs_at_once_come_one_after_another_where_there_is_room_for_one(cpus: int) -> None:
    begin = threading.Barrier(4)
    found: list[float] = []

    def work() -> None:
        begin.wait()
        found.extend(fanwise.run(averaged, devices=2, pool=small) for _ in range(2))

    with Pool(seed=0, cpus=cpus) as small:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [4.5] * 8


def waits_for(path: Path, run: Run) -> int:
    within(30, path.exists, "it may end")
    return run.world_size


@pytest.mark.usefixtures("forked_pools")
def test_a_run_that_waits_for_another_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, found = tmp_path / "end", [0, 0]

    def work(number: int) -> None:
        found[number] = fanwise.run(functools.partial(waits_for, path), devices=2, pool=small)

    with Pool(seed=0, cpus=3) as small:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        within(30, lambda: len(caplog.records) > 0, "it is said")
        path.touch()
        for thread in threads:
            thread.join()
    assert found == [2, 2]
    (told,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert told == (
        "1 of 2 processes of the run wait for a place: the pool has 3 CPUs, and other jobs or runs hold them.\n"
        "The run begins when these end."
    )


@pytest.mark.usefixtures("forked_pools")
def test_a_pool_is_used_for_one_device_too() -> None:
    with Pool(seed=0, cpus=2) as pool:
        assert fanwise.run(lambda run: (in_job(), current().cpus), devices="cpu", threads=2, pool=pool) == (True, 2)
        assert pool._engine.finished == 1
        with pytest.raises(LeaseError, match=r"1 processes with threads=3 .* room for 0: the pool has 2 CPUs"):
            fanwise.run(averaged, devices="cpu", threads=3, pool=pool)

"""Runs that share a pool without room for all of them."""

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


def mean_of_numbers(run: Run) -> float:
    return run.mean(values, nn.Identity(), torch.arange(10))


def values(model: nn.Module, x: Tensor) -> Tensor:
    outputs: Tensor = model(x)
    return outputs


@pytest.mark.usefixtures("forked_pools")
@pytest.mark.parametrize("cpus", [2, 3])
def test_concurrent_runs_wait_for_room(cpus: int) -> None:
    begin = threading.Barrier(4)
    means: list[float] = []

    def work() -> None:
        begin.wait()
        means.extend(fanwise.run(mean_of_numbers, devices=2, pool=small) for _ in range(2))

    with Pool(seed=0, cpus=cpus) as small:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert means == [4.5] * 8


def wait_for_file(path: Path, run: Run) -> int:
    within(30, path.exists, "the file exists")
    return run.world_size


@pytest.mark.usefixtures("forked_pools")
def test_a_run_that_waits_for_room_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, world_sizes = tmp_path / "end", [0, 0]

    def work(number: int) -> None:
        world_sizes[number] = fanwise.run(functools.partial(wait_for_file, path), devices=2, pool=small)

    with Pool(seed=0, cpus=3) as small:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        within(30, lambda: len(caplog.records) > 0, "the warning is logged")
        path.touch()
        for thread in threads:
            thread.join()
    assert world_sizes == [2, 2]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == (
        "1 of 2 processes of the run wait for a place: the pool has 3 CPUs, and other jobs or runs hold them.\n"
        "The run begins when these end."
    )


@pytest.mark.usefixtures("forked_pools")
def test_a_pool_is_used_for_one_device_too() -> None:
    with Pool(seed=0, cpus=2) as pool:
        assert fanwise.run(lambda run: (in_job(), current().cpus), devices="cpu", threads=2, pool=pool) == (True, 2)
        assert pool._engine.finished == 1
        with pytest.raises(LeaseError, match=r"1 processes with threads=3 .* room for 0: the pool has 2 CPUs"):
            fanwise.run(mean_of_numbers, devices="cpu", threads=3, pool=pool)

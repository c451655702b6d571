"""The processes of a run lease the named GPUs. The tests need no GPU."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fanwise.base.errors import WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.launch.local import LocalSupervisor
from fanwise.parallel.launch.pools import close_own_pool, own_pool
from fanwise.parallel.launch.settings import Settings
from fanwise.parallel.progress import Display
from fanwise.pool.current import current

pytestmark = pytest.mark.usefixtures("forked_pools")


@pytest.fixture(autouse=True)
def own_pools_are_closed() -> Iterator[None]:
    yield
    close_own_pool()


def run(train: Any, gpus: tuple[str, ...], **settings: Any) -> Any:  # Any: a training function, its result
    """Run one process per GPU, on CPU devices that lease these GPUs."""
    return LocalSupervisor(
        own_pool(gpus),
        train,
        Settings(
            devices=("cpu",) * len(gpus),
            shards=len(gpus),
            gpus=1,
            gpu_names=(("GPU-a", "cuda:0"), ("GPU-b", "cuda:1"), ("GPU-c", "cuda:2")),
            **settings,
        ),
        Display(False),
    ).run()


def visible_gpus(run: Run) -> list[Any]:
    return run._team.together(lambda: run._team.gather("looks", (os.environ["CUDA_VISIBLE_DEVICES"], current().gpus)))


def test_each_process_sees_one_of_the_named_gpus() -> None:
    assert run(visible_gpus, ("GPU-c", "GPU-a")) == [("GPU-c", ("GPU-c",)), ("GPU-a", ("GPU-a",))]
    assert own_pool(("GPU-c", "GPU-a")) is not own_pool(("GPU-a", "GPU-c"))
    assert [gpu.visible for gpu in own_pool(("GPU-c", "GPU-a")).machine.gpus] == ["GPU-c", "GPU-a"]
    assert own_pool().machine.gpus == ()


def fail_in_rank_1(run: Run) -> None:
    if run.rank == 1:
        raise KeyError("lost")
    run.mean(lambda model, x: x, nn.Identity(), torch.ones(4))


def die_in_rank_1(run: Run) -> None:
    if run.rank == 1:
        os._exit(3)
    run.mean(lambda model, x: x, nn.Identity(), torch.ones(4))


def test_errors_name_the_gpu() -> None:
    with pytest.raises(KeyError) as raised:
        run(fail_in_rank_1, ("GPU-a", "GPU-c"))
    assert any("in rank 1 of 2 (pid " in note and ") on cuda:2" in note for note in raised.value.__notes__)
    with pytest.raises(WorkerLostError, match=r"rank 1 of 2 \(pid \d+\) on cuda:2: "):
        run(die_in_rank_1, ("GPU-a", "GPU-c"), on_loss="stop")

"""Sums by a back end of torch.distributed between ranks, as on GPUs; here over Gloo, by the same code."""

import functools
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.comm.rank_groups import RankGroups
from fanwise.parallel.comm.shm_team import Again
from fanwise.parallel.launch.local import Supervisor
from fanwise.parallel.launch.settings import Settings, all_reduce_of
from fanwise.pool import Pool
from fanwise.testing.kills import kill_some, works_here

# N: samples, B: samples of a global batch
N, B, SHARDS = 61, 12, 6
X = torch.randn(N, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(2))


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def train(here: Callable[[Run, int], None], options: dict[str, Any], run: Run) -> tuple[list[Tensor], int]:
    """The parameters, and how many processes there were in the end. `here` is called before each step."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    frozen = nn.Linear(3, 3).requires_grad_(False)
    model.append(frozen)
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), losses, **options)
    for _ in run.epochs(3):
        for batch in run.batches((X, Y), B):
            here(run, step.batches)
            step(batch)
    return [param.detach() for param in model.parameters()], run.world_size


def nothing(run: Run, turn: int) -> None:
    """Nobody dies."""


def by_back_end(training: Callable[[Run], Any], pool: Pool, processes: int) -> Any:
    settings = Settings((("cpu",),) * processes, SHARDS, reduce="fast", all_reduce="back end")
    return Supervisor(pool, training, settings).run()


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5, "accumulate": 2}], ids=["plain", "clipped"])
def test_two_operands_have_the_sum_that_they_have_in_shared_memory(options: dict[str, Any], pool: Pool) -> None:
    training = functools.partial(train, nothing, options)
    expected, *_ = fanwise.run(training, devices=["cpu"] * 2, shards=SHARDS, reduce="fast", pool=pool)
    found, *_ = by_back_end(training, pool, 2)
    assert all(map(torch.equal, found, expected))


def dies(path: Path, victims: dict[int, int], run: Run, turn: int) -> None:
    """These ranks are killed before these steps, once; the others have begun them, or wait in a group already."""
    mark = path / f"{turn}"
    if victims.get(turn) == run.rank and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_those_that_are_left_go_on_in_a_group_of_their_own(pool: Pool, tmp_path: Path) -> None:
    training = functools.partial(train, functools.partial(dies, tmp_path, {2: 0, 7: 1}), {})
    found, size = by_back_end(training, pool, 3)
    expected, _ = fanwise.run(functools.partial(train, nothing, {}), devices="cpu", shards=SHARDS)
    assert size == 1 and len(list(tmp_path.iterdir())) == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 30))])
def test_kills_at_any_moment_end_in_a_group_of_those_that_live(seed: int, pool: Pool, tmp_path: Path) -> None:
    expected, *_ = fanwise.run(functools.partial(train, nothing, {}), devices="cpu", shards=SHARDS)
    path, over, killed = tmp_path / "pids", threading.Event(), list[int]()
    thread = kill_some(path, over, random.Random(seed), killed)
    try:
        training = functools.partial(train, functools.partial(works_here, path), {})
        found, *_ = by_back_end(training, pool, 4)
    finally:
        over.set()
        thread.join()
    assert killed
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class AloneInAView:
    """A team of one, which notes what it is asked for."""

    def __init__(self) -> None:
        self.members, self.place, self.view = (0,), 0, 2
        self.asked: list[str] = []
        self.is_lost = False

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: as Team
        self.asked.append(what)
        return [content]

    def barrier(self) -> None:
        self.asked.append("barrier")
        if self.is_lost:
            raise Again

    def look(self) -> None:
        pass


def test_a_sum_counts_when_all_have_come_to_the_barrier_after_it_and_a_group_is_of_one_view() -> None:
    team, tensor = AloneInAView(), torch.ones(3)
    groups = RankGroups(team, torch.device("cpu"))
    groups.all_reduce([tensor])
    groups.all_reduce([tensor])
    assert team.asked == ["makes a group", "barrier", "barrier", "barrier"]
    team.is_lost = True
    with pytest.raises(Again):
        groups.all_reduce([tensor])
    team.is_lost, team.view, team.asked = False, 4, []
    groups.all_reduce([tensor])
    assert team.asked == ["makes a group", "barrier", "barrier"]
    assert torch.equal(tensor, torch.ones(3))


def test_a_whole_gpu_each_and_no_order_is_what_the_back_end_is_taken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    gpus = Settings((("cuda:0",), ("cuda:1",)), 4, reduce="fast", gpus=1, called=(("GPU-1", "cuda:0"),))

    def changed(**values: Any) -> Settings:  # Any: settings
        return Settings(**{name: getattr(gpus, name) for name in gpus.__slots__} | values)

    assert all_reduce_of(gpus) == "back end"
    others = [
        changed(reduce="exact"),
        changed(gpus=0.5),
        changed(called=(("MIG-1", "cuda:0"),)),
        changed(devices=(("cpu",),)),
    ]
    assert [all_reduce_of(each) for each in others] == ["auto"] * 4
    assert all_reduce_of(changed(all_reduce="staged")) == "staged"
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert all_reduce_of(gpus) == "auto"

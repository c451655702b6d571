"""Optimizers that are updated as a whole or by slices."""

from collections.abc import Iterator

import pytest
import torch
from memory_teams import MemoryRun
from torch import nn
from torch.optim import SGD, Adam

from fanwise.parallel.comm.shm_areas import Areas
from fanwise.parallel.optim.sharded import StepOptimizer, StepOptimizers


@pytest.fixture
def params() -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(40.0)), nn.Parameter(torch.ones(3, 3))]


@pytest.fixture
def memory(params: list[nn.Parameter]) -> Iterator[Areas]:
    """Of one process, whose slice is all."""
    run = MemoryRun(1, "two-shot", "exact")
    made = run.teams[0].all_reduce(params)[1]
    assert made is not None
    yield made
    run.memory.close()


def with_slices(updates: StepOptimizer, memory: Areas) -> StepOptimizer:
    updates.enable_slices(memory)
    return updates


def test_an_optimizer_without_state_for_its_elements_stays_whole(params: list[nn.Parameter], memory: Areas) -> None:
    optimizers = StepOptimizers()
    assert not with_slices(optimizers.add(params, SGD(params), allow_slices=True), memory).sharded
    assert not with_slices(optimizers.add(params, Adam(params), allow_slices=False), memory).sharded
    assert not optimizers.add(params, Adam(params), allow_slices=True).sharded  # nobody has memory for slices
    assert with_slices(optimizers.add(params, Adam(params), allow_slices=True), memory).sharded


def test_a_second_step_makes_the_optimizer_whole(params: list[nn.Parameter], memory: Areas) -> None:
    optimizers, optimizer = StepOptimizers(), Adam(params)
    first = with_slices(optimizers.add(params, optimizer, allow_slices=True), memory)
    second = with_slices(optimizers.add(params, optimizer, allow_slices=True), memory)
    assert not first.sharded and not second.sharded
    assert optimizer in optimizers and Adam(params) not in optimizers


def test_loaded_state_cannot_be_updated_by_slices(params: list[nn.Parameter], memory: Areas) -> None:
    optimizer = Adam(params)
    updates = with_slices(StepOptimizer(params, optimizer, allow_slices=True), memory)
    assert updates.can_update_slices
    optimizer.load_state_dict(Adam(params).state_dict())
    assert not updates.can_update_slices

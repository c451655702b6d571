"""Optimizers that are updated as a whole or by slices."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from fanwise.parallel.comm.shm_areas import Areas
from fanwise.parallel.optim.step_optimizer import StepOptimizer, StepOptimizers
from fanwise.testing.memory_teams import MemoryRun


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


def test_what_has_no_state_for_its_elements_stays_whole(params: list[nn.Parameter], memory: Areas) -> None:
    optimizers = StepOptimizers()
    assert not with_slices(optimizers.of(params, SGD(params), in_parts=True), memory).is_sharded
    assert not with_slices(optimizers.of(params, Adam(params), in_parts=False), memory).is_sharded
    assert not optimizers.of(params, Adam(params), in_parts=True).is_sharded  # nobody has memory for slices
    assert with_slices(optimizers.of(params, Adam(params), in_parts=True), memory).is_sharded


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_steps_with_the_same_parameters_share_an_optimizer(
    kind: type[SGD | Adam], params: list[nn.Parameter], memory: Areas
) -> None:
    optimizers, optimizer = StepOptimizers(), kind(params, 0.1)
    first = with_slices(optimizers.of(params, optimizer, in_parts=True), memory)
    for in_parts in (True, False, True):
        assert optimizers.of(list(params), optimizer, in_parts=in_parts) is first
    assert optimizer in optimizers and Adam(params) not in optimizers


@pytest.mark.parametrize("other", ["other parameters", "clipping"])
def test_a_step_that_cannot_share_the_slices_makes_the_optimizer_whole(
    other: str, params: list[nn.Parameter], memory: Areas
) -> None:
    optimizers, optimizer = StepOptimizers(), Adam(params)
    first = with_slices(optimizers.of(params, optimizer, in_parts=True), memory)
    second = optimizers.of(
        params[:1] if other == "other parameters" else params, optimizer, in_parts=other != "clipping"
    )
    assert not with_slices(second, memory).is_sharded
    assert not first.is_sharded


def test_when_one_process_cannot_go_on_by_slices_none_does(params: list[nn.Parameter], memory: Areas) -> None:
    for others in ((None,), ((0, True),)):
        updates = with_slices(StepOptimizer(params, Adam(params), in_parts=True), memory)
        states = []
        for said in ((), others):
            updates.on_statuses([updates.status(), *said], is_sparse=False)
            states.append(updates.is_sharded)
        assert states == [True, False] and updates.status() is None


def test_a_sparse_gradient_needs_the_whole_optimizer(params: list[nn.Parameter], memory: Areas) -> None:
    updates = with_slices(StepOptimizer(params, Adam(params), in_parts=True), memory)
    updates.on_statuses([updates.status()], is_sparse=True)
    assert not updates.is_sharded

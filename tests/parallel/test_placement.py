"""Who updates what of an optimizer: the whole of it, or slices; and whole again for all when one needs it."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from fanwise.parallel.optimizers.placement import Placement, Placements
from fanwise.parallel.optimizers.sharded import SliceMemory
from fanwise.testing.memory_teams import MemoryRun


@pytest.fixture
def params() -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(40.0)), nn.Parameter(torch.ones(3, 3))]


@pytest.fixture
def memory(params: list[nn.Parameter]) -> Iterator[SliceMemory]:
    """Of one process, whose slice is all."""
    run = MemoryRun(1, "two-shot", "exact")
    made = run.teams[0].all_reduce(params)[1]
    assert made is not None
    yield made
    run.memory.close()


def shared(placement: Placement, memory: SliceMemory) -> Placement:
    placement.share(memory)
    return placement


def test_what_has_no_state_for_its_elements_stays_whole(params: list[nn.Parameter], memory: SliceMemory) -> None:
    placements = Placements()
    assert shared(placements.of(params, SGD(params), in_parts=True), memory).how == "whole"
    assert shared(placements.of(params, Adam(params), in_parts=False), memory).how == "whole"
    assert placements.of(params, Adam(params), in_parts=True).how == "whole"  # nobody has memory for slices
    assert shared(placements.of(params, Adam(params), in_parts=True), memory).how == "slices"


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_steps_with_the_same_parameters_share_a_placement(
    kind: type[SGD | Adam], params: list[nn.Parameter], memory: SliceMemory
) -> None:
    placements, optimizer = Placements(), kind(params, 0.1)
    first = shared(placements.of(params, optimizer, in_parts=True), memory)
    for in_parts in (True, False, True):
        assert placements.of(list(params), optimizer, in_parts=in_parts) is first
    assert optimizer in placements and Adam(params) not in placements


@pytest.mark.parametrize("other", ["other parameters", "clipping"])
def test_a_step_that_cannot_share_the_slices_makes_the_optimizer_whole(
    other: str, params: list[nn.Parameter], memory: SliceMemory
) -> None:
    placements, optimizer = Placements(), Adam(params)
    first = shared(placements.of(params, optimizer, in_parts=True), memory)
    second = placements.of(
        params[:1] if other == "other parameters" else params, optimizer, in_parts=other != "clipping"
    )
    assert shared(second, memory).how == "whole"
    assert first.how == "whole"


def test_when_one_process_cannot_go_on_by_slices_none_does(params: list[nn.Parameter], memory: SliceMemory) -> None:
    for others in ((None,), ((0, True),)):
        placement = shared(Placement(params, Adam(params), in_parts=True), memory)
        hows = []
        for said in ((), others):
            placement.heard([placement.said(), *said], is_sparse=False)
            hows.append(placement.how)
        assert hows == ["slices", "whole"] and placement.said() is None


def test_a_sparse_gradient_needs_the_whole_optimizer(params: list[nn.Parameter], memory: SliceMemory) -> None:
    placement = shared(Placement(params, Adam(params), in_parts=True), memory)
    placement.heard([placement.said()], is_sparse=True)
    assert placement.how == "whole"


def test_an_update_by_slices_is_that_of_the_whole_and_its_state_comes_back(
    params: list[nn.Parameter], memory: SliceMemory
) -> None:
    copies = [nn.Parameter(param.detach().clone()) for param in params]
    optimizer, whole = Adam(params, 0.1), Adam(copies, 0.1)
    placement = shared(Placement(params, optimizer, in_parts=True), memory)
    buckets = memory.layout.owned(0, 1)  # type: ignore[attr-defined]  # of the areas that it is
    for turn in range(3):
        grads = [torch.full_like(param, turn + 0.5) for param in params]
        placement.heard([placement.said()], is_sparse=False)
        placement.update([True, True], buckets, lambda bucket: bucket.of_flat(grads[bucket.param].view(-1)))  # noqa: B023
        placement.commit([True, True])
        for param, grad in zip(copies, grads, strict=True):
            param.grad = grad
        whole.step()
    assert all(map(torch.equal, params, copies))
    placement.make_whole()
    for param, copy in zip(params, copies, strict=True):
        assert all(torch.equal(optimizer.state[param][key], whole.state[copy][key]) for key in ("step", "exp_avg"))

"""The public functions of fanwise.rpc.autograd: validation, and error texts that programs of torch match."""

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from simulated_workers import World

from fanwise.rpc import autograd


@pytest.fixture
def attached(world: World) -> Iterator[World]:
    """This process is worker 0."""
    world[0].autograd = autograd.attach(world.agents[0])  # type: ignore[arg-type]  # a fake
    try:
        yield world
    finally:
        autograd.detach()


def test_gradients_of_a_context_are_found_by_its_id(attached: World) -> None:
    t = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        result = attached[0].call(1, torch.mul, t, t)
        autograd.backward(context_id, [result.sum()])
        assert torch.equal(autograd.get_gradients(context_id)[t], torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {context_id}"):
        autograd.get_gradients(context_id)


def test_a_context_may_be_released_before_it_is_left(attached: World) -> None:
    with autograd.context() as context_id:
        autograd._release_context(context_id)
    with pytest.raises(RuntimeError, match="Could not find autograd context"):
        autograd._release_context(context_id)
    with autograd.context() as another:
        assert another != context_id


@pytest.mark.parametrize(
    ("roots", "kind", "text"),
    [
        (None, TypeError, "incompatible function arguments"),
        ([3], TypeError, "a root is a int"),
        ([], RuntimeError, "No tensors provided for gradient computation"),
        ([torch.rand(2)], RuntimeError, "requires_grad not set on"),
        ([torch.rand(2, requires_grad=True)], RuntimeError, "is not a scalar, all roots need to be scalar"),
        ([torch.rand(1, requires_grad=True)], RuntimeError, "does not have a valid gradient function"),
    ],
)
def test_invalid_roots_raise_errors_with_torchs_texts(
    attached: World, roots: object, kind: type[Exception], text: str
) -> None:
    with autograd.context() as context_id, pytest.raises(kind, match=text):
        autograd.backward(context_id, cast(list[torch.Tensor], roots))


def test_a_context_needs_a_group() -> None:
    with pytest.raises(RuntimeError, match="Need to initialize distributed autograd"), autograd.context():
        raise AssertionError("not reached")


def test_debug_info_counts_contexts_and_passes(attached: World) -> None:
    seen: list[dict[str, str]] = []
    with autograd.context() as context_id:
        t = torch.ones(2, requires_grad=True)
        root = (t * 2).sum()
        t.register_hook(lambda _grad: seen.append(autograd._get_debug_info()))  # type: ignore[no-untyped-call]  # torch's
        autograd.backward(context_id, [root])
    assert seen == [{"num_current_backward_passes": "1", "num_autograd_contexts": "1"}]
    assert autograd._get_debug_info() == {"num_current_backward_passes": "0", "num_autograd_contexts": "0"}


def test_a_remote_value_runs_backward_alone_or_in_a_context(attached: World) -> None:
    t = torch.ones(2, requires_grad=True)
    autograd.backward_from((t * 3).sum(), -1, False)
    assert t.grad is not None and torch.equal(t.grad, torch.full((2,), 3.0))
    with autograd.context() as context_id:
        autograd.backward_from((t * 4).sum(), context_id, False)
        assert torch.equal(autograd.get_gradients(context_id)[t], torch.full((2,), 4.0))
    with pytest.raises(RuntimeError, match="should contain a tensor"):
        autograd.backward_from("text", -1, False)


def test_gradients_share_no_memory(attached: World) -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        autograd.backward(context_id, [((a + b) * torch.ones(2)).sum()])  # both get the same memory from torch
        grads = autograd.get_gradients(context_id)
        grads[a].mul_(0)
        assert torch.equal(grads[b], torch.ones(2)) and grads[a].is_contiguous()


def test_later_passes_do_not_modify_gradients_that_were_returned(attached: World) -> None:
    a = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        root = (a * 2).sum()
        autograd.backward(context_id, [root], retain_graph=True)
        first = autograd.get_gradients(context_id)[a]
        autograd.backward(context_id, [root])
        assert torch.equal(first, torch.full((2,), 2.0))
        assert torch.equal(autograd.get_gradients(context_id)[a], torch.full((2,), 4.0))

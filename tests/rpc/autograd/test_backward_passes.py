"""Backward passes over simulated workers."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import pytest
import torch
from simulated_workers import World
from torch.autograd import Function

from fanwise.base.errors import DeadlineExceeded, WorkerLostError
from fanwise.rpc import autograd
from fanwise.rpc.autograd.backward_pass import max_running
from fanwise.rpc.autograd.contexts import Context
from fanwise.rpc.autograd.messages import Completed
from fanwise.testing import within


class Fails(Function):
    """Raises `error` in its backward."""

    error: Exception = ValueError("no way back")

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *_grads: torch.Tensor) -> Any:
        raise Fails.error


class AddWeight(Function):
    """Adds a weight. Each backward counts the earlier gradients of the weight that are alive."""

    gradients: ClassVar[list["weakref.ref[torch.Tensor]"]]
    num_alive: ClassVar[list[int]]

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x + weight

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> Any:
        gradient = grads[0].clone()
        AddWeight.num_alive.append(sum(reference() is not None for reference in AddWeight.gradients))
        AddWeight.gradients.append(weakref.ref(gradient))
        return None, gradient


class Meet(Function):
    """Waits in its backward for the backward of another node."""

    barrier: ClassVar[threading.Barrier]

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> Any:
        Meet.barrier.wait(30)
        return grads[0]


def add_weight(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, AddWeight.apply(x, weight))  # type: ignore[no-untyped-call]  # torch's


def fail(x: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, Fails.apply(x))  # type: ignore[no-untyped-call]  # torch's


def watch(tensor: torch.Tensor, hook: Callable[[torch.Tensor], object]) -> None:
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's


def ones(requires_grad: bool = True) -> torch.Tensor:
    return torch.ones(2, 2, requires_grad=requires_grad)


@pytest.fixture
def context(world: World) -> Context:
    return world[0].autograd.new_context()


def backward(world: World, context: Context, *roots: torch.Tensor, retain_graph: bool = False) -> None:
    world[0].autograd.backward(context.id, roots, retain_graph)


def test_tensor_that_was_sent_and_not_used_does_not_block_the_pass(world: World, context: Context) -> None:
    t = ones()
    world[0].call(1, torch.add, t, t)
    backward(world, context, (t * 3).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 3.0))


def test_backward_of_torch_raises_instead_of_losing_gradients(world: World, context: Context) -> None:
    t, weight = ones(), ones()
    received = world[0].call(1, torch.add, t, t)
    loss = (received * weight).sum()
    (grad,) = torch.autograd.grad(loss, [weight], retain_graph=True)  # needs no call
    assert torch.equal(grad, torch.full((2, 2), 2.0))
    for retain_graph in (True, False):
        with pytest.raises(RuntimeError, match=r"fanwise.rpc.autograd.backward\(context_id, \[loss\]\)"):
            loss.backward(retain_graph=True)
        backward(world, context, loss, retain_graph=retain_graph)
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 4.0)) and t.grad is None
    with pytest.raises(RuntimeError, match="the gradients behind it would be lost"):
        world[0].call(1, lambda x: torch.autograd.backward((x * 2).sum()), t)


def test_message_that_never_arrived_counts_as_zero(world: World, context: Context) -> None:
    t = ones()
    assert world[0].autograd.on_send(1, [t]) is not None
    used = world[0].call(1, torch.mul, t, t)
    assert world[0].autograd.on_send(2, [t]) is not None, "the first message to this worker"
    backward(world, context, used.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_finished_worker_reports_messages_that_have_not_arrived(world: World, context: Context) -> None:
    t = ones()
    backward(world, context, world[0].call(1, torch.mul, t, t).sum())
    (arrived,) = world[1].autograd.contexts.get(context.id)._recv_functions()

    reply = world.agents[2].request(1, "autograd.begin", context.id, (0, 1), ((arrived, 12345), ()), False)
    assert reply.wait() == Completed((12345,))


def test_grad_attributes_are_unchanged(world: World, context: Context) -> None:
    local_leaf, remote_leaf = ones(), ones()
    local_leaf.grad = torch.full((2, 2), 7.0)
    result = world[0].call(1, lambda x: x * remote_leaf, local_leaf)
    backward(world, context, result.sum())
    assert torch.equal(local_leaf.grad, torch.full((2, 2), 7.0)) and remote_leaf.grad is None
    remote = world[1].autograd.contexts.get(context.id)
    assert torch.equal(remote.gradients()[remote_leaf], torch.ones(2, 2))


def test_weight_keeps_one_sum_of_many_micro_batches(world: World, context: Context) -> None:
    AddWeight.gradients, AddWeight.num_alive = [], []
    weight, micro_batches = ones(), [torch.full((2, 2), float(i)) for i in range(10)]
    results = [world[0].call(1, torch.mul, add_weight(x, weight), x) for x in micro_batches]
    backward(world, context, torch.stack(results).sum())
    assert torch.equal(context.gradients()[weight], torch.full((2, 2), 45.0))
    assert len(AddWeight.num_alive) == 10 and max(AddWeight.num_alive) <= 1 + max_running(), AddWeight.num_alive


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_micro_batches_run_concurrently_if_each_uses_one_thread(world: World, context: Context) -> None:
    Meet.barrier, weight, before = threading.Barrier(2), ones(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [Meet.apply(weight * factor) for factor in (1.0, 2.0, 4.0, 8.0)]  # type: ignore[no-untyped-call]
        results = [world[0].call(1, torch.mul, part, ones()) for part in parts]
        backward(world, context, torch.stack(results).sum())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(context.gradients()[weight], torch.full((2, 2), 15.0))


def test_gradient_that_a_hook_received_is_not_modified(world: World, context: Context) -> None:
    leaf, hook_grads, results = ones(), list[torch.Tensor](), []
    for factor in (1.0, 2.0, 4.0):
        part = leaf + 0  # its gradient shares memory with that of the leaf
        watch(part, hook_grads.append)
        results.append(world[0].call(1, torch.mul, part, torch.full((2, 2), factor)))
    backward(world, context, torch.stack(results).sum())
    assert torch.equal(context.gradients()[leaf], torch.full((2, 2), 7.0))
    assert sorted(float(gradient[0, 0]) for gradient in hook_grads) == [1.0, 2.0, 4.0]


def test_hooks_of_all_kinds_run_once_and_on_the_sum(world: World, context: Context) -> None:
    t = ones()
    node = (t + 0).grad_fn
    assert node is not None
    leaf = node.next_functions[0][0]
    assert leaf is not None
    calls: list[str] = []
    hook_grads: list[torch.Tensor] = []

    def doubled(grad: torch.Tensor) -> torch.Tensor:
        calls.append("tensor")
        hook_grads.append(grad)
        return grad * 2

    watch(t, doubled)
    leaf.register_prehook(lambda _grads: calls.append("before"))
    leaf.register_hook(lambda _inputs, _outputs: calls.append("after"))
    first, second = world[0].call(1, torch.mul, t, t), world[0].call(2, torch.add, t, t)
    backward(world, context, first.sum() + (second * t).sum())
    assert calls == ["tensor", "before", "after"]
    assert torch.equal(hook_grads[0], torch.full((2, 2), 6.0))
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 12.0))


def test_post_accumulate_hook_receives_the_sum_and_grad_is_restored(world: World, context: Context) -> None:
    t = ones()
    t.grad = torch.zeros(2, 2)
    hook_grads: list[torch.Tensor] = []
    t.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's
        lambda leaf: hook_grads.append(cast(torch.Tensor, leaf.grad).clone())
    )
    result = world[0].call(1, torch.mul, t, t)
    backward(world, context, (result * t).sum())
    assert len(hook_grads) == 1 and torch.equal(hook_grads[0], torch.full((2, 2), 3.0))
    assert torch.equal(t.grad, torch.zeros(2, 2))
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 3.0))


def test_sparse_gradients_add_up(world: World, context: Context) -> None:
    table = torch.rand(5, 3, dtype=torch.float64).requires_grad_()
    rows = torch.tensor([1, 1, 4])

    def look_up(weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(rows, weight, sparse=True)

    result = world[0].call(1, look_up, table)
    backward(world, context, result.sum(), retain_graph=True)
    backward(world, context, result.sum())
    grad = context.gradients()[table]
    assert grad.is_sparse
    assert torch.equal(grad.to_dense()[:, 0], torch.tensor([0, 4, 0, 0, 2], dtype=torch.float64))


def test_leaf_has_its_own_gradient_in_each_of_two_concurrent_contexts(world: World) -> None:
    weight = ones()
    gate = threading.Barrier(2)
    grads: list[torch.Tensor | None] = [None, None]

    def wait(_grad: torch.Tensor) -> None:
        gate.wait(30.0)

    def train(number: int) -> None:
        trainer = world[number]
        context = trainer.autograd.new_context()
        result = trainer.call(3, lambda x: x * weight, torch.full((2, 2), float(number + 1)))
        for _ in range(20):
            trainer.autograd.backward(context.id, [result.sum()], True)
        grads[number] = world[3].autograd.contexts.get(context.id).gradients()[weight]
        trainer.autograd.leave(context.id)

    # Both run the leaf at the same time.
    watch(weight, wait)
    threads = [threading.Thread(target=train, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [None if grad is None else float(grad[0, 0]) for grad in grads] == [20.0, 40.0]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 2])
def test_error_in_backward_keeps_its_type_and_names_its_worker(world: World, context: Context, place: int) -> None:
    t = ones()
    result = world[0].call(1, lambda x: world[1].call(place, fail, x) * x, t)
    with pytest.raises(ValueError, match=f"Error on Node {place}: no way back") as raised:
        backward(world, context, result.sum(), retain_graph=True)
    assert isinstance(raised.value, RuntimeError)
    within(30.0, lambda: all(one.autograd.num_passes() == 0 for one in world.workers), "no pass is left")
    backward(world, context, (t * 2).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_worker_lost_before_the_pass_is_named(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, lambda x: world[1].call(2, torch.mul, x, x), t)
    world.kill(2)
    with pytest.raises(WorkerLostError, match="worker2"):
        backward(world, context, result.sum())


def test_worker_whose_loss_is_not_known_yet_is_named(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, torch.mul, t, t)
    world.agents[1].dead = True
    with pytest.raises(WorkerLostError, match="worker worker1 was lost; it took part in context"):
        backward(world, context, result.sum())


def test_loss_of_a_worker_ends_the_pass(world: World, context: Context) -> None:
    t = ones()

    def die(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        watch(y, lambda _grad: world.kill(1))
        return y

    result = world[0].call(1, die, t)
    with pytest.raises(WorkerLostError, match="worker1"):
        backward(world, context, result.sum())


def test_loss_of_a_worker_without_gradients_does_not_end_the_pass(world: World, context: Context) -> None:
    t = ones()
    world[0].call(3, lambda: 5)
    result = world[0].call(1, torch.mul, t, t)
    world.kill(3)
    backward(world, context, result.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


# -- contexts ------------------------------------------------------------------------------------------------------


def num_open(world: World) -> list[int]:
    return [len(worker.autograd.contexts.all()) for worker in world.workers]


def test_leaving_releases_the_context_on_all_its_workers(world: World, context: Context) -> None:
    world[0].call(1, lambda: world[1].call(2, lambda: None))
    assert num_open(world) == [1, 1, 1, 0]
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is released everywhere")


def test_release_that_timed_out_is_sent_again(world: World, context: Context) -> None:
    world[0].call(1, lambda: None)
    world.refusal = DeadlineExceeded("no answer in 5 s.")
    world.agents[0].num_refused["autograd.release"] = 2
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is released everywhere")
    assert world.agents[0].requests.count((1, "autograd.release")) == 3


def test_late_message_does_not_recreate_a_released_context(world: World, context: Context) -> None:
    header = world[0].autograd.on_send(1, [])
    assert header is not None
    world[0].call(1, lambda: None)
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is released everywhere")
    t = ones()
    (tensor,) = world[1].autograd.on_receive(0, header, [t])
    assert tensor is t and num_open(world) == [0, 0, 0, 0]


def test_contexts_of_a_lost_worker_are_released(world: World, context: Context) -> None:
    world[0].call(1, lambda: world[1].call(2, lambda: None))
    world.kill(0)
    within(30.0, lambda: num_open(world)[1:] == [0, 0, 0], "the context is released on the remaining workers")


def test_messages_outside_of_a_context_have_no_header(world: World) -> None:
    assert world[0].autograd.on_send(1, [ones()]) is None
    result = world[0].call(1, torch.mul, ones(), ones())
    assert result.grad_fn is None and num_open(world) == [0, 0, 0, 0]


# -- public functions ----------------------------------------------------------------------------------------------


@pytest.fixture
def attached(world: World) -> Iterator[World]:
    """This process is worker 0."""
    world[0].autograd = autograd.attach(world.agents[0])  # type: ignore[arg-type]  # a fake
    try:
        yield world
    finally:
        autograd.detach()


def test_context_may_be_released_before_it_is_left(attached: World) -> None:
    with autograd.context() as context_id:
        autograd._release_context(context_id)
    with pytest.raises(RuntimeError, match="Could not find autograd context"):
        autograd._release_context(context_id)
    with autograd.context() as next_id:
        assert next_id != context_id


def test_context_needs_a_group() -> None:
    with pytest.raises(RuntimeError, match="Need to initialize distributed autograd"), autograd.context():
        raise AssertionError("not reached")


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

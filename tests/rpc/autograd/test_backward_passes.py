"""Backward passes over simulated workers, one rule at a time."""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest
import torch
from simulated_workers import World
from torch.autograd import Function

from fanwise.base.errors import DeadlineExceeded, WorkerLostError
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
    """Adds a weight. Counts how many of its earlier gradients of the weight are alive in each backward."""

    given: ClassVar[list["weakref.ref[torch.Tensor]"]]
    alive: ClassVar[list[int]]

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x + weight

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> Any:
        given = grads[0].clone()
        AddWeight.alive.append(sum(each() is not None for each in AddWeight.given))
        AddWeight.given.append(weakref.ref(given))
        return None, given


class Meet(Function):
    """Waits in its backward for the backward of another one."""

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


def test_an_unused_sent_tensor_does_not_block_the_pass(world: World, context: Context) -> None:
    t = ones()
    world[0].call(1, torch.add, t, t)
    backward(world, context, (t * 3).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 3.0))


def test_torchs_own_backward_raises_instead_of_losing_gradients(world: World, context: Context) -> None:
    t, weight = ones(), ones()
    came = world[0].call(1, torch.add, t, t)
    loss = (came * weight).sum()
    (grad,) = torch.autograd.grad(loss, [weight], retain_graph=True)  # nothing of it is behind the call
    assert torch.equal(grad, torch.full((2, 2), 2.0))
    for retain_graph in (True, False):
        with pytest.raises(RuntimeError, match=r"fanwise.rpc.autograd.backward\(context_id, \[loss\]\)"):
            loss.backward(retain_graph=True)
        backward(world, context, loss, retain_graph=retain_graph)
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 4.0)) and t.grad is None
    with pytest.raises(RuntimeError, match="the gradients behind it would be lost"):
        world[0].call(1, lambda x: torch.autograd.backward((x * 2).sum()), t)


def test_a_message_that_never_arrived_counts_as_zero(world: World, context: Context) -> None:
    t = ones()
    assert world[0].autograd.on_send(1, [t]) is not None
    used = world[0].call(1, torch.mul, t, t)
    lost_at_first_touch = world[0].autograd.on_send(2, [t])
    assert lost_at_first_touch is not None
    backward(world, context, used.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_a_finished_worker_reports_messages_that_had_not_arrived(world: World, context: Context) -> None:
    t = ones()
    backward(world, context, world[0].call(1, torch.mul, t, t).sum())
    (arrived,) = world[1].autograd.contexts.get(context.id)._recv_functions()
    over = (0, 1)
    told = world.agents[2].request(1, "autograd.begin", context.id, over, ((arrived, 12345), ()), False)
    assert told.wait() == Completed((12345,))


def test_a_leaf_without_a_gradient_is_not_in_the_result(world: World, context: Context) -> None:
    used, unused = ones(), ones()
    result = world[0].call(1, lambda x, _y: x * 2, used, unused)
    backward(world, context, result.sum())
    assert list(context.gradients()) == [used]


def test_grad_attributes_are_unchanged(world: World, context: Context) -> None:
    here, there = ones(), ones()
    here.grad = torch.full((2, 2), 7.0)
    result = world[0].call(1, lambda x: x * there, here)
    backward(world, context, result.sum())
    assert torch.equal(here.grad, torch.full((2, 2), 7.0)) and there.grad is None
    remote = world[1].autograd.contexts.get(context.id)
    assert torch.equal(remote.gradients()[there], torch.ones(2, 2))


def test_a_tensor_sent_back_to_where_it_came_from_sums_both_ways(world: World, context: Context) -> None:
    t = ones()
    back = world[0].call(1, lambda x: world[1].call(0, lambda y: y * 3, x) + x, t)
    backward(world, context, (back * t).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 8.0))


def test_a_call_to_oneself_has_gradients(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(0, torch.mul, t, t)
    world[0].call(0, torch.mul, t, t)  # and one that is not used
    backward(world, context, result.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_a_weight_keeps_one_sum_of_many_micro_batches(world: World, context: Context) -> None:
    AddWeight.given, AddWeight.alive = [], []
    weight, micro_batches = ones(), [torch.full((2, 2), float(i)) for i in range(10)]
    results = [world[0].call(1, torch.mul, add_weight(each, weight), each) for each in micro_batches]
    backward(world, context, torch.stack(results).sum())
    assert torch.equal(context.gradients()[weight], torch.full((2, 2), 45.0))
    assert len(AddWeight.alive) == 10 and max(AddWeight.alive) <= 1 + max_running(), AddWeight.alive


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


def test_a_gradient_that_a_hook_has_seen_is_not_modified(world: World, context: Context) -> None:
    leaf, seen, results = ones(), list[torch.Tensor](), []
    for factor in (1.0, 2.0, 4.0):
        part = leaf + 0  # its gradient goes on to the leaf in the same memory
        watch(part, seen.append)
        results.append(world[0].call(1, torch.mul, part, torch.full((2, 2), factor)))
    backward(world, context, torch.stack(results).sum())
    assert torch.equal(context.gradients()[leaf], torch.full((2, 2), 7.0))
    assert sorted(float(each[0, 0]) for each in seen) == [1.0, 2.0, 4.0]


def test_hooks_of_all_kinds_run_once_and_on_the_sum(world: World, context: Context) -> None:
    t = ones()
    node = (t + 0).grad_fn
    assert node is not None
    leaf = node.next_functions[0][0]
    assert leaf is not None
    calls: list[str] = []
    seen: list[torch.Tensor] = []

    def doubled(grad: torch.Tensor) -> torch.Tensor:
        calls.append("tensor")
        seen.append(grad)
        return grad * 2

    watch(t, doubled)
    leaf.register_prehook(lambda _grads: calls.append("before"))
    leaf.register_hook(lambda _given, _got: calls.append("after"))
    first, second = world[0].call(1, torch.mul, t, t), world[0].call(2, torch.add, t, t)
    backward(world, context, first.sum() + (second * t).sum())
    assert calls == ["tensor", "before", "after"]
    assert torch.equal(seen[0], torch.full((2, 2), 6.0))
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 12.0))


def test_a_post_accumulate_hook_sees_the_sum_and_grad_is_restored(world: World, context: Context) -> None:
    t = ones()
    t.grad = torch.zeros(2, 2)
    seen: list[torch.Tensor] = []
    t.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's
        lambda leaf: seen.append(cast(torch.Tensor, leaf.grad).clone())
    )
    result = world[0].call(1, torch.mul, t, t)
    backward(world, context, (result * t).sum())
    assert len(seen) == 1 and torch.equal(seen[0], torch.full((2, 2), 3.0))
    assert torch.equal(t.grad, torch.zeros(2, 2))
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 3.0))


def test_a_hook_on_a_received_tensor_runs_once(world: World, context: Context) -> None:
    t = ones()
    seen: list[torch.Tensor] = []

    def used_twice(x: torch.Tensor) -> torch.Tensor:
        watch(x, seen.append)
        return cast(torch.Tensor, world[1].call(2, torch.mul, x, x)) + x

    backward(world, context, world[0].call(1, used_twice, t).sum())
    assert len(seen) == 1 and torch.equal(seen[0], torch.full((2, 2), 3.0))


def test_a_received_tensor_may_be_changed_in_place(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, lambda x, y: x.mul_(3) + y, t, t)
    backward(world, context, result.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 4.0))


def test_sparse_gradients_travel_and_add_up(world: World, context: Context) -> None:
    table = torch.rand(5, 3, dtype=torch.float64).requires_grad_()
    rows = torch.tensor([1, 1, 4])

    def looked_up(weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(rows, weight, sparse=True)

    result = world[0].call(1, looked_up, table)
    backward(world, context, result.sum(), retain_graph=True)
    backward(world, context, result.sum())
    grad = context.gradients()[table]
    assert grad.is_sparse
    assert torch.equal(grad.to_dense()[:, 0], torch.tensor([0, 4, 0, 0, 2], dtype=torch.float64))


def test_without_retain_graph_a_second_pass_is_refused(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, torch.exp, t)
    loss = result.sum()
    backward(world, context, loss)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        backward(world, context, loss)


def test_a_leaf_used_in_two_contexts_at_once_gets_each_its_own(world: World) -> None:
    weight = ones()
    gate = threading.Barrier(2)
    grads: list[torch.Tensor | None] = [None, None]

    def meet(_grad: torch.Tensor) -> None:
        gate.wait(30.0)

    def trained(number: int) -> None:
        trainer = world[number]
        context = trainer.autograd.new_context()
        result = trainer.call(3, lambda x: x * weight, torch.full((2, 2), float(number + 1)))
        for _ in range(20):
            trainer.autograd.backward(context.id, [result.sum()], True)
        grads[number] = world[3].autograd.contexts.get(context.id).gradients()[weight]
        trainer.autograd.leave(context.id)

    # Both run the leaf at the same time.
    watch(weight, meet)
    threads = [threading.Thread(target=trained, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [None if grad is None else float(grad[0, 0]) for grad in grads] == [20.0, 40.0]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 2])
def test_an_error_in_backward_keeps_its_type_and_names_its_worker(world: World, context: Context, place: int) -> None:
    t = ones()
    result = world[0].call(1, lambda x: world[1].call(place, fail, x) * x, t)
    with pytest.raises(ValueError, match=f"Error on Node {place}: no way back") as caught:
        backward(world, context, result.sum(), retain_graph=True)
    assert isinstance(caught.value, RuntimeError)
    within(30.0, lambda: all(one.autograd.num_passes() == 0 for one in world.workers), "no pass is left")
    backward(world, context, (t * 2).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_a_worker_lost_before_the_pass_is_named(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, lambda x: world[1].call(2, torch.mul, x, x), t)
    world.kill(2)
    with pytest.raises(WorkerLostError, match="worker2"):
        backward(world, context, result.sum())


def test_a_worker_that_is_lost_before_this_is_announced_is_named(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, torch.mul, t, t)
    world.agents[1].dead = True
    with pytest.raises(WorkerLostError, match="worker worker1 was lost; it took part in context"):
        backward(world, context, result.sum())


def test_a_worker_lost_during_the_pass_ends_it(world: World, context: Context) -> None:
    t = ones()

    def dies(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        watch(y, lambda _grad: world.kill(1))
        return y

    result = world[0].call(1, dies, t)
    with pytest.raises(WorkerLostError, match="worker1"):
        backward(world, context, result.sum())


def test_the_loss_of_a_worker_without_gradients_does_not_matter(world: World, context: Context) -> None:
    t = ones()
    world[0].call(3, lambda: 5)
    result = world[0].call(1, torch.mul, t, t)
    world.kill(3)
    backward(world, context, result.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_leaving_the_context_during_a_pass_ends_the_pass(world: World, context: Context) -> None:
    t = ones()

    def leaves(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        watch(y, lambda _grad: world[1].autograd.leave(context.id))
        return y

    result = world[0].call(1, leaves, t)
    with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {context.id}"):
        backward(world, context, result.sum())


# -- contexts ------------------------------------------------------------------------------------------------------


def num_open(world: World) -> list[int]:
    return [len(worker.autograd.contexts.all()) for worker in world.workers]


def test_leaving_releases_the_context_on_all_workers_that_know_it(world: World, context: Context) -> None:
    world[0].call(1, lambda: world[1].call(2, lambda: None))
    assert num_open(world) == [1, 1, 1, 0]
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is released everywhere")


def test_a_release_that_timed_out_is_sent_again(world: World, context: Context) -> None:
    world[0].call(1, lambda: None)
    world.refusal = DeadlineExceeded("no answer in 5 s.")
    world.agents[0].refuses["autograd.release"] = 2
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is released everywhere")
    assert world.agents[0].told.count((1, "autograd.release")) == 3


def test_a_late_message_does_not_recreate_a_released_context(world: World, context: Context) -> None:
    header = world[0].autograd.on_send(1, [])
    assert header is not None
    world[0].call(1, lambda: None)
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is released everywhere")
    t = ones()
    (same,) = world[1].autograd.on_receive(0, header, [t])
    assert same is t and num_open(world) == [0, 0, 0, 0]


def test_the_contexts_of_a_lost_worker_are_released(world: World, context: Context) -> None:
    world[0].call(1, lambda: world[1].call(2, lambda: None))
    world.kill(0)
    within(30.0, lambda: num_open(world)[1:] == [0, 0, 0], "the context is released on the remaining workers")


def test_workers_are_known_without_gradients_too(world: World, context: Context) -> None:
    world[0].call(1, lambda: None)
    world[0].call(2, torch.add, ones(False), ones(False))
    assert context._known_worker_ids() == {1, 2}
    assert context._send_functions() == {} and context._recv_functions() == {}


def test_messages_outside_of_a_context_have_no_header(world: World) -> None:
    assert world[0].autograd.on_send(1, [ones()]) is None
    result = world[0].call(1, torch.mul, ones(), ones())
    assert result.grad_fn is None and num_open(world) == [0, 0, 0, 0]


def test_a_thread_has_at_most_one_context(world: World, context: Context) -> None:
    assert world[0].autograd.current_context() is context
    with pytest.raises(RuntimeError, match="Already have an autograd context id for this thread"):
        world[0].autograd.new_context()
    world[0].autograd.leave(context.id)
    with pytest.raises(RuntimeError, match="doesn't have a valid autograd context"):
        world[0].autograd.current_context()


def test_ids_contain_the_worker_and_its_incarnation(world: World) -> None:
    first = world[3].autograd.new_context().id
    assert first >> 48 == 3 and first >> 32 & 0xFFFF == world.agents[3].incarnation


def test_the_graph_has_the_names_of_torch(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, torch.mul, t, t)
    ((message, sent),) = context._send_functions().items()
    assert sent.name() == "torch::distributed::autograd::SendRpcBackward"
    assert [node.name() for node, _ in sent.next_functions if node is not None] == [
        "torch::autograd::AccumulateGrad"
    ] * 2
    (received,) = context._recv_functions().values()
    assert result.grad_fn is received and received.name() == "torch::distributed::autograd::RecvRpcBackward"
    assert message >> 48 == 0

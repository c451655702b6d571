"""Backward passes over simulated workers: each rule of the semantics by itself."""

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


class Refuses(Function):
    """Its backward raises what `error` says."""

    error: Exception = ValueError("no way back")

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:  # Any: torch's own
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *_grads: torch.Tensor) -> Any:  # Any: torch's own
        raise Refuses.error


class Weighs(Function):
    """Adds a weight; notes how many of the gradients that it gave to that are alive when it gives another."""

    given: ClassVar[list["weakref.ref[torch.Tensor]"]]
    alive: ClassVar[list[int]]

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # Any: torch's own
        return x + weight

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> Any:  # Any: torch's own
        given = grads[0].clone()
        Weighs.alive.append(sum(each() is not None for each in Weighs.given))
        Weighs.given.append(weakref.ref(given))
        return None, given


class Meets(Function):
    """Its backward waits for another one's."""

    barrier: ClassVar[threading.Barrier]

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:  # Any: torch's own
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> Any:  # Any: torch's own
        Meets.barrier.wait(30)
        return grads[0]


def weighed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, Weighs.apply(x, weight))  # type: ignore[no-untyped-call]  # torch's


def refused(x: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, Refuses.apply(x))  # type: ignore[no-untyped-call]  # torch's


def watch(tensor: torch.Tensor, hook: Callable[[torch.Tensor], object]) -> None:
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's


def ones(requires_grad: bool = True) -> torch.Tensor:
    return torch.ones(2, 2, requires_grad=requires_grad)


@pytest.fixture
def context(world: World) -> Context:
    return world[0].autograd.new_context()


def backward(world: World, context: Context, *roots: torch.Tensor, retain_graph: bool = False) -> None:
    world[0].autograd.backward(context.id, roots, retain_graph)


def test_what_was_sent_and_not_used_is_no_reason_to_wait(world: World, context: Context) -> None:
    t = ones()
    world[0].call(1, torch.add, t, t)
    backward(world, context, (t * 3).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 3.0))


def test_a_backward_pass_of_torchs_own_does_not_lose_gradients_in_silence(world: World, context: Context) -> None:
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


def test_what_never_arrived_counts_as_zero(world: World, context: Context) -> None:
    t = ones()
    assert world[0].autograd.on_send(1, [t]) is not None
    used = world[0].call(1, torch.mul, t, t)
    lost_at_first_touch = world[0].autograd.on_send(2, [t])
    assert lost_at_first_touch is not None
    backward(world, context, used.sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_a_worker_that_is_through_tells_late_beginners_what_had_not_arrived(world: World, context: Context) -> None:
    t = ones()
    backward(world, context, world[0].call(1, torch.mul, t, t).sum())
    (arrived,) = world[1].autograd.contexts.get(context.id)._recv_functions()
    over = (0, 1)
    told = world.agents[2].request(1, "autograd.begin", context.id, over, ((arrived, 12345), ()), False)
    assert told.wait() == Completed((12345,))


def test_a_leaf_that_no_gradient_reaches_is_not_in_the_answer(world: World, context: Context) -> None:
    used, unused = ones(), ones()
    result = world[0].call(1, lambda x, _y: x * 2, used, unused)
    backward(world, context, result.sum())
    assert list(context.gradients()) == [used]


def test_grad_attributes_stay_as_they_are(world: World, context: Context) -> None:
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


def test_of_many_micro_batches_a_weight_keeps_one_sum_and_not_all_gradients(world: World, context: Context) -> None:
    Weighs.given, Weighs.alive = [], []
    weight, micro_batches = ones(), [torch.full((2, 2), float(i)) for i in range(10)]
    results = [world[0].call(1, torch.mul, weighed(each, weight), each) for each in micro_batches]
    backward(world, context, torch.stack(results).sum())
    assert torch.equal(context.gradients()[weight], torch.full((2, 2), 45.0))
    assert len(Weighs.alive) == 10 and max(Weighs.alive) <= 1 + max_running(), Weighs.alive


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_micro_batches_run_at_the_same_time_where_each_computes_with_one_thread(world: World, context: Context) -> None:
    Meets.barrier, weight, before = threading.Barrier(2), ones(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [Meets.apply(weight * factor) for factor in (1.0, 2.0, 4.0, 8.0)]  # type: ignore[no-untyped-call]
        results = [world[0].call(1, torch.mul, part, ones()) for part in parts]
        backward(world, context, torch.stack(results).sum())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(context.gradients()[weight], torch.full((2, 2), 15.0))


def test_what_a_hook_has_seen_is_not_added_to(world: World, context: Context) -> None:
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
    leaf.register_prehook(lambda grads: calls.append("before"))
    leaf.register_hook(lambda _given, _got: calls.append("after"))
    first, second = world[0].call(1, torch.mul, t, t), world[0].call(2, torch.add, t, t)
    backward(world, context, first.sum() + (second * t).sum())
    assert calls == ["tensor", "before", "after"]
    assert torch.equal(seen[0], torch.full((2, 2), 6.0))
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 12.0))


def test_a_post_accumulate_hook_sees_the_sum_and_grad_is_put_back(world: World, context: Context) -> None:
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

    # Both are in the middle of the leaf's run at the same time.
    watch(weight, meet)
    threads = [threading.Thread(target=trained, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [None if grad is None else float(grad[0, 0]) for grad in grads] == [20.0, 40.0]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 2])
def test_an_error_in_backward_comes_back_in_its_type_and_with_its_worker(
    world: World, context: Context, place: int
) -> None:
    t = ones()
    result = world[0].call(1, lambda x: world[1].call(place, refused, x) * x, t)
    with pytest.raises(ValueError, match=f"Error on Node {place}: no way back") as caught:
        backward(world, context, result.sum(), retain_graph=True)
    assert isinstance(caught.value, RuntimeError)
    # The failed pass is forgotten on all workers, and another begins anew.
    within(30.0, lambda: all(one.autograd.num_passes() == 0 for one in world.workers), "no pass is left")
    backward(world, context, (t * 2).sum())
    assert torch.equal(context.gradients()[t], torch.full((2, 2), 2.0))


def test_the_death_of_a_worker_on_the_way_names_it(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, lambda x: world[1].call(2, torch.mul, x, x), t)
    world.kill(2)
    with pytest.raises(WorkerLostError, match="worker2"):
        backward(world, context, result.sum())


def test_a_worker_whose_link_ends_before_its_death_is_announced_is_named(world: World, context: Context) -> None:
    t = ones()
    result = world[0].call(1, torch.mul, t, t)
    world.agents[1].dead = True
    with pytest.raises(WorkerLostError, match="worker worker1 was lost; it took part in context"):
        backward(world, context, result.sum())


def test_the_death_of_a_worker_during_the_pass_ends_it(world: World, context: Context) -> None:
    t = ones()

    def dies(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        watch(y, lambda _grad: world.kill(1))
        return y

    result = world[0].call(1, dies, t)
    with pytest.raises(WorkerLostError, match="worker1"):
        backward(world, context, result.sum())


def test_the_death_of_a_worker_without_gradients_does_not_matter(world: World, context: Context) -> None:
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


def test_leaving_releases_on_all_who_know_also_through_others(world: World, context: Context) -> None:
    world[0].call(1, lambda: world[1].call(2, lambda: None))
    assert num_open(world) == [1, 1, 1, 0]
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is gone everywhere")


def test_a_release_that_was_not_answered_in_time_is_told_again(world: World, context: Context) -> None:
    world[0].call(1, lambda: None)
    world.refusal = DeadlineExceeded("no answer in 5 s.")
    world.agents[0].refuses["autograd.release"] = 2
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is gone everywhere")
    assert world.agents[0].told.count((1, "autograd.release")) == 3


def test_a_late_message_does_not_bring_a_released_context_back(world: World, context: Context) -> None:
    header = world[0].autograd.on_send(1, [])
    assert header is not None
    world[0].call(1, lambda: None)
    world[0].autograd.leave(context.id)
    within(30.0, lambda: num_open(world) == [0, 0, 0, 0], "the context is gone everywhere")
    t = ones()
    (same,) = world[1].autograd.on_receive(0, header, [t])
    assert same is t and num_open(world) == [0, 0, 0, 0]


def test_the_contexts_of_a_dead_worker_are_cleaned_up(world: World, context: Context) -> None:
    world[0].call(1, lambda: world[1].call(2, lambda: None))
    world.kill(0)
    within(30.0, lambda: num_open(world)[1:] == [0, 0, 0], "the context is gone where somebody lives")


def test_workers_are_known_also_without_gradients(world: World, context: Context) -> None:
    world[0].call(1, lambda: None)
    world[0].call(2, torch.add, ones(False), ones(False))
    assert context._known_worker_ids() == {1, 2}
    assert context._send_functions() == {} and context._recv_functions() == {}


def test_outside_of_a_context_nothing_is_carried(world: World) -> None:
    assert world[0].autograd.on_send(1, [ones()]) is None
    result = world[0].call(1, torch.mul, ones(), ones())
    assert result.grad_fn is None and num_open(world) == [0, 0, 0, 0]


def test_a_thread_has_one_context(world: World, context: Context) -> None:
    assert world[0].autograd.current_context() is context
    with pytest.raises(RuntimeError, match="Already have an autograd context id for this thread"):
        world[0].autograd.new_context()
    world[0].autograd.leave(context.id)
    with pytest.raises(RuntimeError, match="doesn't have a valid autograd context"):
        world[0].autograd.current_context()


def test_ids_carry_the_worker_and_its_life(world: World) -> None:
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

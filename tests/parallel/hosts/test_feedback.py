"""Gradients between hosts with fewer bytes: nothing is lost but for a while, and a step that is made again begins anew.

Hosts are threads here, and what they send goes through queues.
"""

import threading
from collections import Counter, defaultdict
from queue import SimpleQueue

import pytest
import torch
from torch import Tensor, nn

from fanwise.parallel import BFloat16, PowerSGD
from fanwise.parallel.hosts.feedback import Between, Feedback, Parts
from fanwise.parallel.reductions import Compression, check_reduce

# A matrix that pays at rank 2, a small one, a vector, and one of another type.
PARAMS = [
    nn.Parameter(torch.zeros(40, 6, 5)),
    nn.Parameter(torch.zeros(2, 3)),
    nn.Parameter(torch.zeros(7)),
    nn.Parameter(torch.zeros(20, 30, dtype=torch.float64)),
]
EACH = [BFloat16(), PowerSGD(2)]
by_kind = pytest.mark.parametrize("how", EACH, ids=repr)


def made(how: Compression, hosts: int) -> list[Feedback]:
    return [Feedback(how, PARAMS, lambda host=host: (host, hosts)) for host in range(hosts)]  # type: ignore[misc]


def grads_of(seed: int) -> Parts:
    generator = torch.Generator().manual_seed(seed)
    return {
        place: torch.randn(param.numel(), generator=generator, dtype=torch.float64).to(param.dtype)
        for place, param in enumerate(PARAMS)
    }


def totals(feedbacks: list[Feedback], grads: list[Parts], counted: Counter[int] | None = None) -> list[Parts]:
    """What becomes of the gradients in each host; not committed. `counted`: bytes that each has sent."""
    hosts, queues = len(feedbacks), defaultdict[tuple[int, int, str], SimpleQueue[Tensor]](SimpleQueue)
    given = [{place: grad.clone() for place, grad in its.items()} for its in grads]
    raised: list[BaseException] = []

    def live(host: int) -> None:
        def send(to: int, what: str, flat: Tensor) -> None:
            assert flat.dtype is torch.uint8
            if counted is not None:
                counted[host] += flat.numel()
            queues[host, to, what].put(flat.clone())

        try:
            between = Between(hosts, host, send, lambda of, what: queues[of, host, what].get(timeout=20))
            feedbacks[host].total(given[host], between)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=live, args=(host,)) for host in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return given


def committed(feedbacks: list[Feedback], grads: list[Parts]) -> list[Parts]:
    found = totals(feedbacks, grads)
    for feedback in feedbacks:
        feedback.commit()
    return found


def same(one: Parts, other: Parts) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[place], other[place]) for place in one)


@by_kind
@pytest.mark.parametrize("hosts", [2, 3])
def test_what_is_applied_and_what_is_left_are_all_that_was_computed(how: Compression, hosts: int) -> None:
    feedbacks, applied, computed = made(how, hosts), Counter[int](), Counter[int]()
    for step in range(6):
        grads = [grads_of(10 * step + host) for host in range(hosts)]
        found = committed(feedbacks, grads)
        assert all(same(found[0], its) for its in found), "the same bits in all hosts"
        for place in range(len(PARAMS)):
            applied[place] += found[0][place]  # type: ignore[assignment]
            computed[place] += sum(its[place] for its in grads)  # type: ignore[assignment]
    for place in range(len(PARAMS)):
        left = sum(feedback.errors.get(place, torch.zeros(())) for feedback in feedbacks)
        torch.testing.assert_close(applied[place] + left, computed[place], rtol=1e-4, atol=1e-4)
    assert feedbacks[0].errors[0].abs().max() > 1e-4, "something is left out"


@by_kind
def test_a_step_that_is_made_again_begins_from_what_was_committed(how: Compression) -> None:
    """One of three hosts is lost in the third step, when it has sent: the others go on as if it had left before."""
    three, two = made(how, 3), made(how, 3)
    for step in range(2):
        grads = [grads_of(10 * step + host) for host in range(3)]
        for group in (three, two):
            committed(group, grads)
    third = [grads_of(20 + host) for host in range(3)]
    totals(three, third)
    for feedback in three:
        feedback.abort()
    survivors, reference = three[:2], two[:2]
    again, expected = committed(survivors, third[:2]), committed(reference, third[:2])
    assert same(again[0], expected[0]) and same(survivors[1].errors, reference[1].errors)
    broken = made(how, 3)  # one that keeps what it has made in the step that did not count
    for step in range(2):
        committed(broken, [grads_of(10 * step + host) for host in range(3)])
    committed(broken, third)
    assert not same(committed(broken[:2], third[:2])[0], expected[0])


@by_kind
def test_a_checkpoint_goes_on_with_the_same_bits_and_on_other_hosts_with_the_same_sum(how: Compression) -> None:
    feedbacks = made(how, 2)
    committed(feedbacks, [grads_of(0), grads_of(1)])
    feedbacks[0].of_all = [feedback.errors for feedback in feedbacks]
    state = feedbacks[0].state_dict()
    resumed, other = made(how, 2), made(how, 3)
    for feedback in (*resumed, *other):
        feedback.load_state_dict(state)
    grads = [grads_of(2), grads_of(3)]
    assert same(committed(feedbacks, grads)[0], committed(resumed, grads)[0])
    for place in state["errors"][0]:
        sums = [sum(errors[place] for errors in each) for each in (state["errors"], [its.errors for its in other])]
        torch.testing.assert_close(*sums)


def test_errors_of_one_way_are_sent_by_another() -> None:
    rounded, low = made(BFloat16(), 1), made(PowerSGD(2), 1)
    committed(rounded, [grads_of(0)])
    low[0].load_state_dict(rounded[0].state_dict())
    assert low[0].factors == {} and low[0].errors.keys() == {0, 1, 2, 3}
    given, left = grads_of(1), low[0].errors[2].clone()
    found = committed(low, [given])[0]
    assert torch.equal(found[2], given[2] + left) and not low[0].errors[2].any()


@by_kind
def test_an_overflow_leaves_no_trace(how: Compression) -> None:
    feedbacks = made(how, 2)
    committed(feedbacks, [grads_of(0), grads_of(1)])
    before = [dict(feedback.errors) for feedback in feedbacks]
    poisoned = grads_of(2)
    poisoned[0][3] = torch.inf
    committed(feedbacks, [poisoned, grads_of(3)])
    assert all(torch.isfinite(errors).all() for feedback in feedbacks for errors in feedback.errors.values())
    assert torch.equal(feedbacks[0].errors[0], before[0][0])


def test_gradients_of_nothing_do_not_end_the_use_of_a_matrix() -> None:
    feedbacks = made(PowerSGD(2), 2)
    nothing = {place: torch.zeros_like(grad) for place, grad in grads_of(0).items()}
    committed(feedbacks, [nothing, nothing])
    found = committed(feedbacks, [grads_of(0), grads_of(1)])
    assert found[0][0].abs().max() > 0.1


def test_a_matrix_of_low_rank_arrives_whole() -> None:
    feedbacks, rows = made(PowerSGD(2), 2), torch.arange(40.0).view(-1, 1)
    grads = grads_of(0) | {0: (rows @ torch.linspace(-1, 1, 30).view(1, -1)).view(-1)}
    found = committed(feedbacks, [grads, grads])
    torch.testing.assert_close(found[0][0], 2 * grads[0], rtol=1e-4, atol=1e-4)


@by_kind
def test_fewer_bytes_are_sent(how: Compression) -> None:
    counted = Counter[int]()
    totals(made(how, 2), [grads_of(0), grads_of(1)], counted)
    whole = sum(param.numel() * param.element_size() for param in PARAMS)
    matrices = 2 * (40 + 30) * 4 + 2 * (20 + 30) * 8
    expected = matrices + (6 + 7) * 4 if isinstance(how, PowerSGD) else 2 * sum(param.numel() for param in PARAMS)
    assert expected <= counted[0] <= expected + 4 < whole / 2


@pytest.mark.parametrize(
    ("reduce", "error", "text"),
    [
        (PowerSGD, TypeError, r"right:  reduce=PowerSGD\(\)"),
        ("powersgd", ValueError, "unknown reduce='powersgd'"),
        (3, ValueError, "unknown reduce=3; known: 'exact', 'fast'"),
    ],
)
def test_what_is_no_reduction_is_refused(reduce: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_reduce(reduce)


def test_a_rank_is_at_least_1() -> None:
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        PowerSGD(0)

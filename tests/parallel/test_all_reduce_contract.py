"""What adds gradients over shared memory keeps the contract; what is broken does not."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from fanwise.parallel.comm.all_reduce import AllReduce, AllReducePlan
from fanwise.parallel.comm.shared_memory import AllReduceKind
from fanwise.testing.all_reduce_contract import (
    CHECKS,
    Case,
    Check,
    Peer,
    check_sum,
    hand_in,
    large_parameters_are_summed_too,
    met,
    params_of,
)
from fanwise.testing.memory_teams import play

KINDS: tuple[AllReduceKind, ...] = ("one-shot", "two-shot")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("all_reduce", KINDS)
def test_shared_memory_keeps_the_contract(all_reduce: AllReduceKind, check: Check) -> None:
    for size in (1, 3) if "gone" not in check.__name__ else (2, 4):
        play(size, all_reduce, check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_operand_a_process_keeps_the_contract(check: Check) -> None:
    play(3, "two-shot", check, reduce="fast")


def test_who_is_late_adds_what_was_handed_in_when_another_is_at_the_next_sum() -> None:
    is_handed_in = threading.Event()

    def check(peer: Peer) -> None:
        params = params_of(peer, (torch.float32,))
        made, case, later = peer.make(params), Case(params, seed=1), Case(params, seed=2)

        def meet_late() -> AllReducePlan:
            found = met(peer, case)
            assert is_handed_in.wait(20), "the other has handed in the next one"
            return found

        def first() -> list[Tensor | None]:
            made.begin()
            hand_in(peer, made, case)
            return made.finish(meet_late if peer.team.place == 0 else lambda: met(peer, case))

        def second() -> list[Tensor | None]:
            made.begin()
            hand_in(peer, made, later)
            is_handed_in.set()
            return made.finish(lambda: met(peer, later))

        sums = peer.team.together(lambda: [None if grad is None else grad.clone() for grad in first()])
        peer.team.together(second)
        check_sum(peer, sums, case)

    play(2, "one-shot", check)


class Broken:
    """As another one, but for one thing."""

    def __init__(self, peer: Peer, params: Sequence[nn.Parameter]) -> None:
        self.peer = peer
        self.params = list(params)
        self.made = peer.make(params)
        self.begin, self.submit, self.finish = self.made.begin, self.made.submit, self.made.finish
        self.release, self.abort = self.made.release, self.made.abort


def adds_by_process(broken: Broken) -> None:
    """The processes one after another, whatever the tree is."""

    def finish(make_plan: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        plan = make_plan()
        found: list[Tensor | None] = [None] * len(broken.params)
        # All that it can see is what was handed in here: so it hands it round.
        for theirs in broken.peer.team.gather("hands round", handed):
            for _, first, grads in theirs:
                for place, grad in enumerate(grads, first):
                    own = found[place]
                    found[place] = grad if own is None or grad is None else own + grad
        return [None if grad is None else grad / (plan.count or 1) for grad in found]

    handed: list[tuple[int, int, Sequence[Tensor | None]]] = []
    broken.begin = handed.clear
    broken.submit = lambda node_index, first_param, grads: handed.append((node_index, first_param, grads))
    broken.finish = finish


def gives_zeros_for_none(broken: Broken) -> None:
    def finish(make_plan: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        found = broken.made.finish(make_plan)
        both = zip(found, broken.params, strict=True)
        return [torch.zeros_like(param) if grad is None else grad for grad, param in both]

    broken.finish = finish


def takes_the_first_bucket_only(broken: Broken) -> None:
    def submit(node_index: int, first_param: int, grads: Sequence[Tensor | None]) -> None:
        if first_param == 0:
            broken.made.submit(node_index, first_param, grads)

    broken.submit = submit


def keeps_what_was_aborted(broken: Broken) -> None:
    seen: set[tuple[int, int]] = set()

    def submit(node_index: int, first_param: int, grads: Sequence[Tensor | None]) -> None:
        new = [None if (node_index, index) in seen else grad for index, grad in enumerate(grads, first_param)]
        seen.update((node_index, index) for index in range(first_param, first_param + len(grads)))
        broken.made.submit(node_index, first_param, new)

    def finish(make_plan: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        seen.clear()
        return broken.made.finish(make_plan)

    broken.submit, broken.finish, broken.abort = submit, finish, lambda: None


def forgets_the_count(broken: Broken) -> None:
    def finish(make_plan: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        def without() -> AllReducePlan:
            plan = make_plan()
            return AllReducePlan(plan.rank_nodes, plan.shards, plan.has_grad, 48.0)

        return broken.made.finish(without)

    broken.finish = finish


def takes_sparse_ones(broken: Broken) -> None:
    def submit(node_index: int, first_param: int, grads: Sequence[Tensor | None]) -> None:
        broken.made.submit(node_index, first_param, [None if grad is None else grad.to_dense() for grad in grads])

    broken.submit = submit


def shares_what_it_gives(broken: Broken) -> None:
    """One tensor for all processes, which here are threads."""

    def finish(make_plan: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        own = broken.made.finish(make_plan)
        first: list[Tensor | None] = SHARED.setdefault(len(COUNT), own)
        broken.peer.team.gather("has it", None)
        if broken.peer.team.place == 0:
            COUNT.append(1)
        broken.peer.team.gather("gives it", None)
        return first

    broken.finish = finish


SHARED: dict[int, list[Tensor | None]] = {}
COUNT: list[int] = []


@pytest.mark.parametrize(
    "breaks",
    [
        adds_by_process,
        gives_zeros_for_none,
        takes_the_first_bucket_only,
        keeps_what_was_aborted,
        forgets_the_count,
        takes_sparse_ones,
        shares_what_it_gives,
    ],
    ids=lambda breaks: breaks.__name__,
)
def test_what_is_broken_fails_a_check(breaks: Callable[[Broken], None]) -> None:
    def make_for(peer: Peer) -> Callable[[Sequence[nn.Parameter]], AllReduce]:
        def make(params: Sequence[nn.Parameter]) -> AllReduce:
            broken = Broken(peer, params)
            breaks(broken)
            return broken

        return make

    failed = []
    for check in CHECKS:
        if check is large_parameters_are_summed_too:
            continue  # finds what others find, and takes longest

        def checked(peer: Peer, check: Check = check) -> None:
            check(Peer(peer.team, make_for(peer), peer.is_exact, peer.leave, peer.lost, peer.goes_on))

        try:
            play(2, "two-shot", checked)
        except (AssertionError, KeyError):
            failed.append(check.__name__)
    assert failed and len(failed) < len(CHECKS)

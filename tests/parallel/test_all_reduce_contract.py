"""Every way to add gradients over shared memory keeps the contract."""

import threading

import pytest
import torch
from all_reduce_contract import (
    CHECKS,
    Case,
    Check,
    Peer,
    check_sum,
    met,
    nodes_of,
    params_of,
)
from memory_teams import play

from fanwise.parallel.comm.all_reduce import AllReducePlan, Grads
from fanwise.parallel.comm.shared_memory import AllReduceKind

KINDS: tuple[AllReduceKind, ...] = ("one-shot", "two-shot")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("all_reduce", KINDS)
def test_shared_memory_keeps_the_contract(all_reduce: AllReduceKind, check: Check) -> None:
    for size in (1, 3) if "gone" not in check.__name__ else (2, 4):
        play(size, all_reduce, check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_operand_a_process_keeps_the_contract(check: Check) -> None:
    play(3, "two-shot", check, reduce="fast")


def test_a_late_process_adds_the_old_nodes_when_another_has_sent_those_of_the_next_sum() -> None:
    is_sent = threading.Event()

    def check(peer: Peer) -> None:
        params = params_of(peer, (torch.float32,))
        made, case, later = peer.make(params), Case(params, seed=1), Case(params, seed=2)

        def meet_late() -> AllReducePlan:
            found = met(peer, case)
            assert is_sent.wait(20), "the other process has sent its nodes of the next sum"
            return found

        def meet_later() -> AllReducePlan:
            is_sent.set()
            return met(peer, later)

        def first() -> Grads:
            made.reduce_scatter(nodes_of(peer, case), meet_late if peer.team.index == 0 else lambda: met(peer, case))
            return made.all_gather()

        def second() -> Grads:
            made.reduce_scatter(nodes_of(peer, later), meet_later)
            return made.all_gather()

        sums = peer.team.together(lambda: [None if grad is None else grad.clone() for grad in first()])
        peer.team.together(second)
        check_sum(peer, sums, case)

    play(2, "one-shot", check)

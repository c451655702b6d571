"""Every way to add gradients over shared memory keeps the contract."""

import threading
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from fanwise.base.errors import WorkerLostError
from fanwise.parallel.comm.all_reduce import AllReducePlan
from fanwise.parallel.comm.fast import FastAllReduce
from fanwise.parallel.comm.shared_memory import AllReduceKind
from fanwise.parallel.comm.sums import TeamSums
from fanwise.parallel.comm.team import Alone
from fanwise.parallel.comm.torch_group import TorchGroup
from fanwise.parallel.optim.step_optimizer import StepOptimizer
from fanwise.parallel.step.gradients import Partial
from fanwise.parallel.step.tree import Node
from fanwise.testing.all_reduce_contract import (
    CHECKS,
    Case,
    Check,
    Peer,
    check_sum,
    hand_in,
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


def test_a_sum_that_fails_is_aborted() -> None:
    class Fails:
        def all_reduce(self, tensors: list[Tensor]) -> None:
            raise WorkerLostError("it is gone")

    params, cpu, calls = [nn.Parameter(torch.zeros(1))], torch.device("cpu"), list[str]()
    step_optimizer = StepOptimizer(params, torch.optim.SGD(params), allow_slices=False)
    failing = FastAllReduce(cast(TorchGroup, Fails()), params, cpu)
    failing.abort = lambda: calls.append("abort")  # type: ignore[method-assign]
    sums = TeamSums(Alone(), failing, step_optimizer, cpu, by_process=True)
    with pytest.raises(WorkerLostError):
        sums.reduce("adds", [Node(0, 1, Partial([torch.ones(1)], torch.tensor(1.0), 2, 2, {}))], 1, mean=True)
    assert calls == ["abort"]

"""Detection of stragglers, compared with a model that keeps all updates and computes the result from them."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fanwise.parallel.comm.stragglers import WARN_S, StragglerDetector, Stragglers


class StragglerMachine(RuleBasedStateMachine):
    make: type[StragglerDetector] = StragglerDetector

    def __init__(self) -> None:
        super().__init__()
        self.detector = self.make()
        self.now_s = 0.0
        self.generation = 2
        self.progress = {0: 0, 1: 0, 2: 0}
        self.idle: set[int] = set()
        self.updates: list[tuple[float, int, dict[int, int]]] = []
        self.warned: list[int] = []  # numbers of updates

    @rule(after_s=st.sampled_from([0.05, 0.5, 0.9, 30.0]), times=st.sampled_from([1, 1, 1, 1, 2, 2, 70]))
    def update(self, after_s: float, times: int) -> None:
        for _ in range(times):
            self.now_s += after_s
            self.updates.append((self.now_s, self.generation, dict(self.progress)))
            expected = self.expected()
            if expected.should_warn:
                self.warned.append(len(self.updates) - 1)
            late = self.detector.update(self.now_s, self.generation, dict(self.progress), frozenset(self.idle))
            assert replace(late, late_s=0, waiting_s=0) == replace(expected, late_s=0, waiting_s=0)
            assert (late.late_s, late.waiting_s) == pytest.approx((expected.late_s, expected.waiting_s))

    @rule(rank=st.sampled_from([0, 1, 2]))
    def advance(self, rank: int) -> None:
        """A process is at most one operation ahead of the last one."""
        if rank in self.progress and rank not in self.idle and self.progress[rank] <= min(self.progress.values()):
            self.progress[rank] += 1

    @rule(rank=st.sampled_from([0, 1, 2]), is_idle=st.booleans())
    def set_idle(self, rank: int, is_idle: bool) -> None:
        (self.idle.add if is_idle and rank in self.progress else self.idle.discard)(rank)

    @rule(rank=st.sampled_from([0, 1, 2]))
    def leave_or_join(self, rank: int) -> None:
        self.generation += 1
        ranks = set(self.progress) ^ {rank}
        self.progress = dict.fromkeys(sorted(ranks), -1)
        self.idle &= ranks

    def expected(self) -> Stragglers:
        _, generation, progress = self.updates[-1]
        if not progress:
            return Stragglers(())
        lowest = min(progress.values())
        first = len(self.updates) - 1  # the first of the updates with this lowest progress, without a gap
        while first and self.updates[first - 1][1] == generation:
            if min(self.updates[first - 1][2].values(), default=None) != lowest:
                break
            first -= 1
        late_s = waiting_s = 0.0
        warn_s = WARN_S
        for number in range(first + 1, len(self.updates)):
            elapsed_s = min(self.updates[number][0] - self.updates[number - 1][0], 1.0)
            late_s += elapsed_s
            waiting_s += elapsed_s * (max(self.updates[number][2].values()) > lowest)
            warn_s *= 10 if number in self.warned else 1
        behind = {rank for rank, number in progress.items() if number == lowest}
        if len(behind) == len(progress):
            behind = behind - self.idle or behind
        num_waiting = len(progress) - len(behind)
        return Stragglers(tuple(sorted(behind)), late_s, num_waiting, waiting_s, waiting_s >= warn_s)

    @invariant()
    def only_the_current_progress_is_kept(self) -> None:
        if self.updates and self.updates[-1][2]:
            _, generation, progress = self.updates[-1]
            assert self.detector._key == (generation, min(progress.values()))


TestStragglers = StragglerMachine.TestCase
TestStragglers.settings = settings(max_examples=60, stateful_step_count=30)

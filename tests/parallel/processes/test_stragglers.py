"""Who hangs, against a model that keeps every look and computes all from them."""

from collections.abc import Mapping, Set

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fanwise.parallel.hangs.stragglers import WARN_S, StragglerDetector, Stragglers, limit_s

NOBODY: frozenset[int] = frozenset()


def looked(
    stalls: StragglerDetector, until_s: float, view: int, places: Mapping[int, int], idle: Set[int] = NOBODY
) -> Stragglers:
    """The last of looks every half second, from 0 on."""
    found = Stragglers(())
    for half in range(int(2 * until_s) + 1):
        found = stalls.update(half / 2, view, places, idle)
    return found


def test_who_has_not_come_to_the_turn_of_the_others_is_late() -> None:
    assert looked(StragglerDetector(), 3, 2, {0: 7, 1: 6, 2: 7}) == Stragglers((1,), 3.0, 2, 3.0)


def test_the_clock_begins_when_the_last_of_all_came_to_the_place_before() -> None:
    stalls = StragglerDetector()
    looked(stalls, 3, 2, {0: 6, 1: 6})
    assert stalls.update(3.5, 2, {0: 7, 1: 6}) == Stragglers((1,), 3.5, 1, 0.5)
    assert stalls.update(4.0, 2, {0: 7, 1: 7}) == Stragglers((0, 1))


def test_when_nobody_waits_all_are_late_together() -> None:
    assert looked(StragglerDetector(), 2, 2, {0: 6, 1: 6}) == Stragglers((0, 1), 2.0)


def test_who_waits_for_something_else_than_a_turn_is_not_late_as_long_as_another_works() -> None:
    assert looked(StragglerDetector(), 2, 2, {0: 6, 1: 6, 2: 6}, {1, 2}).ranks == (0,)
    assert looked(StragglerDetector(), 2, 2, {0: 6, 1: 6}, {0, 1}).ranks == (0, 1)
    assert looked(StragglerDetector(), 2, 2, {0: 6, 1: 7}, {0}).ranks == (0,), "it was stopped while it waited"


def test_time_in_which_nobody_looked_does_not_count() -> None:
    stalls = StragglerDetector()
    stalls.update(0.0, 2, {0: 6, 1: 7})
    assert stalls.update(3600.0, 2, {0: 6, 1: 7}).late_s == 1.0


def test_another_view_begins_anew() -> None:
    stalls = StragglerDetector()
    looked(stalls, 9, 2, {0: 6, 1: 7})
    assert stalls.update(9.5, 3, {0: 0, 1: 1}) == Stragglers((0,), 0.0, 1)


def test_without_a_limit_it_is_told_after_a_minute_of_waiting_and_then_ever_more_rarely() -> None:
    stalls, told = StragglerDetector(), []
    for second in range(2 * 3600):
        if stalls.update(float(second), 2, {0: 6, 1: 7}).should_warn:
            told.append(second)
    assert told == [60, 600, 6000]
    assert not looked(StragglerDetector(), 2 * WARN_S, 2, {0: 6, 1: 6}).should_warn, "nobody waits"


def test_until_its_first_step_is_done_a_process_has_ten_times_as_long_and_a_minute_at_least() -> None:
    assert [limit_s(s, has_stepped=False) for s in (0.5, 6, 7)] == [60, 60, 70]
    assert limit_s(0.5, has_stepped=True) == 0.5


class StallsMachine(RuleBasedStateMachine):
    make: type[StragglerDetector] = StragglerDetector

    def __init__(self) -> None:
        super().__init__()
        self.stalls = self.make()
        self.now_s = 0.0
        self.view = 2
        self.places = {0: 0, 1: 0, 2: 0}
        self.idle: set[int] = set()
        self.looks: list[tuple[float, int, dict[int, int]]] = []
        self.told: list[int] = []  # the looks at which it was

    @rule(after_s=st.sampled_from([0.05, 0.5, 0.9, 30.0]), times=st.sampled_from([1, 1, 1, 1, 2, 2, 70]))
    def update(self, after_s: float, times: int) -> None:
        for _ in range(times):
            self.now_s += after_s
            self.looks.append((self.now_s, self.view, dict(self.places)))
            expected = self.expected()
            if expected.should_warn:
                self.told.append(len(self.looks) - 1)
            found = self.stalls.update(self.now_s, self.view, dict(self.places), frozenset(self.idle))
            assert (found.ranks, found.num_waiting, found.should_warn) == (
                expected.ranks,
                expected.num_waiting,
                expected.should_warn,
            )
            assert found.late_s == pytest.approx(expected.late_s)
            assert found.waiting_s == pytest.approx(expected.waiting_s)

    @rule(rank=st.sampled_from([0, 1, 2]))
    def arrives(self, rank: int) -> None:
        """As far as the others let it: one turn beyond the last of them."""
        if rank in self.places and rank not in self.idle and self.places[rank] <= min(self.places.values()):
            self.places[rank] += 1

    @rule(rank=st.sampled_from([0, 1, 2]), is_idle=st.booleans())
    def idles(self, rank: int, is_idle: bool) -> None:
        (self.idle.add if is_idle and rank in self.places else self.idle.discard)(rank)

    @rule(rank=st.sampled_from([0, 1, 2]))
    def is_lost_or_comes_back(self, rank: int) -> None:
        """The view changes, and in the new one nobody has come anywhere."""
        self.view += 1
        living = set(self.places) ^ {rank}
        self.places = dict.fromkeys(sorted(living), -1)
        self.idle &= living

    def expected(self) -> Stragglers:
        _, view, places = self.looks[-1]
        if not places:
            return Stragglers(())
        low = min(places.values())
        first = len(self.looks) - 1  # the first look of those that saw this place, without a break
        while (
            first and self.looks[first - 1][1] == view and min(self.looks[first - 1][2].values(), default=None) == low
        ):
            first -= 1
        late_s = waiting_s = 0.0
        warn_s = WARN_S
        for number in range(first + 1, len(self.looks)):
            between_s = min(self.looks[number][0] - self.looks[number - 1][0], 1.0)
            late_s += between_s
            waiting_s += between_s * (max(self.looks[number][2].values()) > low)
            warn_s *= 10 if number in self.told else 1
        behind = {rank for rank, place in places.items() if place == low}
        if len(behind) == len(places):
            behind = behind - self.idle or behind
        waiting = len(places) - len(behind)
        return Stragglers(tuple(sorted(behind)), late_s, waiting, waiting_s, waiting_s >= warn_s)

    @invariant()
    def nothing_of_an_older_place_is_kept(self) -> None:
        if self.looks and self.looks[-1][2]:
            _, view, places = self.looks[-1]
            assert self.stalls._key == (view, min(places.values()))


TestStalls = StallsMachine.TestCase
TestStalls.settings = settings(max_examples=60, stateful_step_count=30)


class Impatient(StragglerDetector):
    """Counts the time in which nobody looked."""

    def update(self, now_s: float, view: int, places: Mapping[int, int], idle: Set[int] = NOBODY) -> Stragglers:
        if self._key is not None and now_s - self._looked_s > 1:
            self._late_s += now_s - self._looked_s - 1
        return super().update(now_s, view, places, idle)


class Trusting(StragglerDetector):
    """Believes who says that it waits, also when others wait for it."""

    def update(self, now_s: float, view: int, places: Mapping[int, int], idle: Set[int] = NOBODY) -> Stragglers:
        found = super().update(now_s, view, places, idle)
        ranks = tuple(rank for rank in found.ranks if rank not in idle)
        return Stragglers(ranks, found.late_s, found.num_waiting, found.waiting_s, found.should_warn)


class Forgetful(StragglerDetector):
    """The clock of one place goes on in the next."""

    def update(self, now_s: float, view: int, places: Mapping[int, int], idle: Set[int] = NOBODY) -> Stragglers:
        if places and self._key is not None:
            self._key = (view, min(places.values()))
        return super().update(now_s, view, places, idle)


@pytest.mark.parametrize("broken", [Impatient, Trusting, Forgetful])
def test_the_machine_catches_broken_books(broken: type[StragglerDetector]) -> None:
    class Machine(StallsMachine):
        make = broken

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=500, stateful_step_count=15, phases=[Phase.generate], derandomize=True, database=None
            ),
        )

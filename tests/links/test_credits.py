"""Flow control of calls, for any order of calls, messages and withdrawals."""

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanwise.links import credits
from fanwise.links.credits import (
    BUDGET,
    CALL_COST,
    OVERDRAFT,
    WINDOW_MAX,
    WINDOW_MIN,
    Granting,
    Spending,
    cost_of,
    share,
)

COSTS = st.one_of(
    st.integers(CALL_COST, 4 * CALL_COST),
    st.integers(WINDOW_MIN // 4, WINDOW_MIN),
    st.integers(WINDOW_MIN, 2 * WINDOW_MAX),
)


class OneLink(RuleBasedStateMachine):
    """Both sides of a link and the messages between them.

    The model is a list of calls that are on their way or queued there, and a list of callers that wait here. Both keep
    the order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spending: Spending[int] = Spending()
        self.granting = Granting()
        self.window = WINDOW_MIN  # of this link in the budget
        self.there: deque[tuple[str, int]] = deque()  # on its way to the callee
        self.back: deque[tuple[int, int]] = deque()  # on its way to the caller
        self.queued: deque[int] = deque()  # came, and not taken up
        self.sent = self.came = self.taken = 0
        self.known = (0, WINDOW_MIN)  # the last credit that the caller received
        self.waiting: list[tuple[int, int]] = []
        self.granted: dict[int, int] = {}  # calls that may be sent and were not sent yet
        self.number = 0
        self.asked: int | None = None

    # -- the model's own arithmetic

    def fits(self, cost: int, more: int = 0) -> bool:
        outstanding = self.sent - self.known[0]
        return outstanding == 0 or outstanding + cost <= self.known[1] + more

    def go(self, cost: int) -> None:
        self.sent += cost
        self.there.append(("call", cost))

    def receive_credit(self, turns: list[int]) -> None:
        expected = []
        while self.waiting and self.fits(self.waiting[0][1]):
            turn, cost = self.waiting.pop(0)
            self.sent += cost
            expected.append(turn)
            self.granted[turn] = cost
        assert turns == expected
        self.want()

    def want(self) -> None:
        position = self.spending.wanted()
        assert (position is None) == (not self.waiting)
        if position is not None:
            self.there.append(("want", position))

    # -- the caller

    @rule(cost=COSTS)
    def call(self, cost: int) -> None:
        may = not self.waiting and self.fits(cost)
        assert self.spending.spend(cost) == may
        if may:
            self.go(cost)
            return
        self.number += 1
        assert self.spending.wait(self.number, cost) == [], "no credit has arrived since `spend` refused"
        self.waiting.append((self.number, cost))
        if len(self.waiting) == 1:
            self.want()

    @rule(cost=COSTS)
    def call_that_must_not_wait(self, cost: int) -> None:
        may = self.fits(cost, OVERDRAFT)
        assert self.spending.overdraw(cost) == may
        if may:
            self.go(cost)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), leaves=st.booleans())
    def whose_turn_has_come_sends_or_not(self, data: Any, leaves: bool) -> None:
        turn = data.draw(st.sampled_from(sorted(self.granted)))
        cost = self.granted.pop(turn)
        if leaves:
            self.there.append(("call", cost))
        else:
            self.sent -= cost
            self.receive_credit(self.spending.give_up(turn, cost))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def one_waits_no_more(self, data: Any) -> None:
        turn, cost = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove((turn, cost))
        turns = self.spending.give_up(turn, cost)
        self.receive_credit(turns)

    # -- the callee

    @precondition(lambda self: self.there)
    @rule()
    def something_arrives_there(self) -> None:
        kind, number = self.there.popleft()
        if kind == "call":
            assert self.granting.received(number), "who keeps to the rules is never refused"
            self.came += number
            self.queued.append(number)
        else:
            self.asked = number if self.asked is None else min(self.asked, number)
            self.told(self.granting.wanted(number, self.window))

    @precondition(lambda self: self.queued)
    @rule()
    def a_call_is_taken_up(self) -> None:
        cost = self.queued.popleft()
        self.taken += cost
        self.told(self.granting.taken_up(cost), by_window=False)

    @rule(num_links=st.integers(1, 2000))
    def others_join_or_leave(self, num_links: int) -> None:
        self.window = share(num_links)

    def told(self, tells: bool, *, by_window: bool = True) -> None:
        last = self.back[-1] if self.back else self.last_told
        assert tells == (
            2 * (self.taken - last[0]) >= last[1]
            or (self.asked is not None and self.taken >= self.asked)
            or (by_window and self.window > last[1])
        )
        if tells:
            credit = self.granting.announce(self.window)
            assert tuple(credit) == (self.taken, self.window)
            self.back.append(credit)
            self.asked = None

    last_told = (0, WINDOW_MIN)

    @precondition(lambda self: self.back)
    @rule()
    def credit_arrives_here(self) -> None:
        self.known = self.last_told = self.back.popleft()
        self.receive_credit(self.spending.credit(*self.known))

    # -- always

    @invariant()
    def both_sides_are_as_the_model_says(self) -> None:
        assert (self.spending.sent, self.spending.started, self.spending.window) == (self.sent, *self.known)
        assert [*self.spending._waiting] == self.waiting
        assert (self.granting.total_cost, self.granting.started) == (self.came, self.taken)
        on_the_way = sum(number for kind, number in self.there if kind == "call") + sum(self.granted.values())
        assert self.sent == self.came + on_the_way and self.came == self.taken + sum(self.queued)

    @invariant()
    def what_waits_there_is_bounded(self) -> None:
        if len(self.queued) > 1:
            assert sum(list(self.queued)[1:]) <= WINDOW_MAX + OVERDRAFT

    def teardown(self) -> None:
        """No caller waits once all messages have arrived and all calls were started."""
        while self.there or self.back or self.queued or self.granted:
            while self.granted:
                self.there.append(("call", self.granted.popitem()[1]))
            while self.there:
                self.something_arrives_there()
            while self.queued:
                self.a_call_is_taken_up()
            while self.back:
                self.credit_arrives_here()
        assert not self.waiting


TestOneLink = OneLink.TestCase
TestOneLink.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)


def test_a_call_larger_than_the_window_goes_when_nothing_is_outstanding() -> None:
    spending: Spending[str] = Spending()
    assert spending.spend(10 * WINDOW_MAX)
    assert not spending.spend(CALL_COST)
    assert spending.wait("small", CALL_COST) == []
    assert spending.wanted() == 10 * WINDOW_MAX + CALL_COST - WINDOW_MIN
    assert spending.credit(10 * WINDOW_MAX, WINDOW_MIN) == ["small"]


def test_a_small_call_does_not_pass_a_large_one_that_waits() -> None:
    spending: Spending[str] = Spending()
    assert spending.spend(WINDOW_MIN // 2)
    spending.wait("large", WINDOW_MAX)
    assert not spending.spend(CALL_COST)
    spending.wait("small", CALL_COST)
    assert spending.give_up("large", WINDOW_MAX) == ["small"]


def test_who_comes_to_wait_when_credit_has_come_meanwhile_goes_at_once() -> None:
    spending: Spending[str] = Spending()
    assert spending.spend(WINDOW_MIN)
    assert not spending.spend(CALL_COST)
    assert spending.credit(WINDOW_MIN, WINDOW_MIN) == []
    assert spending.wait("late", CALL_COST) == ["late"]


@pytest.mark.parametrize(("taken", "window"), [(1, WINDOW_MIN), (0, 0)])
def test_credit_that_cannot_be_true_is_refused(taken: int, window: int) -> None:
    with pytest.raises(ValueError, match="credit for"):
        Spending[str]().credit(taken, window)


def test_a_caller_that_does_not_keep_to_its_window_is_noticed() -> None:
    granting = Granting()
    assert granting.received(WINDOW_MAX)  # one call of any size
    assert not granting.received(CALL_COST)


def test_a_caller_is_held_to_the_window_that_it_was_told() -> None:
    granting = Granting()
    assert granting.received(WINDOW_MIN) and granting.received(OVERDRAFT) and granting.received(1)
    assert not granting.received(CALL_COST)
    granting.taken_up(granting.total_cost)
    granting.announce(2 * WINDOW_MIN)
    granting.announce(WINDOW_MIN)  # the caller may have sent the next calls before it receives this
    assert granting.received(2 * WINDOW_MIN) and granting.received(OVERDRAFT)
    assert granting.received(CALL_COST) and not granting.received(CALL_COST)


def test_nothing_is_told_of_single_calls() -> None:
    granting = Granting()
    told = [granting.taken_up(CALL_COST) and bool(granting.announce(WINDOW_MIN)) for _ in range(64)]
    assert [i for i, is_told in enumerate(told) if is_told] == [31, 63]


def test_all_links_together_get_the_budget_and_each_a_window() -> None:
    assert [share(n) for n in (0, 1, 8)] == [WINDOW_MAX] * 3
    assert [share(n) for n in (9, 512, 100_000)] == [BUDGET // 9, WINDOW_MIN, WINDOW_MIN]


def test_both_sides_count_the_same_for_a_call() -> None:
    buffers: list[Any] = [memoryview(bytearray(80)).cast("d"), memoryview(b"")]
    assert cost_of(b"abc", buffers) == cost_of(bytearray(b"abc"), [memoryview(bytes(80)), memoryview(b"")])
    assert cost_of(b"abc", buffers) == credits.CALL_COST + 83

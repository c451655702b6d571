"""Deadlines beside a dict that is gone through each time; also that what was replaced does not pile up."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fanwise.tune.core.deadlines import Deadlines

KEYS = st.integers(0, 4)
TIMES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 5.0])


class DeadlinesMachine(RuleBasedStateMachine):
    deadlines_class: ClassVar[type[Deadlines[int]]] = Deadlines

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = self.deadlines_class()
        self.model: dict[int, tuple[float, int]] = {}
        self.number = 0

    @rule(key=KEYS, at_s=TIMES, times=st.sampled_from([1, 1, 1, 1, 40]))
    def set(self, key: int, at_s: float, times: int) -> None:
        for _ in range(times):
            self.number += 1
            self.deadlines.set(key, at_s)
            self.model[key] = (at_s, self.number)

    @rule(key=KEYS)
    def clear(self, key: int) -> None:
        self.deadlines.clear(key)
        self.model.pop(key, None)

    @rule(now_s=TIMES)
    def due(self, now_s: float) -> None:
        due = sorted((key for key in self.model if self.model[key][0] <= now_s), key=lambda key: self.model[key])
        assert self.deadlines.due(now_s) == due
        for key in due:
            del self.model[key]

    @invariant()
    def the_next_is_the_earliest_and_the_heap_stays_small(self) -> None:
        assert self.deadlines.next_s == min((at_s for at_s, _ in self.model.values()), default=None)
        state: Any = self.deadlines  # Any: it looks at what is private
        assert state._times == self.model
        assert len(state._heap) <= 64 + 2 * len(self.model) + 40


DeadlinesMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestDeadlinesAgainstTheModel = DeadlinesMachine.TestCase


# Broken versions. Any: they reach into what is private.


def keeps_the_first_time(self: Any, key: int, at_s: float) -> None:
    if key not in self._times:
        Deadlines.set(self, key, at_s)


def forgets_nothing(self: Any, key: int) -> None:
    return


def is_due_a_moment_late(self: Any, now_s: float) -> Any:
    return Deadlines.due(self, now_s - 1e-9)


def lets_the_replaced_pile_up(self: Any, key: int, at_s: float) -> None:
    self._set += 1
    self._times[key] = (at_s, self._set)
    self._heap.append((at_s, self._set, key))
    self._heap.sort()


def loses_one_when_it_makes_room(self: Any, key: int, at_s: float) -> None:
    Deadlines.set(self, key, at_s)
    if len(self._heap) == len(self._times) > 1:
        self._heap.pop()


MUTANTS: dict[Callable[..., Any], str] = {
    keeps_the_first_time: "set",
    forgets_nothing: "clear",
    is_due_a_moment_late: "due",
    lets_the_replaced_pile_up: "set",
    loses_one_when_it_makes_room: "set",
}


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: str(broken.__name__))
def test_the_machine_catches_deadlines_of_which_one(broken: Callable[..., Any]) -> None:  # Any: as above
    members = {"deadlines_class": type("Broken", (Deadlines,), {MUTANTS[broken]: broken})}
    machine = type("BrokenMachine", (DeadlinesMachine,), members)
    quickly = settings(
        max_examples=500,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quickly)


def test_the_earliest_comes_first_and_of_equals_the_one_set_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at_s in (("b", 2.0), ("a", 1.0), ("c", 1.0), ("d", 9.0)):
        deadlines.set(key, at_s)
    assert deadlines.due(2.0) == ["a", "c", "b"]
    assert deadlines.due(2.0) == []
    assert deadlines.next_s == 9.0

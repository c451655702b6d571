"""`Deadlines` against a dict that is searched each time. Outdated entries must not accumulate."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fanwise.tune.core.trials import Deadlines

TRIALS = st.integers(0, 4)
TIMES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 5.0])


class DeadlinesMachine(RuleBasedStateMachine):
    deadlines_class: ClassVar[type[Deadlines]] = Deadlines

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = self.deadlines_class()
        self.model: dict[int, tuple[float, int]] = {}
        self.number = 0

    @rule(trial_id=TRIALS, at_s=TIMES, count=st.sampled_from([1, 1, 1, 1, 40]))
    def set(self, trial_id: int, at_s: float, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.deadlines.set(trial_id, at_s)
            self.model[trial_id] = (at_s, self.number)

    @rule(trial_id=TRIALS)
    def clear(self, trial_id: int) -> None:
        self.deadlines.clear(trial_id)
        self.model.pop(trial_id, None)

    @rule(now_s=TIMES)
    def due(self, now_s: float) -> None:
        due = sorted((key for key in self.model if self.model[key][0] <= now_s), key=lambda key: self.model[key])
        assert self.deadlines.due(now_s) == due
        for trial_id in due:
            del self.model[trial_id]

    @invariant()
    def next_is_the_earliest_and_the_heap_stays_small(self) -> None:
        assert self.deadlines.next_s == min((at_s for at_s, _ in self.model.values()), default=None)
        state: Any = self.deadlines  # Any: private attributes
        assert state._times == self.model
        assert len(state._heap) <= 64 + 2 * len(self.model) + 40


DeadlinesMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestDeadlinesAgainstTheModel = DeadlinesMachine.TestCase


# Broken versions. Any: they access private attributes.


def keeps_the_first_time(self: Any, trial_id: int, at_s: float) -> None:
    if trial_id not in self._times:
        Deadlines.set(self, trial_id, at_s)


def never_clears(self: Any, trial_id: int) -> None:
    return


def is_due_too_late(self: Any, now_s: float) -> Any:
    return Deadlines.due(self, now_s - 1e-9)


def keeps_outdated_entries(self: Any, trial_id: int, at_s: float) -> None:
    self._num_set += 1
    self._times[trial_id] = (at_s, self._num_set)
    self._heap.append((at_s, self._num_set, trial_id))
    self._heap.sort()


def loses_an_entry_when_it_compacts(self: Any, trial_id: int, at_s: float) -> None:
    Deadlines.set(self, trial_id, at_s)
    if len(self._heap) == len(self._times) > 1:
        self._heap.pop()


MUTANTS: dict[Callable[..., Any], str] = {
    keeps_the_first_time: "set",
    never_clears: "clear",
    is_due_too_late: "due",
    keeps_outdated_entries: "set",
    loses_an_entry_when_it_compacts: "set",
}


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: str(broken.__name__))
def test_machine_catches_deadlines_that(broken: Callable[..., Any]) -> None:
    members = {"deadlines_class": type("Broken", (Deadlines,), {MUTANTS[broken]: broken})}
    generate_only = settings(
        max_examples=500,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(type("BrokenMachine", (DeadlinesMachine,), members), settings=generate_only)

"""Checkpoint holders beside a list that is searched each time."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fanwise.tune.core.checkpoint_references import CheckpointHolders

NAMES = st.sampled_from(["0-0-1", "0-0-2", "1-0-1"])


class HoldersMachine(RuleBasedStateMachine):
    holders_class: ClassVar[type[CheckpointHolders]] = CheckpointHolders

    def __init__(self) -> None:
        super().__init__()
        self.holders = self.holders_class()
        self.held: list[str] = []

    @rule(name=NAMES)
    def hold(self, name: str) -> None:
        self.holders.hold(name)
        self.held.append(name)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 20))
    def let_go(self, which: int) -> None:
        name = self.held.pop(which % len(self.held))
        assert self.holders.let_go(name) == (name not in self.held)

    @invariant()
    def what_is_held_is_known_and_nothing_else(self) -> None:
        assert self.holders.names == frozenset(self.held)
        state: Any = self.holders  # Any: it looks at what is private
        assert state._counts == {name: self.held.count(name) for name in self.held}


HoldersMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestHoldersAgainstTheModel = HoldersMachine.TestCase


# Broken versions. Any: they reach into what is private.


def counts_to_one(self: Any, name: str) -> None:
    self._counts[name] = 1


def keeps_names_that_nobody_holds(self: Any, name: str) -> bool:
    self._counts[name] -= 1
    return bool(self._counts[name] == 0)


def always_says_that_it_was_the_last(self: Any, name: str) -> bool:
    CheckpointHolders.let_go(self, name)
    return True


MUTANTS: dict[Callable[..., Any], str] = {
    counts_to_one: "hold",
    keeps_names_that_nobody_holds: "let_go",
    always_says_that_it_was_the_last: "let_go",
}


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda broken: str(broken.__name__))
def test_the_machine_catches_holders_of_which_one(broken: Callable[..., Any]) -> None:  # Any: as above
    members = {"holders_class": type("Broken", (CheckpointHolders,), {MUTANTS[broken]: broken})}
    quickly = settings(
        max_examples=300,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(type("BrokenMachine", (HoldersMachine,), members), settings=quickly)

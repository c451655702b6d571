"""Tier 1: whose turn it is at an actor, for any order of calls, answers, time-outs and callers that take no answers."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fanwise.rpc.actors.turns import Turns

CALLERS = ["a", "b", "c"]


class OneActor(RuleBasedStateMachine):
    """The model: the calls that have come in a list, each waiting, running or over."""

    make: Any = Turns

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.make()
        self.limit = 1
        self.calls: list[dict[str, Any]] = []
        self.held: set[str] = set()
        self.now_s = 0.0

    def those(self, state: str) -> list[dict[str, Any]]:
        return [call for call in self.calls if call["state"] == state]

    def begun(self, found: list[int]) -> None:
        """What may begin, by the model: the first of those that wait, of callers that take their answers."""
        free = max(0, self.limit - len(self.those("running")))
        ready = [call for call in self.those("waiting") if call["caller"] not in self.held]
        assert found == [call["id"] for call in ready[:free]]
        for call in ready[:free]:
            assert call["state"] == "waiting", "it begins once"
            call["state"] = "running"

    def drawn(self, data: Any, state: str) -> dict[str, Any]:
        call: dict[str, Any] = data.draw(st.sampled_from(self.those(state)))
        return call

    @rule(caller=st.sampled_from(CALLERS), within_s=st.none() | st.floats(0.0, 3.0))
    def a_call_comes(self, caller: str, within_s: float | None) -> None:
        due_s = None if within_s is None else self.now_s + within_s
        self.calls.append({"id": len(self.calls), "caller": caller, "due_s": due_s, "state": "waiting"})
        self.begun(self.turns.came(len(self.calls) - 1, caller, due_s))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def one_is_answered(self, data: Any) -> None:
        call = self.drawn(data, "running")
        call["state"] = "over"
        self.begun(self.turns.ended(call["id"]))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def its_caller_takes_no_answers(self, data: Any) -> None:
        call = self.drawn(data, "running")
        call["state"] = "waiting"
        self.held.add(call["caller"])
        self.begun(self.turns.held(call["id"]))

    @rule(caller=st.sampled_from(CALLERS))
    def a_caller_takes_answers_again(self, caller: str) -> None:
        self.held.discard(caller)
        self.begun(self.turns.released(caller))

    @precondition(lambda self: self.those("waiting"))
    @rule(data=st.data())
    def one_is_withdrawn(self, data: Any) -> None:
        call = self.drawn(data, "waiting")
        call["state"] = "over"
        assert self.turns.withdrawn(call["id"])
        assert not self.turns.withdrawn(call["id"])

    @rule(by_s=st.floats(0.0, 2.0))
    def time_passes(self, by_s: float) -> None:
        self.now_s += by_s
        over = [c for c in self.those("waiting") if c["due_s"] is not None and c["due_s"] <= self.now_s]
        assert self.turns.expired(self.now_s) == [call["id"] for call in over]
        for call in over:
            call["state"] = "over"

    @rule(limit=st.integers(0, 4))
    def the_limit_changes(self, limit: int) -> None:
        self.limit = limit
        self.begun(self.turns.limited(limit))

    @precondition(lambda self: self.those("over"))
    @rule(data=st.data())
    def what_is_over_is_told_of_again(self, data: Any) -> None:
        call = self.drawn(data, "over")
        assert self.turns.ended(call["id"]) == self.turns.held(call["id"]) == []
        assert not self.turns.withdrawn(call["id"])

    @invariant()
    def the_whole_state_is_the_model_s(self) -> None:
        assert [each.call for each in self.turns._waiting] == [call["id"] for call in self.those("waiting")]
        assert sorted(self.turns._running) == [call["id"] for call in self.those("running")]
        assert self.turns._held == self.held
        assert self.turns.is_idle == (not self.those("waiting") and not self.those("running"))
        due = [call["due_s"] for call in self.those("waiting") if call["due_s"] is not None]
        assert self.turns.next_due_s() == min(due, default=None)


TestOneActor = OneActor.TestCase
TestOneActor.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class OneTooMany(Turns[int]):
    """Broken: one more runs with each that ends."""

    def ended(self, call: int) -> list[int]:
        self.limit += 1
        return super().ended(call)


class LastComeFirst(Turns[int]):
    """Broken: the last that came begins first."""

    def came(self, call: int, caller: Any, due_s: float | None) -> list[int]:
        begin = Turns.came(self, call, caller, due_s)
        self._waiting.rotate(1)
        return begin


class HeldForGood(Turns[int]):
    """Broken: a caller that takes its answers again is not heard of."""

    def released(self, caller: Any) -> list[int]:
        return self._next()


class HeldGoesLast(Turns[int]):
    """Broken: who gave its turn back waits behind those that came later."""

    def held(self, call: int) -> list[int]:
        waiting = self._running.pop(call, None)
        if waiting is None:
            return []
        self._waiting.append(waiting)
        self._held.add(waiting.caller)
        return self._next()


class NeverOver(Turns[int]):
    """Broken: a call whose time is over begins all the same."""

    def expired(self, now_s: float) -> list[int]:
        return []


@pytest.mark.parametrize("broken", [OneTooMany, LastComeFirst, HeldForGood, HeldGoesLast, NeverOver])
def test_the_machine_catches_a_broken_one(broken: type[Turns[int]]) -> None:
    machine = type("Broken", (OneActor,), {"make": broken})
    quick = settings(max_examples=300, stateful_step_count=30, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)

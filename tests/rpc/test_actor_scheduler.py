"""Tier 1: which call of an actor runs next, for any order of calls, replies, timeouts and callers that do not read."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fanwise.rpc.actors.scheduler import Scheduler

CALLERS = ["a", "b", "c"]


class OneActor(RuleBasedStateMachine):
    """The model: all received calls in a list, each waiting, running or over."""

    make: Any = Scheduler

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = self.make()
        self.limit = 1
        self.calls: list[dict[str, Any]] = []
        self.paused: set[str] = set()
        self.now_s = 0.0

    def those(self, state: str) -> list[dict[str, Any]]:
        return [call for call in self.calls if call["state"] == state]

    def begun(self, found: list[int]) -> None:
        """Check against the model: the oldest waiting calls of callers that are not paused start."""
        free = max(0, self.limit - len(self.those("running")))
        ready = [call for call in self.those("waiting") if call["caller"] not in self.paused]
        assert found == [call["id"] for call in ready[:free]]
        for call in ready[:free]:
            assert call["state"] == "waiting", "it begins once"
            call["state"] = "running"

    def drawn(self, data: Any, state: str) -> dict[str, Any]:
        call: dict[str, Any] = data.draw(st.sampled_from(self.those(state)))
        return call

    @rule(caller=st.sampled_from(CALLERS), within_s=st.none() | st.floats(0.0, 3.0))
    def a_call_comes(self, caller: str, within_s: float | None) -> None:
        deadline_s = None if within_s is None else self.now_s + within_s
        self.calls.append({"id": len(self.calls), "caller": caller, "due_s": deadline_s, "state": "waiting"})
        self.begun(self.scheduler.enqueue(len(self.calls) - 1, caller, deadline_s))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def one_is_answered(self, data: Any) -> None:
        call = self.drawn(data, "running")
        call["state"] = "over"
        self.begun(self.scheduler.finish(call["id"]))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def its_caller_takes_no_answers(self, data: Any) -> None:
        call = self.drawn(data, "running")
        call["state"] = "waiting"
        self.paused.add(call["caller"])
        self.begun(self.scheduler.pause(call["id"]))

    @rule(caller=st.sampled_from(CALLERS))
    def a_caller_takes_answers_again(self, caller: str) -> None:
        self.paused.discard(caller)
        self.begun(self.scheduler.resume(caller))

    @precondition(lambda self: self.those("waiting"))
    @rule(data=st.data())
    def one_is_withdrawn(self, data: Any) -> None:
        call = self.drawn(data, "waiting")
        call["state"] = "over"
        assert self.scheduler.withdraw(call["id"])
        assert not self.scheduler.withdraw(call["id"])

    @rule(by_s=st.floats(0.0, 2.0))
    def time_passes(self, by_s: float) -> None:
        self.now_s += by_s
        over = [c for c in self.those("waiting") if c["due_s"] is not None and c["due_s"] <= self.now_s]
        assert self.scheduler.expire(self.now_s) == [call["id"] for call in over]
        for call in over:
            call["state"] = "over"

    @rule(limit=st.integers(0, 4))
    def the_limit_changes(self, limit: int) -> None:
        self.limit = limit
        self.begun(self.scheduler.set_limit(limit))

    @precondition(lambda self: self.those("over"))
    @rule(data=st.data())
    def what_is_over_is_told_of_again(self, data: Any) -> None:
        call = self.drawn(data, "over")
        assert self.scheduler.finish(call["id"]) == self.scheduler.pause(call["id"]) == []
        assert not self.scheduler.withdraw(call["id"])

    @invariant()
    def the_whole_state_is_the_model_s(self) -> None:
        assert [each.call for each in self.scheduler._waiting] == [call["id"] for call in self.those("waiting")]
        assert sorted(self.scheduler._running) == [call["id"] for call in self.those("running")]
        assert self.scheduler._paused == self.paused
        assert self.scheduler.is_idle == (not self.those("waiting") and not self.those("running"))
        due = [call["due_s"] for call in self.those("waiting") if call["due_s"] is not None]
        assert self.scheduler.next_deadline_s() == min(due, default=None)


TestOneActor = OneActor.TestCase
TestOneActor.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class OneTooMany(Scheduler[int]):
    """Broken: one more runs with each that ends."""

    def finish(self, call: int) -> list[int]:
        self.limit += 1
        return super().finish(call)


class LastComeFirst(Scheduler[int]):
    """Broken: the last that came begins first."""

    def enqueue(self, call: int, caller: Any, deadline_s: float | None) -> list[int]:
        startable = Scheduler.enqueue(self, call, caller, deadline_s)
        self._waiting.rotate(1)
        return startable


class HeldForGood(Scheduler[int]):
    """Broken: a resumed caller stays paused."""

    def resume(self, caller: Any) -> list[int]:
        return self._next()


class HeldGoesLast(Scheduler[int]):
    """Broken: a paused call loses its position."""

    def pause(self, call: int) -> list[int]:
        waiting = self._running.pop(call, None)
        if waiting is None:
            return []
        self._waiting.append(waiting)
        self._paused.add(waiting.caller)
        return self._next()


class NeverOver(Scheduler[int]):
    """Broken: a call starts after its deadline."""

    def expire(self, now_s: float) -> list[int]:
        return []


@pytest.mark.parametrize("broken", [OneTooMany, LastComeFirst, HeldForGood, HeldGoesLast, NeverOver])
def test_the_machine_catches_a_broken_one(broken: type[Scheduler[int]]) -> None:
    machine = type("Broken", (OneActor,), {"make": broken})
    quick = settings(max_examples=300, stateful_step_count=30, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)

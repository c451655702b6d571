"""Which calls are open: the table against an obvious model, and broken tables that the comparison must catch."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fanwise.links.calls import OpenCalls

# Few of each, so that rules often meet the same call.
ids = st.integers(0, 8)
times_s = st.one_of(st.none(), st.integers(0, 5).map(float))


class Machine(RuleBasedStateMachine):
    """The model is a list of what was ever opened, and the set of ids that have ended."""

    table: type[OpenCalls[str]] = OpenCalls

    @initialize()
    def begin(self) -> None:
        self.calls = self.table()
        self.ever: list[tuple[str, float | None]] = []
        self.ended: set[int] = set()

    def is_open(self, call_id: int) -> bool:
        return 1 <= call_id <= len(self.ever) and call_id not in self.ended

    def open_ids(self) -> list[int]:
        return [call_id for call_id in range(1, len(self.ever) + 1) if call_id not in self.ended]

    def end(self, call_id: int) -> str | None:
        if not self.is_open(call_id):
            return None
        self.ended.add(call_id)
        return self.ever[call_id - 1][0]

    @rule(deadline_s=times_s)
    def open(self, deadline_s: float | None) -> None:
        waiter = f"waiter {len(self.ever) + 1}"
        self.ever.append((waiter, deadline_s))
        assert self.calls.open(waiter, deadline_s) == len(self.ever)

    @rule(call_id=ids)
    def answer(self, call_id: int) -> None:
        assert self.calls.close(call_id) == self.end(call_id)

    @rule(now_s=st.integers(0, 5).map(float))
    def expire(self, now_s: float) -> None:
        due = [i for i in self.open_ids() if (deadline_s := self.ever[i - 1][1]) is not None and deadline_s <= now_s]
        assert self.calls.expire(now_s) == [self.end(call_id) for call_id in due]

    @rule()
    def lose(self) -> None:
        assert self.calls.close_all() == [self.end(call_id) for call_id in self.open_ids()]

    @invariant()
    def the_whole_state_is_that_of_the_model(self) -> None:
        if not hasattr(self, "calls"):
            return
        still_open = {i: self.ever[i - 1] for i in self.open_ids()}
        deadlines = {i: deadline_s for i, (_, deadline_s) in still_open.items() if deadline_s is not None}
        assert self.calls._open == {i: waiter for i, (waiter, _) in still_open.items()}
        assert self.calls._deadlines == deadlines
        assert self.calls.next_deadline_s() == min(deadlines.values(), default=None)
        assert len(self.calls) == len(still_open)


TestCalls = Machine.TestCase


class ForgetsNoDeadline(OpenCalls[str]):
    """Broken: the deadline of an answered call stays."""

    def close(self, call_id: int) -> str | None:
        deadlines = dict(self._deadlines)
        waiter = super().close(call_id)
        self._deadlines = deadlines
        return waiter


class UsesIdsAgain(OpenCalls[str]):
    """Broken: after the last call has ended, ids begin again."""

    def open(self, waiter: str, deadline_s: float | None = None) -> int:
        if not self._open:
            self.num_opened = 0
        return super().open(waiter, deadline_s)


class ExpiresTooEarly(OpenCalls[str]):
    """Broken: a call without a deadline expires with the others."""

    def expire(self, now_s: float) -> list[str]:
        late = super().expire(now_s)
        return late + [self._open.pop(i) for i in sorted(self._open) if late and i not in self._deadlines]


@pytest.mark.parametrize("broken", [ForgetsNoDeadline, UsesIdsAgain, ExpiresTooEarly])
def test_a_broken_table_is_caught(broken: type[OpenCalls[str]]) -> None:
    machine: Any = type("Broken", (Machine,), {"table": broken})  # Any: a class made here has no name for mypy
    # The same examples every time: that chance finds it once more is not what this test is about.
    unshrunk = settings(derandomize=True, database=None, max_examples=1000, phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=unshrunk)

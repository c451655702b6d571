"""The table of open calls against a model."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanwise.links.calls import OpenCalls

# Few of each, so that several rules often concern the same call.
ids = st.integers(0, 8)
times_s = st.one_of(st.none(), st.integers(0, 5).map(float))


class OpenCallsMachine(RuleBasedStateMachine):
    """The model is a list of all calls and the set of ids that have ended."""

    @initialize()
    def begin(self) -> None:
        self.calls = OpenCalls[str]()
        self.opened: list[tuple[str, float | None]] = []
        self.ended: set[int] = set()

    def is_open(self, call_id: int) -> bool:
        return 1 <= call_id <= len(self.opened) and call_id not in self.ended

    def open_ids(self) -> list[int]:
        return [call_id for call_id in range(1, len(self.opened) + 1) if call_id not in self.ended]

    def end(self, call_id: int) -> str | None:
        if not self.is_open(call_id):
            return None
        self.ended.add(call_id)
        return self.opened[call_id - 1][0]

    @rule(deadline_s=times_s)
    def open(self, deadline_s: float | None) -> None:
        waiter = f"waiter {len(self.opened) + 1}"
        self.opened.append((waiter, deadline_s))
        assert self.calls.open(waiter, deadline_s) == len(self.opened)

    @rule(call_id=ids)
    def answer(self, call_id: int) -> None:
        assert self.calls.close(call_id) == self.end(call_id)

    @rule(now_s=st.integers(0, 5).map(float))
    def expire(self, now_s: float) -> None:
        due = [i for i in self.open_ids() if (deadline_s := self.opened[i - 1][1]) is not None and deadline_s <= now_s]
        assert self.calls.expire(now_s) == [self.end(call_id) for call_id in due]

    @rule()
    def lose(self) -> None:
        assert self.calls.close_all() == [self.end(call_id) for call_id in self.open_ids()]

    @invariant()
    def the_whole_state_is_that_of_the_model(self) -> None:
        if not hasattr(self, "calls"):
            return
        still_open = {i: self.opened[i - 1] for i in self.open_ids()}
        deadlines = {i: deadline_s for i, (_, deadline_s) in still_open.items() if deadline_s is not None}
        assert self.calls._open == {i: waiter for i, (waiter, _) in still_open.items()}
        assert self.calls._deadlines == deadlines
        assert self.calls.next_deadline_s() == min(deadlines.values(), default=None)
        assert len(self.calls) == len(still_open)


TestCalls = OpenCallsMachine.TestCase

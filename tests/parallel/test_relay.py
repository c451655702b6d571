"""Turns: one at a time, in order, joined in the thread of the caller; nothing is left when something goes wrong."""

import contextlib
import contextvars
import signal
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.parallel.batch_norm.relay import Relay


class Trace:
    """What happened, in order; it is also the context of every member, so that turns can be checked."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.at_work = 1  # the caller is, in the beginning
        self.most_at_work = 1

    def enter(self) -> None:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)

    def leave(self) -> None:
        self.at_work -= 1


def all_there(brought: Sequence[str | None]) -> str:
    if None in brought:
        raise LookupError(f"somebody is missing: {list(brought)}")
    return "".join(each for each in brought if each is not None)


def race(
    count: int, work: Callable[["Relay[str, str, str]", int, list[str]], str]
) -> tuple["Relay[str, str, str]", Trace]:
    trace = Trace()
    relay: Relay[str, str, str] = Relay(
        [trace] * count, lambda member: work(relay, member, trace.events), join=all_there
    )
    return relay, trace


@given(count=st.integers(1, 6), meetings=st.integers(0, 4))
def test_members_work_in_their_order_between_meetings_one_at_a_time(count: int, meetings: int) -> None:
    def work(relay: "Relay[str, str, str]", member: int, events: list[str]) -> str:
        joined = ""
        for meeting in range(meetings):
            assert relay.turn == member
            events.append(f"{member}:{meeting}")
            joined += relay.meet(str(member))
        events.append(f"{member}:end")
        return joined + str(member)

    relay, trace = race(count, work)
    found = relay.run()
    everybody = "".join(map(str, range(count)))
    assert found == [everybody * meetings + str(member) for member in range(count)]
    rounds = [*map(str, range(meetings)), "end"]
    assert trace.events == [f"{member}:{each}" for each in rounds for member in range(count)]
    assert trace.most_at_work == 1


def test_meetings_are_joined_in_the_thread_of_the_caller_which_works_too() -> None:
    joined_by, worked = [], {}

    def join(brought: Sequence[int | None]) -> int:
        joined_by.append(threading.current_thread())
        return len(brought)

    def work(member: int) -> int:
        worked[member] = threading.current_thread()
        return relay.meet(member)

    relay: Relay[int, int, int] = Relay([Trace()] * 3, work, join)
    assert relay.run() == [3, 3, 3]
    caller = threading.current_thread()
    assert joined_by == [caller] and worked[2] is caller
    assert len({worked[0], worked[1], caller}) == 3


def test_context_variables_of_the_caller_are_those_of_all() -> None:
    which = contextvars.ContextVar[str]("which")
    which.set("ours")
    relay: Relay[int, int, str] = Relay([Trace()] * 3, lambda member: which.get(), len)
    assert relay.run() == ["ours"] * 3


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("after", [0, 2])
def test_what_a_member_raises_is_raised_and_all_others_are_unwound_in_order(count: int, after: int) -> None:
    for failing in range(count):

        def work(relay: "Relay[str, str, str]", member: int, events: list[str], failing: int = failing) -> str:
            try:
                for meeting in range(3):
                    if member == failing and meeting == after:
                        raise KeyError(f"member {member}")
                    relay.meet("x")
                return ""
            finally:
                events.append(str(member))

        relay, trace = race(count, work)
        before = threading.active_count()
        with pytest.raises(KeyError, match=f"member {failing}"):
            relay.run()
        assert threading.active_count() == before
        # Those that had not begun have nothing to unwind; the caller's own part ends before the others are called.
        begun = range(failing + 1 if after == 0 else count)
        rest = [member for member in begun if member not in (failing, count - 1)]
        caller = [count - 1] if count - 1 in begun and failing != count - 1 else []
        assert trace.events == [str(member) for member in [failing, *caller, *rest]]


def test_code_that_catches_every_exception_does_not_stop_the_unwinding() -> None:
    def work(relay: "Relay[str, str, str]", member: int, events: list[str]) -> str:
        if member == 1:
            raise KeyError("the cause")
        for _ in range(3):
            try:
                relay.meet("x")
            except Exception:
                events.append("swallowed")
            except BaseException as error:
                events.append(type(error).__name__)
        raise ValueError("what comes of it")

    relay, trace = race(3, work)
    with pytest.raises(KeyError, match="the cause"):
        relay.run()
    assert trace.events == ["_OtherMemberFailed"] * 3


def test_a_join_that_raises_ends_all_also_where_exceptions_are_caught() -> None:
    def work(relay: "Relay[str, str, str]", member: int, events: list[str]) -> str:
        if member != 1:
            with contextlib.suppress(Exception):
                relay.meet(str(member))
                events.append("went on")
        return ""

    relay, trace = race(3, work)
    with pytest.raises(LookupError, match=r"somebody is missing: \['0', None, '2'\]"):
        relay.run()
    assert trace.events == []


def test_a_meeting_after_the_caller_has_ended_is_joined_too() -> None:
    def work(relay: "Relay[str, str, str]", member: int, events: list[str]) -> str:
        return relay.meet(str(member)) if member == 0 else ""

    relay, _ = race(3, work)
    with pytest.raises(LookupError, match=r"somebody is missing: \['0', None, None\]"):
        relay.run()


@pytest.mark.parametrize("member_at_work", [0, 1])
def test_an_interrupt_of_the_caller_waits_for_the_member_at_work_and_unwinds(member_at_work: int) -> None:
    def work(relay: "Relay[str, str, str]", member: int, events: list[str]) -> str:
        try:
            relay.meet("x")
            if member == member_at_work:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]  # started
                events.append("went on")
            relay.meet("y")
            return ""
        finally:
            events.append(str(member))

    relay, trace = race(3, work)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        relay.run()
    assert threading.active_count() == before
    assert sorted(trace.events) == ["0", "1", "2", "went on"]
    assert trace.events[-1] != "went on"

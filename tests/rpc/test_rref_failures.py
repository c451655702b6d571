"""References whose values never come, and the end of a worker: nobody waits for ever, and nothing is left."""

import gc
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from played_agents import (
    PlayedAgent,
    all_empty,
    ask,
    is_empty,
    leave_with_all,
    make,
    played_workers,
    remote,
)
from torch.futures import Future

from fanwise.base.errors import ClosedError, DeadlineExceeded, OwnerLostError, WorkerLostError
from fanwise.rpc.calling.futures import result_of
from fanwise.rpc.references.rref import RRef
from fanwise.testing import within

# Any throughout: what users' functions take and return.

TIMED_OUT = r"RRef creation via rpc\.remote\(\) timed out"


KEPT: list[RRef[Any]] = []


def keep(rref: RRef[Any]) -> None:
    KEPT.append(rref)


@pytest.fixture
def three() -> Iterator[list[PlayedAgent]]:
    with played_workers(3) as played:
        yield played


def fails() -> None:
    raise ValueError("it has failed")


@pytest.mark.parametrize("way", ["the value", "its creation"])
def test_an_error_that_was_raised_holds_nothing_of_whoever_asked(three: list[PlayedAgent], way: str) -> None:
    """It lies in a future of C++, through which no collector sees: what it held would stay as long as that."""
    rref = remote(0, fails)
    if way == "its creation":
        three[0].creations = Future()
        rref = remote(1, make, 1)
        three[0].creations.set_exception(ValueError("it has failed"))
    seen: list[weakref.ref[threading.Event]] = []

    def asks() -> None:
        mine = threading.Event()
        seen.append(weakref.ref(mine))
        rref.local_value() if way == "the value" else rref._get_future().wait()

    with pytest.raises(ValueError, match="it has failed"):
        asks()
    gc.collect()
    assert [ref() for ref in seen] == [None]


@pytest.mark.parametrize("owner", [0, 1])
def test_who_has_heard_that_a_creation_failed_can_use_the_reference_no_more(
    three: list[PlayedAgent], owner: int
) -> None:
    """Those who wait for a future of torch's wake before its callbacks have run."""
    made: Future[Any] = Future()
    go_on = threading.Event()
    said: list[str] = []

    def stop(_: "Future[Any]") -> None:
        go_on.wait()

    made.add_done_callback(stop)
    three[0].creations = made
    rref = remote(owner, make, 1)
    rref._get_future().add_done_callback(lambda _: said.append(what_it_says(rref)))
    failing = threading.Thread(target=made.set_exception, args=(DeadlineExceeded("RPC ran for more than that"),))
    failing.start()
    within(30.0, made.done, "the call has failed")
    heard = rref._get_future().done()
    go_on.set()
    assert not heard, "the reference did not know yet"
    with pytest.raises(DeadlineExceeded, match="RPC ran for more than"):
        rref._get_future().wait()
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        rref.to_here()
    within(30.0, lambda: len(said) == 1, "who asked to be told has been")
    assert re.match(TIMED_OUT, said[0])
    failing.join()


def what_it_says(rref: RRef[Any]) -> str:
    """The error of a use that waits for nothing."""
    with pytest.raises(RuntimeError) as caught:
        rref._serialize()
    return str(caught.value)


def test_a_value_whose_call_never_left_keeps_nobody_waiting(three: list[PlayedAgent]) -> None:
    made: Future[Any] = Future()
    three[0].creations = made
    rref = remote(0, make, 1)
    asked = three[0].references.value_of(rref._rref_id)
    made.set_exception(DeadlineExceeded("the call still waited for its link"))
    assert asked.done()
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        asked.wait()
    del rref
    all_empty(three)


@pytest.mark.parametrize(
    ("error", "mine", "theirs"),
    [
        (DeadlineExceeded("it waited"), DeadlineExceeded, DeadlineExceeded),
        (WorkerLostError("no way"), OwnerLostError, WorkerLostError),
        (ValueError("refused"), ValueError, WorkerLostError),
    ],
    ids=["late", "lost", "refused"],
)
def test_a_third_party_does_not_wait_for_a_value_whose_call_never_left(
    three: list[PlayedAgent], error: Exception, mine: type[Exception], theirs: type[Exception]
) -> None:
    made: Future[Any] = Future()
    three[0].creations = made
    rref = remote(1, make, 1)
    ask(2, keep, rref)
    handed_on = KEPT.pop()
    asked = three[1].references.value_of(rref._rref_id)
    within(30.0, handed_on.confirmed_by_owner, "the owner knows of it")
    assert not asked.done()
    made.set_exception(error)
    within(30.0, asked.done, "who waits for it is told")
    told = "waited for its link until its time ran out" if theirs is DeadlineExceeded else "could not send the call"
    for future in (asked, three[1].references.value_of(rref._rref_id)):  # who comes later too
        with pytest.raises(theirs, match=f"worker0 {told}"):
            result_of(future)
    with pytest.raises(mine):
        rref.to_here()
    del rref, handed_on, asked
    all_empty(three)


def test_a_reference_whose_creation_fails_while_it_is_handed_on_is_not_handed_on(three: list[PlayedAgent]) -> None:
    made: Future[Any] = Future()
    three[0].creations = made
    rref = remote(1, make, 1)
    new_id = three[0].references.new_id

    def just_then() -> Any:
        made.set_exception(DeadlineExceeded("the call still waited for its link"))
        return new_id()

    three[0].references.new_id = just_then  # type: ignore[method-assign]  # between two checks of the reference
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        ask(2, make, rref)
    del rref
    all_empty(three)


def test_the_end_keeps_nobody_waiting(three: list[PlayedAgent]) -> None:
    three[0].creations = Future()
    rref = remote(0, make, 1)
    asked = three[0].references.value_of(rref._rref_id)
    three[0].references.destroy()
    assert asked.done()
    with pytest.raises(ClosedError, match="RPC was shut down in this process before the value was made"):
        asked.wait()


def test_who_has_left_with_all_others_keeps_nobody_waiting(three: list[PlayedAgent]) -> None:
    three[0].late = []
    rref = remote(1, make, 1)
    leave_with_all(three, 1)
    three[0].references.delete_all_user_and_unforked_owner_rrefs(5.0)
    assert is_empty(three[0]), "that it gave up its creation needs no answer"
    assert not rref.confirmed_by_owner()

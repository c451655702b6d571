"""What every link promises, as checks that any implementation can run. Loads no pytest.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_links_keep_the_contract(check: Check) -> None:
        with my_pair() as pair:
            check(pair)

A pair is two ends that are linked and open. The hub of `far` is driven by a thread; that of `near` may be driven too,
or not at all: then who waits at `near` reads and writes himself. Each check needs a pair of its own, sets the handlers
it needs, and raises `AssertionError`, or what the link raised, when the promise is broken. It never waits longer than
a few times `patience_s`, so that a broken link fails and does not hang.
"""

import functools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fanwise.base.errors import CancelledError, ClosedError, DeadlineExceeded, WorkerLostError
from fanwise.links.link import Link, Reply, Request
from fanwise.links.peers import Ending
from fanwise.testing.within import within

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

_BIG_BYTES = 8 << 20  # far more than a socket holds
_HUGE_BYTES = 24 << 20
_NUM_ARRAYS = 8  # of each thread


@dataclass(frozen=True, slots=True)
class LinkPair:
    """Two ends of one link.

    Attributes:
        lose: cuts the link at the far end, as if its process had died: no goodbye.
        near_is_driven: whether a hub thread reads at the near end.
        patience_s: how long to wait for what must happen.
    """

    near: Link
    far: Link
    lose: Callable[[], None]
    near_is_driven: bool = True
    patience_s: float = 20.0


Check = Callable[[LinkPair], None]


def a_call_returns_the_answer(pair: LinkPair) -> None:
    pair.far.handler = _echo
    values: list[object] = [None, {"loss": 0.5, "epoch": 3}, "text", b"bytes", (1, [2, {3}]), float("inf")]
    for value in values:
        assert pair.near.ask("echo", value, within_s=pair.patience_s) == (value,)


def both_sides_may_ask(pair: LinkPair) -> None:
    pair.near.handler = pair.far.handler = _echo
    asked = started(lambda: pair.far.ask("echo", "from far", within_s=pair.patience_s))
    assert pair.near.ask("echo", "from near", within_s=pair.patience_s) == ("from near",)
    _drive(pair, asked.done)
    assert asked.result(pair.patience_s) == ("from far",)


def an_answer_may_come_later_from_another_thread(pair: LinkPair) -> None:
    requests: list[Request] = []
    pair.far.handler = requests.append
    first, second = pair.near.call("first"), pair.near.call("second")
    within(pair.patience_s, lambda: len(requests) == 2, "both requests are there")
    for request in reversed(requests):  # and in another order
        started(functools.partial(request.answer, request.method)).result(pair.patience_s)
    assert first.result(pair.patience_s) == "first"
    assert second.result(pair.patience_s) == "second"


def a_second_answer_is_ignored(pair: LinkPair) -> None:
    def twice(request: Request) -> None:
        request.answer("first")
        request.answer("second")
        request.fail(ValueError("third"))

    pair.far.handler = twice
    assert [pair.near.ask("twice", within_s=pair.patience_s) for _ in range(3)] == ["first"] * 3


def a_failure_is_raised_in_its_type_with_the_remote_traceback(pair: LinkPair) -> None:
    def handler(request: Request) -> None:
        if request.method == "fail":
            request.fail(KeyError("unknown trial"))
        else:
            raise ValueError(f"{request.method} is broken")

    pair.far.handler = handler
    failed = _raised(KeyError, lambda: pair.near.ask("fail", within_s=pair.patience_s))
    assert failed.args == ("unknown trial",)
    raised = _raised(ValueError, lambda: pair.near.ask("handler", within_s=pair.patience_s))
    assert str(raised) == "handler is broken"
    assert "in handler" in "".join(raised.__notes__), "the note holds the remote traceback"
    assert isinstance(_raised(KeyError, lambda: pair.near.ask("fail", within_s=pair.patience_s)), KeyError)


def what_nobody_handles_is_refused(pair: LinkPair) -> None:
    refused = _raised(LookupError, lambda: pair.near.ask("dance", within_s=pair.patience_s))
    assert str(refused) == "nobody here answers 'dance'"


def notices_keep_their_order_among_calls(pair: LinkPair) -> None:
    seen: list[object] = []

    def handler(request: Request) -> None:
        seen.append(request.args[0])
        request.answer(len(seen))

    pair.far.handler = handler
    for i in range(1000):
        if i % 10:
            pair.near.notify("note", i)
        else:
            assert pair.near.ask("count", i, within_s=pair.patience_s) == i + 1
    assert pair.near.ask("count", 1000, within_s=pair.patience_s) == 1001
    assert seen == list(range(1001))


def ten_thousand_calls_may_be_open_at_once(pair: LinkPair) -> None:
    requests: list[Request] = []

    def handler(request: Request) -> None:
        requests.append(request)
        if len(requests) == 10_000:
            for waiting in requests:
                waiting.answer(waiting.args[0] + 1)

    pair.far.handler = handler
    replies = [pair.near.call("more", i) for i in range(10_000)]
    assert [reply.result(pair.patience_s) for reply in replies] == list(range(1, 10_001))


def many_threads_may_use_one_link(pair: LinkPair) -> None:
    pair.far.handler = _echo

    def caller(number: int) -> list[object]:
        return [pair.near.ask("echo", number, i, within_s=pair.patience_s) for i in range(50)]

    callers = [started(functools.partial(caller, number)) for number in range(16)]
    for number, one in enumerate(callers):
        assert one.result(2 * pair.patience_s) == [(number, i) for i in range(50)]


def big_arrays_go_both_ways_at_once(pair: LinkPair) -> None:
    seen: list[int] = []

    def near_handler(request: Request) -> None:
        seen.append(int(request.args[0].sum()))
        request.answer(request.args[0])

    def far_handler(request: Request) -> None:
        request.link.call("back", np.full(_BIG_BYTES, 2, np.uint8))
        request.answer(request.args[0])

    pair.near.handler, pair.far.handler = near_handler, far_handler
    replies = [pair.near.call("there", np.full(_BIG_BYTES, i, np.uint8)) for i in range(3)]
    for i, reply in enumerate(replies):
        array = reply.result(pair.patience_s)
        assert array.nbytes == _BIG_BYTES and array.min() == array.max() == i
    _drive(pair, lambda: len(seen) == 3)
    assert seen == [2 * _BIG_BYTES] * 3
    assert pair.near.ask("there", 7, within_s=pair.patience_s) == 7


def arrays_belong_to_the_receiver(pair: LinkPair) -> None:
    kept: list[tuple[int, Any]] = []  # Any: arrays

    def far_handler(request: Request) -> None:
        (array,) = request.args
        number = int(array[0])
        assert (array == number).all(), "what was sent has come"
        array += 1
        if number % 3:
            kept.append((number + 1, array))
        if len(kept) > 6:
            del kept[::2]
        request.answer(array)

    pair.far.handler = far_handler
    callers = [started(functools.partial(_keep_and_drop, pair, thread)) for thread in range(4)]
    for caller in callers:
        caller.result(4 * pair.patience_s)
    assert kept and all((array == number).all() for number, array in kept), "nobody else has written there"


def _keep_and_drop(pair: LinkPair, thread: int) -> None:
    chance = random.Random(thread)
    mine: list[tuple[int, Any]] = []  # Any: arrays
    for i in range(_NUM_ARRAYS):
        number = _NUM_ARRAYS * thread + i
        size = _HUGE_BYTES if i == thread == 3 else chance.choice([1000, 100_000, 200_000, 1 << 20, 5_000_001])
        array = np.full(size, number, np.uint8)
        back = pair.near.ask("add one", array, within_s=4 * pair.patience_s)
        assert (array == number).all(), "an argument stays as it was"
        assert (back == number + 1).all() and back.size == size
        back += 1
        mine.append((number + 2, back))
        chance.shuffle(mine)
        del mine[4:]
    assert all((array == number).all() for number, array in mine), "nobody else has written there"


def an_array_may_be_changed_after_a_call(pair: LinkPair) -> None:
    go_on = threading.Event()
    sums: list[int] = []

    def handler(request: Request) -> None:
        go_on.wait(pair.patience_s)  # nobody reads, so that most of it is still here when `call` returns
        if request.method == "array":
            sums.append(int(request.args[0].sum()))
        request.answer()

    pair.far.handler = handler
    array = np.ones(_BIG_BYTES, np.uint8)
    blocker = pair.near.call("wait")
    called = started(lambda: pair.near.call("array", array))
    if pair.near_is_driven:
        called.result(pair.patience_s)
        array[:] = 0
    go_on.set()
    called.result(pair.patience_s).result(pair.patience_s)
    array[:] = 0
    blocker.result(pair.patience_s)
    assert sums == [_BIG_BYTES]


def waiting_ends_at_its_limit_and_a_late_answer_is_counted(pair: LinkPair) -> None:
    requests: list[Request] = []
    given: list[object] = []
    pair.far.handler = requests.append
    pair.near.on_late = lambda head, buffers: given.append(pair.near.loads(head, buffers))
    late = _raised(DeadlineExceeded, lambda: pair.near.ask("slow", within_s=0.05))
    assert "'slow' was not answered by " in str(late) and "within 0.05 s" in str(late)
    within(pair.patience_s, lambda: len(requests) == 1, "the request is there")
    requests[0].answer("late")
    pair.far.handler = _echo
    assert pair.near.ask("echo", 1, within_s=pair.patience_s) == (1,)
    assert pair.near._calls.num_late_answers == 1 and given == ["late"], "whoever keeps count of what it holds is told"


def a_call_fails_at_its_deadline(pair: LinkPair) -> None:
    pair.far.handler = lambda request: None
    never, soon = pair.near.call("never"), pair.near.call("soon", deadline_s=0.05)
    later = pair.near.call("later", deadline_s=3600.0)
    late = _raised(DeadlineExceeded, lambda: soon.result(pair.patience_s))
    assert "'soon' was not answered" in str(late)
    _raised(DeadlineExceeded, lambda: pair.near.call("wait", deadline_s=0.05).result())
    assert (never.done(), soon.done(), later.done()) == (False, True, False)
    if pair.near_is_driven:
        told: list[Reply] = []
        unwaited = pair.near.call("unwaited", deadline_s=0.05)
        unwaited.add_done_callback(told.append)
        within(pair.patience_s, lambda: told == [unwaited], "the callback was told of the deadline")


def a_canceled_call_fails_at_once_and_the_callee_learns_of_it(pair: LinkPair) -> None:
    requests: list[Request] = []
    canceled = threading.Event()

    def receive(request: Request) -> None:
        request.on_cancel = canceled.set
        requests.append(request)

    pair.far.handler = receive
    reply = pair.near.call_on_credit("never")
    within(pair.patience_s, lambda: len(requests) == 1, "the call is there")
    waits = started(reply.wait)  # reads, where no hub does
    assert reply.cancel() and not reply.cancel() and reply.done()
    waits.result(pair.patience_s)
    _raised(CancelledError, reply.result)
    within(pair.patience_s, canceled.is_set, "the callee knows")
    requests[0].unanswered()
    answered = pair.near.call_on_credit("again")
    within(pair.patience_s, lambda: len(requests) == 2, "the next call is there")
    requests[1].answer(5)
    assert answered.result(pair.patience_s) == 5 and not answered.cancel()


def loss_fails_every_open_call(pair: LinkPair) -> None:
    requests: list[Request] = []
    endings: list[Ending] = []
    pair.far.handler = requests.append
    pair.near.on_ended(lambda link, ending: endings.append(ending))
    callers = [started(lambda: pair.near.ask("ask", within_s=10 * pair.patience_s)) for _ in range(3)]
    replies = [pair.near.call("call", i) for i in range(100)]
    within(pair.patience_s, lambda: len(requests) == 103, "all requests are there")
    pair.lose()
    for caller in callers:
        lost = _raised(WorkerLostError, functools.partial(caller.result, pair.patience_s))
        assert "'ask' was not answered" in str(lost)
    for reply in replies:
        _raised(WorkerLostError, functools.partial(reply.result, pair.patience_s))
    _raised(WorkerLostError, lambda: pair.near.call("more"))
    _raised(WorkerLostError, lambda: pair.near.notify("more"))
    within(pair.patience_s, lambda: len(endings) == 1, "the ending was told")
    assert pair.near.ending == endings[0] and not endings[0].clean
    pair.near.on_ended(lambda link, ending: endings.append(ending))
    assert len(endings) == 2, "who asks later is told at once"


def a_clean_close_reaches_the_other_side(pair: LinkPair) -> None:
    requests: list[Request] = []
    pair.far.handler = requests.append
    caller = started(lambda: pair.near.ask("ask", within_s=10 * pair.patience_s))
    within(pair.patience_s, lambda: len(requests) == 1, "the request is there")
    pair.far.close("retired")
    closed = _raised(ClosedError, lambda: caller.result(pair.patience_s))
    assert "'ask' was not answered" in str(closed) and "(retired)" in str(closed)
    assert pair.near.ending == Ending(True, "retired") == pair.far.ending
    _raised(ClosedError, lambda: pair.near.ask("more"))
    _raised(ClosedError, lambda: pair.far.notify("more"))


def closing_wakes_who_waits_at_this_side(pair: LinkPair) -> None:
    requests: list[Request] = []
    pair.far.handler = requests.append
    callers = [started(lambda: pair.near.ask("ask", within_s=10 * pair.patience_s)) for _ in range(3)]
    within(pair.patience_s, lambda: len(requests) == 3, "all requests are there")
    pair.near.close("enough")
    for caller in callers:
        assert "(enough)" in str(_raised(ClosedError, functools.partial(caller.result, pair.patience_s)))
    within(pair.patience_s, lambda: pair.far.ending is not None, "the far side knows")
    assert pair.far.ending == Ending(True, "enough")
    requests[0].answer("too late for anybody")


def several_closes_are_one(pair: LinkPair) -> None:
    endings: list[tuple[str, bool]] = []
    pair.near.on_ended(lambda link, ending: endings.append(("near", ending.clean)))
    pair.far.on_ended(lambda link, ending: endings.append(("far", ending.clean)))
    barrier = threading.Barrier(8)

    def closer(link: Link) -> None:
        barrier.wait(pair.patience_s)
        link.close()

    for one in [started(functools.partial(closer, link)) for link in [pair.near, pair.far] * 4]:
        one.result(pair.patience_s)
    within(pair.patience_s, lambda: len(endings) == 2, "both ends were told")
    assert sorted(endings) == [("far", True), ("near", True)]


def a_broken_callback_stops_nothing(pair: LinkPair) -> None:
    pair.far.handler = _echo

    def broken(_: object) -> None:
        raise RuntimeError("this traceback in the log belongs to a test")

    told: list[Any] = []  # Any: what the reply holds
    replies = [pair.near.call("echo", i) for i in range(3)]
    for reply in replies:
        reply.add_done_callback(_once_undone(broken, reply))
        reply.add_done_callback(lambda reply: told.append(reply.result()))
    assert [reply.result(pair.patience_s) for reply in replies] == [(0,), (1,), (2,)]
    within(pair.patience_s, lambda: told == [(0,), (1,), (2,)], "the other callbacks were told")
    pair.near.on_ended(lambda link, ending: broken(link))
    pair.near.on_ended(lambda link, ending: told.append(ending.reason))
    pair.near.close("with a broken callback")
    assert told[3:] == ["with a broken callback"]


def a_handler_may_ask_back_but_not_wait(pair: LinkPair) -> None:
    def asks_back(request: Request) -> None:
        if request.method == "wait":
            request.answer(pair.far.ask("echo", "never"))
        else:
            pair.far.call("echo", *request.args).add_done_callback(lambda reply: request.answer(reply.result()))

    pair.near.handler, pair.far.handler = _echo, asks_back
    assert pair.near.ask("back", "there and back", within_s=pair.patience_s) == ("there and back",)
    refused = _raised(RuntimeError, lambda: pair.near.ask("wait", within_s=pair.patience_s))
    assert "waiting for 'echo' here would never end" in str(refused)


CHECKS: Sequence[Check] = (
    a_call_returns_the_answer,
    both_sides_may_ask,
    an_answer_may_come_later_from_another_thread,
    a_second_answer_is_ignored,
    a_failure_is_raised_in_its_type_with_the_remote_traceback,
    what_nobody_handles_is_refused,
    notices_keep_their_order_among_calls,
    ten_thousand_calls_may_be_open_at_once,
    many_threads_may_use_one_link,
    big_arrays_go_both_ways_at_once,
    arrays_belong_to_the_receiver,
    an_array_may_be_changed_after_a_call,
    waiting_ends_at_its_limit_and_a_late_answer_is_counted,
    a_call_fails_at_its_deadline,
    a_canceled_call_fails_at_once_and_the_callee_learns_of_it,
    loss_fails_every_open_call,
    a_clean_close_reaches_the_other_side,
    closing_wakes_who_waits_at_this_side,
    several_closes_are_one,
    a_broken_callback_stops_nothing,
    a_handler_may_ask_back_but_not_wait,
)


def _echo(request: Request) -> None:
    request.answer(request.args)


def _once_undone(callback: Callable[[Reply], None], reply: Reply) -> Callable[[Reply], None]:
    """`callback`, but harmless when the reply is done already: then it would run in the check itself."""
    return (lambda reply: None) if reply.done() else callback


def started(work: Callable[[], T]) -> "Future[T]":
    """Run `work` in a daemon thread, so that a broken link does not keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _raised(kind: type[E], work: Callable[[], object]) -> E:
    try:
        value = work()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; there was an answer: {value!r}")


def _drive(pair: LinkPair, until: Callable[[], bool]) -> None:
    """Wait for a fact at the near end; where no hub thread reads, turn its hub meanwhile."""

    def fact() -> bool:
        if not pair.near_is_driven:
            pair.near._hub.turn(0.0)
        return until()

    within(pair.patience_s, fact, "the near end has read what came")

"""Calls on credit over real sockets: which threads wait, and how each wait ends."""

import contextlib
import gc
import random
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fanwise.base.errors import ClosedError, DeadlineExceeded, WindowFullError, WorkerLostError
from fanwise.links import frames
from fanwise.links.codec import dumps
from fanwise.links.credits import OVERDRAFT, WINDOW_MAX, WINDOW_MIN, cost_of
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Reply, Request
from fanwise.links.transports.wires import SocketWire
from fanwise.testing import within

SIZE = WINDOW_MIN // 4


class Pair:
    """A caller, and a callee whose calls wait until the test takes them up."""

    def __init__(self) -> None:
        self.hubs = Hub(name="caller"), Hub(name="callee")
        near_end, far_end = socket.socketpair()
        ends = zip(self.hubs, (near_end, far_end), strict=True)
        self.link, self.other = (Link(hub, SocketWire(end)) for hub, end in ends)
        self.came: deque[Request] = deque()
        self.other.handler = self.came.append
        for link in (self.link, self.other):
            link.open()

    def start(self) -> "Pair":
        for hub in self.hubs:
            hub.start()
        return self

    def call(self, size: int = SIZE, **settings: float) -> Reply:
        return self.link.call_on_credit("x" * size, **settings)  # type: ignore[arg-type]  # seconds

    def fill(self) -> Reply:
        """The largest window is full."""
        call = self.call(WINDOW_MAX)
        within(10.0, lambda: len(self.came) == 1, "it came")
        return call

    def fill_the_first_window(self) -> list[Reply]:
        calls = [self.call() for _ in range(3)]
        within(10.0, lambda: len(self.came) == 3, "the first window is full")
        return calls

    def fill_and_stop_reading(self) -> threading.Event:
        """Let the caller fill its window, and then read nothing until the event is set (or 10 s)."""
        self.fill_the_first_window()
        stopped, resume = threading.Event(), threading.Event()

        def stop() -> None:
            stopped.set()
            resume.wait(10.0)

        self.hubs[0].call_soon(stop)
        assert stopped.wait(10.0)
        return resume

    def answer_all(self) -> None:
        while self.came:
            self.came.popleft().answer(1)

    def close(self) -> None:
        for hub in self.hubs:
            hub.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair().start()
    yield pair
    pair.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def is_waiting(pair: Pair) -> bool:
    return pair.link._calls.spending.num_waiting > 0


def test_a_call_beyond_the_window_leaves_when_enough_are_taken_up(pair: Pair, threads: ThreadPoolExecutor) -> None:
    calls = [pair.fill()]
    late = threads.submit(pair.call)
    within(10.0, lambda: is_waiting(pair), "it waits")
    first = pair.came.popleft()
    first.taken_up()
    calls.append(late.result(10.0))
    within(10.0, lambda: len(pair.came) == 1, "it came")
    first.answer(1)
    pair.answer_all()
    assert [call.result(10.0) for call in calls] == [1] * 2


def test_a_link_that_wants_more_than_links_begin_with_gets_its_share(pair: Pair) -> None:
    pair.fill_the_first_window()
    assert pair.link._calls.spending.window == WINDOW_MIN
    for _ in range(9):
        pair.call()
    within(10.0, lambda: len(pair.came) == 12, "all came, and none was taken up")
    assert pair.link._calls.spending.window == WINDOW_MAX


def test_an_answer_takes_up_what_nobody_did(pair: Pair) -> None:
    for _ in range(3):
        call = pair.fill()
        pair.answer_all()
        assert call.result(10.0) == 1


def test_a_call_larger_than_every_window_leaves_when_it_is_alone(pair: Pair, threads: ThreadPoolExecutor) -> None:
    pair.fill_the_first_window()
    huge = threads.submit(pair.call, WINDOW_MAX + 1)
    within(10.0, lambda: is_waiting(pair), "it waits")
    pair.answer_all()
    reply = huge.result(10.0)
    within(10.0, lambda: len(pair.came) == 1, "it came")
    pair.answer_all()
    assert reply.result(10.0) == 1


@pytest.mark.parametrize("way", ["call", "ask"])
def test_a_call_that_waits_too_long_has_not_left_and_costs_nothing(pair: Pair, way: str) -> None:
    call = pair.fill()
    before = pair.link._calls.spending.sent
    ways: dict[str, Callable[[], object]] = {
        "call": lambda: pair.call(deadline_s=0.05),
        "ask": lambda: pair.link.ask_on_credit("x" * SIZE, within_s=0.05),
    }
    with pytest.raises(DeadlineExceeded, match=r"was not sent within 0\.05 s: .* had no room for it"):
        ways[way]()
    assert pair.link._calls.spending.sent == before and pair.link.num_open == 1 and not is_waiting(pair)
    pair.answer_all()
    assert call.result(10.0) == 1
    pair.call()
    within(10.0, lambda: len(pair.came) == 1, "the next one came")


def test_the_time_that_a_call_waited_is_part_of_its_own(pair: Pair, threads: ThreadPoolExecutor) -> None:
    pair.fill()
    late = threads.submit(pair.call, deadline_s=100.0)
    within(10.0, lambda: is_waiting(pair), "it waits")
    waited_s = pair.hubs[0].clock.now_s()
    pair.answer_all()
    due_s = late.result(10.0)._due_s
    assert due_s is not None and due_s - 100.0 <= waited_s


def test_answers_and_book_keeping_pass_calls_that_wait(pair: Pair, threads: ThreadPoolExecutor) -> None:
    pair.fill()
    pair.link.handler = lambda request: request.answer("there")
    late = threads.submit(pair.call)
    within(10.0, lambda: is_waiting(pair), "a call waits")
    assert pair.other.ask("here?", within_s=10.0) == "there"
    pair.other.handler = lambda request: request.answer("here")
    assert pair.link.ask("there?", within_s=10.0) == "here"
    assert not late.done()
    pair.answer_all()
    assert late.result(10.0).result(10.0) == "here"


@pytest.mark.parametrize("ends", ["closed", "lost"])
def test_who_waits_hears_of_the_end_of_the_link(pair: Pair, threads: ThreadPoolExecutor, ends: str) -> None:
    pair.fill()
    late = [threads.submit(pair.call) for _ in range(3)]
    within(10.0, lambda: pair.link._calls.spending.num_waiting == 3, "they wait")
    if ends == "closed":
        pair.link.close()
    else:
        pair.link.lose("it was cut")
    for one in late:
        with pytest.raises(ClosedError if ends == "closed" else WorkerLostError, match="was not sent"):
            one.result(10.0)


def test_who_waits_gives_way_meanwhile(pair: Pair, threads: ThreadPoolExecutor) -> None:
    gave_way, came_back = threading.Event(), threading.Event()

    class Waiting:
        def __enter__(self) -> None:
            gave_way.set()

        def __exit__(self, *_: object) -> None:
            came_back.set()

    pair.fill()
    late = threads.submit(lambda: pair.link.call_on_credit("x" * SIZE, waiting=Waiting))
    assert gave_way.wait(10.0) and not came_back.is_set()
    pair.answer_all()
    late.result(10.0)
    assert came_back.is_set()


def test_a_thread_that_reads_does_not_wait_it_overdraws_and_is_refused_at_last(pair: Pair) -> None:
    pair.fill_the_first_window()
    errors: list[Exception] = []
    done = threading.Event()

    def handler(request: Request) -> None:
        sent = 0
        try:
            while sent < 2 * OVERDRAFT:
                pair.call()
                sent += SIZE
        except WindowFullError as error:
            errors.append(error)
        request.answer(sent)
        done.set()

    pair.link.handler = handler
    sent = pair.other.ask("call back", within_s=10.0)
    assert done.wait(10.0) and OVERDRAFT - 2 * SIZE <= sent <= OVERDRAFT + SIZE
    assert "this thread reads the answers, so it must not wait" in str(errors[0])
    within(10.0, lambda: len(pair.came) == 3 + sent // SIZE, "the overdrawn calls have arrived")


def test_a_peer_that_does_not_take_its_answers_gets_no_more_begun_until_it_does(pair: Pair) -> None:
    resume, again = pair.fill_and_stop_reading(), threading.Event()
    assert not pair.came[0].when_answers_leave(again.set)
    pair.came.popleft().answer(bytes(8 << 20))
    assert pair.came[0].when_answers_leave(again.set)
    assert not again.wait(0.05)
    resume.set()
    assert again.wait(10.0)
    assert not pair.came[0].when_answers_leave(again.set)


def test_what_is_held_for_a_peer_is_let_go_when_its_link_ends(pair: Pair) -> None:
    resume, again = pair.fill_and_stop_reading(), threading.Event()
    pair.came.popleft().answer(bytes(8 << 20))
    assert pair.came[0].when_answers_leave(again.set)
    pair.other.lose("it was cut")
    assert again.wait(10.0) and not pair.came[0].when_answers_leave(again.set)
    resume.set()


def test_where_no_hub_is_driven_who_waits_reads_the_credit_itself(threads: ThreadPoolExecutor) -> None:
    pair = Pair()
    pair.hubs[1].start()
    calls = [pair.fill()]
    late = threads.submit(pair.call)
    within(10.0, lambda: is_waiting(pair), "it waits")
    pair.came.popleft().answer(1)  # not all: the late one may come while this is answered
    calls.append(late.result(10.0))
    within(10.0, lambda: len(pair.came) == 1, "it came")
    pair.answer_all()
    assert [call.result(10.0) for call in calls] == [1] * 2
    pair.close()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))])
def test_calls_of_many_threads_all_come_and_never_more_than_were_granted(seed: int) -> None:
    pair, lock, most = Pair().start(), threading.Lock(), 0
    chance = random.Random(seed)
    sizes = [[chance.choice((10, 3000, SIZE, WINDOW_MIN, WINDOW_MAX // 3)) for _ in range(40)] for _ in range(4)]

    def handler(request: Request) -> None:
        nonlocal most
        with lock:
            pair.came.append(request)
            costs = [cost_of(b"", []) + len(item.method) for item in pair.came]
            most = max(most, sum(costs[1:]))

    pair.other.handler = handler
    over = threading.Event()

    def take_up() -> None:
        while not over.is_set():
            threading.Event().wait(0.0005)
            with lock:
                taken = [pair.came.popleft() for _ in range(chance.randrange(len(pair.came) + 1))]
            for request in taken:
                request.taken_up()
                request.answer(len(request.method))

    def call(sizes: list[int]) -> list[int]:
        replies = [pair.call(size, deadline_s=30.0) for size in sizes[:-1]]
        return [*(reply.result(10.0) for reply in replies), pair.link.ask_on_credit("x" * sizes[-1], within_s=30.0)]

    taker = threading.Thread(target=take_up)
    taker.start()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(call, sizes)) == sizes
    over.set()
    taker.join()
    assert most <= WINDOW_MAX
    assert pair.link._calls.spending.sent == pair.other._granting.started
    pair.close()


# -- peers that do not keep to it ----------------------------------------------------------------------------------


def ended(hub: Hub, send: Callable[[socket.socket], None]) -> str:
    """Why a link ended to which this was sent."""
    near_end, far_end = socket.socketpair()
    link = Link(hub, SocketWire(near_end))
    link.handler = lambda request: None
    link.open()
    hub.start()
    with far_end:
        send(far_end)
        within(10.0, lambda: link.ending is not None, "the link has ended")
    assert link.ending is not None
    hub.close()
    return link.ending.reason


def test_a_peer_that_sends_more_than_it_was_granted_is_cut_off() -> None:
    call = b"".join(frames.encode(frames.CALL, 1, dumps(("f", ()))[0], [memoryview(bytes(WINDOW_MAX))]))

    def send(peer: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is cut off while this is sent
            for _ in range(3):
                peer.sendall(call)

    assert "more calls than this side has room for" in ended(Hub(name="granting"), send)


@pytest.mark.parametrize(
    ("kind", "head", "said"),
    [
        (frames.CREDIT, struct.pack("<QQ", 1, WINDOW_MIN), "credit that it cannot give"),
        (frames.CREDIT, struct.pack("<QQ", 0, 0), "credit that it cannot give"),
        (frames.CREDIT, b"", "credit that it cannot give"),
        (frames.WANT, b"1234", "a frame about credit has 4 bytes"),
    ],
)
def test_credit_that_cannot_be_ends_the_link(kind: int, head: bytes, said: str) -> None:
    assert said in ended(Hub(name="credit"), lambda peer: peer.sendall(b"".join(frames.encode(kind, 0, head))))


# -- interrupts --------------------------------------------------------------------------------------------------------


class Interrupted:
    """Replaces a function or lock: Ctrl-C interrupts its first use, and later ones work."""

    def __init__(self, real: Any) -> None:  # Any: the replaced object
        self._real = real
        self.times = 0

    def _hit(self) -> None:
        self.times += 1
        if self.times == 1:
            raise KeyboardInterrupt

    def __call__(self, *args: Any) -> Any:
        self._hit()
        return self._real(*args)

    def __enter__(self) -> None:
        self._hit()
        self._real.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._real.__exit__(*error)


@pytest.mark.parametrize("way", ["call", "ask"])
@pytest.mark.parametrize("where", ["it is encoded", "the sender is waited for"])
def test_ctrl_c_before_a_call_has_left_returns_its_credit(
    pair: Pair, way: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, before = pair.link, pair.link._calls.spending.sent
    if where == "it is encoded":
        hit = Interrupted(frames.encode)
        monkeypatch.setattr("fanwise.links.link.frames.encode", hit)
    else:
        hit = Interrupted(link._writer._lock)
        link._writer._lock = hit  # type: ignore[assignment]  # of a kind
    with pytest.raises(KeyboardInterrupt):
        _ = pair.call() if way == "call" else link.ask_on_credit("x" * SIZE)
    assert hit.times >= 1
    assert link._calls.spending.sent == before and link.num_open == 0 and pair.other._granting.total_cost == 0
    assert link.counts().calls_made == 0
    pair.other.handler = lambda request: request.answer(1)
    assert pair.call().result(10.0) == 1


def test_ctrl_c_while_a_call_waits_for_credit_lets_the_next_have_its_turn(
    pair: Pair, threads: ThreadPoolExecutor
) -> None:
    pair.fill_the_first_window()

    class Struck:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *error: object) -> None: ...

    sent = pair.link._calls.spending.sent
    with pytest.raises(KeyboardInterrupt):
        pair.link.call_on_credit("x" * WINDOW_MAX, waiting=Struck)
    assert pair.link._calls.spending.sent == sent and not is_waiting(pair)
    late = threads.submit(pair.call)
    pair.answer_all()
    late.result(10.0)


def test_a_call_interrupted_while_it_is_written_leaves_as_a_whole(pair: Pair) -> None:
    pair.link._wire.write = Interrupted(pair.link._wire.write)  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        pair.call()
    within(10.0, lambda: len(pair.came) == 1, "it has arrived")
    assert pair.link.ending is None


def num_interrupted(call: Callable[[int], object], delay_s: Callable[[], float]) -> int:
    """Make 3,000 calls, each with a KeyboardInterrupt after `delay_s()`. Return how many were interrupted."""
    armed: list[int] = []
    hits = 0

    def strike(*_: object) -> None:
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    gc.disable()  # an exception in a callback of the collector is lost
    try:
        for number in range(3000):
            try:
                armed.append(1)
                signal.setitimer(signal.ITIMER_REAL, delay_s())
                call(number)
                armed.clear()
            except KeyboardInterrupt:
                hits += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    return hits


def test_ctrl_c_at_any_moment_of_many_calls_leaves_the_link_whole_and_its_credit_next_to_whole(
    pair: Pair, threads: ThreadPoolExecutor
) -> None:
    link, chance = pair.link, random.Random(1)
    pair.fill()
    late = threads.submit(pair.call)  # it waits, so the link has the largest window afterwards: no other call waits
    within(10.0, lambda: is_waiting(pair), "it waits")
    pair.answer_all()
    late.result(10.0)
    within(10.0, lambda: link._calls.spending.window == WINDOW_MAX, "the window has grown")
    pair.answer_all()
    pair.other.handler = lambda request: request.answer(1)

    hits = num_interrupted(lambda _: link.call_on_credit("x"), lambda: chance.uniform(0.000005, 0.00008))
    assert hits > 150
    assert link.ending is None and link.ask_on_credit("y", within_s=10.0) == 1
    lost = link._calls.spending.sent - pair.other._granting.total_cost
    # 2 in 100 calls are interrupted during the write, and 15 in 100 between taking credit and the write.
    most = hits * cost_of(b"x" * 100, ()) // 12
    assert 0 <= lost <= most


def test_ctrl_c_at_any_moment_of_many_answers_leaves_the_link_whole(pair: Pair) -> None:
    link, chance = pair.link, random.Random(2)
    pair.other.handler = lambda request: request.answer(request.method)

    def call(number: int) -> None:
        assert link.ask_on_credit(f"{number}", within_s=10.0) == f"{number}"

    hits = num_interrupted(call, lambda: chance.uniform(0.00001, 0.0003))
    assert hits > 150
    assert link.ending is None and link.ask_on_credit("y", within_s=10.0) == "y"

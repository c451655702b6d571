"""Calls that wait for links: they keep their order, and each is sent or fails exactly once."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import pytest

from fanwise.base.errors import ClosedError, DeadlineExceeded, FanwiseError, WorkerLostError
from fanwise.links.credits import OVERDRAFT
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.peers import Ending
from fanwise.links.transports.unix import link_pair
from fanwise.rpc.connections import Connections
from fanwise.rpc.hub_thread import OneShot
from fanwise.rpc.membership.members import Member
from fanwise.rpc.messages.messages import dumps, loads
from fanwise.rpc.routes import Routes
from fanwise.rpc.worker_info import WorkerInfo
from fanwise.testing import within

LIMIT_S = 30.0


class PlayedLink:
    """The attributes of a link that `Routes` uses."""

    ending: Ending | None = None
    num_open = 0

    def end(self) -> None:
        self.ending = Ending(False, "it was cut")


class PlayedCall:
    """Notes what becomes of it."""

    def __init__(self, name: str, log: list[str], due_s: float | None = None, num_bytes: int = 100) -> None:
        self.name = name
        self.deadline_s = due_s
        self.num_bytes = num_bytes
        self.log = log

    def send(self, link: Link) -> None:
        self.log.append(f"{self.name} left")

    def fail(self, error: FanwiseError) -> None:
        self.log.append(f"{self.name} failed: {type(error).__name__}")


def played() -> Any:  # Any: in the place of a Link
    return PlayedLink()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="routes")
    hub.start()
    yield hub
    hub.close()


@pytest.fixture
def routes(hub: Hub) -> Routes:
    return Routes(hub)


@pytest.fixture
def log() -> list[str]:
    return []


def test_a_link_is_ready_until_it_ends(routes: Routes) -> None:
    assert routes.get_open(1) is None and routes.link_to(1) is None
    link, newer = played(), played()
    assert routes.add(1, link) == link
    assert routes.get_open(1) == link and routes.link_to(1) == link
    assert routes.add(1, newer) == link, "calls stay on one link"
    link.end()
    assert routes.get_open(1) is None and routes.link_to(1) is None
    assert routes.add(1, newer) == newer
    routes.remove(1, link)
    assert routes.get_open(1) == newer
    routes.remove(1, newer)
    assert routes.links == {}


def test_calls_leave_in_their_order_and_none_passes_them(routes: Routes, log: list[str]) -> None:
    assert routes.queue(1, PlayedCall("one", log)) == "first"
    assert routes.queue(1, PlayedCall("two", log)) == "queued"
    link = played()
    assert routes.add(1, link) == link
    assert routes.get_open(1) is None and routes.link_to(1) == link and routes.is_awaited(1)
    assert routes.queue(1, PlayedCall("three", log)) == "queued"
    assert log == []
    assert routes.flush(1, link) == link
    assert log == ["one left", "two left", "three left"]
    assert routes.get_open(1) == link and not routes.is_awaited(1)


def test_a_link_that_is_made_just_before_a_call_is_queued_is_kept_back_for_it(routes: Routes, log: list[str]) -> None:
    routes.add(1, link := played())
    assert routes.queue(1, PlayedCall("one", log)) == "first", "somebody has to let it out"
    assert routes.get_open(1) is None and routes.link_to(1) == link
    routes.flush(1, link)
    assert routes.get_open(1) == link and log == ["one left"]


def test_no_more_calls_wait_than_may_leave_without_credit_also_while_some_leave(routes: Routes, log: list[str]) -> None:
    assert routes.queue(1, PlayedCall("half", log, num_bytes=OVERDRAFT // 2)) == "first"
    assert routes.queue(1, PlayedCall("half", log, num_bytes=OVERDRAFT // 2)) == "queued"
    assert routes.queue(1, PlayedCall("small", log)) == "full"
    assert routes.queue(2, PlayedCall("huge", log, num_bytes=9 * OVERDRAFT)) == "first", "of any size"
    assert routes.queue(2, PlayedCall("small", log)) == "full"

    class Queues(PlayedCall):
        def send(self, link: Link) -> None:
            assert routes.queue(3, PlayedCall("small", log)) == "full"
            super().send(link)

    routes.queue(3, Queues("one", log, num_bytes=OVERDRAFT))
    routes.flush(3, played())
    assert log == ["one left"]
    assert routes.queue(3, PlayedCall("later", log)) == "first"


def test_calls_that_wait_no_more_make_room_for_others(hub: Hub, routes: Routes, log: list[str]) -> None:
    assert routes.queue(1, PlayedCall("late", log, hub.clock.now_s(), num_bytes=OVERDRAFT)) == "first"
    within(LIMIT_S, lambda: log == ["late failed: DeadlineExceeded"], "its time is over")
    assert routes.queue(1, PlayedCall("small", log)) == "queued"
    routes.close(lambda: ClosedError("closed."))


def test_a_call_that_is_queued_while_others_leave_leaves_too(routes: Routes, log: list[str]) -> None:
    class Queues(PlayedCall):
        def send(self, link: Link) -> None:
            assert routes.num_open == 2, "this one, and the other"
            assert routes.queue(1, PlayedCall("late", log)) == "queued"
            super().send(link)

    routes.queue(1, Queues("one", log))
    routes.queue(1, PlayedCall("two", log))
    routes.flush(1, played())
    assert log == ["one left", "two left", "late left"]
    assert routes.num_open == 0


def test_a_link_that_ends_while_calls_leave_is_not_there_for_others(routes: Routes, log: list[str]) -> None:
    routes.queue(1, PlayedCall("one", log))
    routes.add(1, link := played())
    link.end()
    routes.remove(1, link)
    assert routes.link_to(1) is None
    routes.flush(1, link)
    assert routes.links == {} and routes.is_awaited(1) and log == [], "they wait for the next"
    routes.add(1, after := played())
    routes.flush(1, after)
    assert routes.links == {1: after} and not routes.is_awaited(1) and log == ["one left"]


def test_what_waits_is_counted_with_what_was_sent(routes: Routes, log: list[str]) -> None:
    routes.queue(1, PlayedCall("one", log))
    routes.queue(2, PlayedCall("two", log))
    link, other = played(), played()
    link.num_open, other.num_open = 10, 100
    routes.add(1, link)
    routes.add(3, other)
    assert routes.num_open == 112
    routes.flush(1, link)
    assert routes.num_open == 111


def test_all_that_wait_for_one_link_fail_together_and_others_do_not(routes: Routes, log: list[str]) -> None:
    routes.queue(1, PlayedCall("one", log))
    routes.queue(1, PlayedCall("two", log))
    routes.queue(2, PlayedCall("other", log))
    routes.fail_all(1, WorkerLostError("gone."))
    routes.fail_all(1, WorkerLostError("gone."))
    assert log == ["one failed: WorkerLostError", "two failed: WorkerLostError"]
    assert not routes.is_awaited(1) and routes.is_awaited(2)


def test_who_could_not_make_a_link_does_not_give_up_one_that_came_meanwhile(routes: Routes, log: list[str]) -> None:
    routes.queue(1, PlayedCall("one", log))
    routes.add(1, link := played())
    routes.fail_all(1, WorkerLostError("nobody listens."), unless_linked=True)
    assert log == [] and routes.is_awaited(1)
    link.end()
    routes.fail_all(1, WorkerLostError("nobody listens."), unless_linked=True)
    assert log == ["one failed: WorkerLostError"]


def test_after_the_end_calls_fail_at_once(routes: Routes, log: list[str]) -> None:
    routes.queue(1, PlayedCall("one", log))
    routes.close(lambda: WorkerLostError("fenced."), for_good=False)
    assert routes.queue(1, PlayedCall("two", log)) == "first"
    routes.close(lambda: ClosedError("closed."))
    assert routes.queue(1, PlayedCall("three", log)) == "queued"
    assert log == ["one failed: WorkerLostError", "two failed: ClosedError", "three failed: ClosedError"]


def test_only_those_whose_time_has_run_out_fail(hub: Hub, routes: Routes, log: list[str]) -> None:
    now_s = hub.clock.now_s()
    routes.queue(1, PlayedCall("patient", log))
    routes.queue(1, PlayedCall("late", log, now_s + 0.05))
    routes.queue(2, PlayedCall("over", log, now_s - 1.0))
    routes.queue(1, PlayedCall("waits", log, now_s + 1000.0))
    within(LIMIT_S, lambda: len(log) == 2, "two have failed")
    assert log == ["over failed: DeadlineExceeded", "late failed: DeadlineExceeded"]
    routes.flush(1, played())
    assert log[2:] == ["patient left", "waits left"]
    routes.close(lambda: ClosedError("closed."))


# -- links that are made -------------------------------------------------------------------------------------------


def member(name: str, id: int, incarnation: int) -> Member:
    return Member(name, id, incarnation, f"at {incarnation}", "host", 1)


class PlayedGroup:
    """Two workers; nobody listens at the address of the first incarnation of the other."""

    def __init__(self, hub: Hub, views: list[Member | None]) -> None:
        self.me = member("w0", 0, 10)
        self.fenced: str | None = None
        self.knows = 1
        self.former: dict[int, Member] = {}
        self.ending = OneShot()
        self.dialled: list[int] = []
        self._hub = hub
        self._views = views

    def members(self) -> dict[int, Member]:
        other = self._views.pop(0) if len(self._views) > 1 else self._views[0]
        return {0: self.me} if other is None else {0: self.me, 1: other}

    def dial(self, other: Member, *, within_s: float) -> Link:
        self.dialled.append(other.incarnation)
        if other.incarnation == 11:
            raise WorkerLostError("nobody listens there.")
        link, peer_link = link_pair(self._hub, self._hub)
        peer_link.dumps, peer_link.loads = dumps, loads
        peer_link.handler = Request.answer
        peer_link.open()
        return link


def connections(hub: Hub, group: PlayedGroup) -> Connections:
    def outside(job: Any) -> None:  # Any: a job
        threading.Thread(target=job).start()

    links_made = Connections(
        WorkerInfo("w0", 0), hub, handle=lambda sender, request: None, waiting=nullcontext, outside=outside
    )
    links_made.joined(cast(Any, group))
    return links_made


OLD, NEW = member("w1", 1, 11), member("w1", 1, 12)


def test_where_nobody_listens_the_worker_is_lost_as_soon_as_the_group_removes_it(hub: Hub) -> None:
    group = PlayedGroup(hub, [OLD, OLD, OLD, None])
    with pytest.raises(WorkerLostError, match="nobody listens there"):
        connections(hub, group).to(1, within_s=LIMIT_S)
    assert set(group.dialled) == {11}


def test_when_all_have_agreed_to_leave_nobody_is_dialed_again(hub: Hub) -> None:
    group = PlayedGroup(hub, [OLD])
    group.ending.set("over")
    with pytest.raises(WorkerLostError, match="nobody listens there"):
        connections(hub, group).to(1)
    assert group.dialled == [11]


def test_who_waits_for_a_link_that_another_makes_waits_no_longer_than_it_may(hub: Hub) -> None:
    links_made, dialled = connections(hub, group := PlayedGroup(hub, [NEW])), threading.Event()
    resume, dial = threading.Event(), group.dial

    def dial_slowly(other: Member, *, within_s: float) -> Link:
        dialled.set()
        assert resume.wait(LIMIT_S)
        return dial(other, within_s=within_s)

    group.dial = dial_slowly  # type: ignore[method-assign]
    log: list[str] = []
    links_made.queue(1, PlayedCall("one", log))
    assert dialled.wait(LIMIT_S)
    with pytest.raises(DeadlineExceeded, match=r"the link to worker 1 was not made within 0\.01 s"):
        links_made.to(1, within_s=0.01)
    assert links_made.num_open == 1
    resume.set()
    link = links_made.to(1)
    assert log == ["one left"] and links_made.get_open(1) is link
    links_made.close()


def test_a_call_that_waits_by_itself_is_passed_by_no_call_that_waits_for_its_answer(hub: Hub) -> None:
    """The caller makes the link itself, before anybody else has begun to."""
    links_made, log = connections(hub, PlayedGroup(hub, [NEW])), list[str]()
    links_made._outside = lambda job: None
    links_made.queue(1, PlayedCall("one", log))
    links_made.to(1)
    assert log == ["one left"]
    links_made.close()

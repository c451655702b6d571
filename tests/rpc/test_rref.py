"""References of several workers in one process: real tables, keepers, envelopes and RRefs on played agents.

A played agent carries a call out at once, on the caller's thread, with the callee as this process's worker meanwhile.
"""

import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.futures import Future

from fanwise.base.errors import ClosedError, DeadlineExceeded, NotSendableError, OwnerLostError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc.envelopes import Envelopes
from fanwise.rpc.functions import async_execution
from fanwise.rpc.references import References
from fanwise.rpc.rref import RRef, done_with, result_of
from fanwise.rpc.serving import Later
from fanwise.rpc.worker_info import WorkerInfo
from fanwise.testing import within

# Any throughout: what users' functions take and return.

TIMED_OUT = r"RRef creation via rpc\.remote\(\) timed out"


class PlayedAgent:
    """What References asks of an agent.

    `late`: calls that create are kept back until the test makes them, and fail before. `creations`: what calls that
    create return; none of them is made.
    """

    def __init__(self, agents_by_id: dict[int, "PlayedAgent"], id: int, incarnation: int) -> None:
        self.info = WorkerInfo(f"worker{id}", id)
        self.incarnation = incarnation
        self.envelopes = Envelopes()
        self.on_lost: list[Callable[[WorkerInfo, int], None]] = []
        self.late: list[Callable[[], object]] | None = None
        self.creations: Future[Any] | None = None
        self.group = SimpleNamespace(on_left=[], members=self.members)
        self._all = agents_by_id
        self._handlers: dict[str, Callable[..., Any]] = {}
        agents_by_id[id] = self

    def members(self) -> dict[int, Any]:
        return {
            id: SimpleNamespace(name=agent.info.name, id=id, incarnation=agent.incarnation)
            for id, agent in self._all.items()
        }

    def workers(self) -> list[WorkerInfo]:
        return [agent.info for agent in self._all.values()]

    def worker(self, to: Any) -> WorkerInfo:
        return to if isinstance(to, WorkerInfo) else next(i for i in self.workers() if to in (i.name, i.id))

    def attach(self, references: References) -> None:
        self.references = references
        self.envelopes.references = references

    def on(self, method: str, handler: Callable[..., Any]) -> None:
        self._handlers[method] = handler

    def blocking(self) -> None: ...

    def tell(self, to: int, method: str, *args: object) -> "Future[Any]":
        if to not in self._all:
            return failed_with(WorkerLostError(f"worker {to} is gone."))
        return done_with(self._all[to]._handlers[method](self.info, *pickle.loads(pickle.dumps(args))))

    def call(
        self, to: WorkerInfo, function: Any, args: Any, kwargs: Any, *, timeout_s: float, remote: object = None
    ) -> "Future[Any]":
        if to.id not in self._all:
            return failed_with(WorkerLostError(f"worker {to.id} is gone."))
        try:
            sealed = self.envelopes.seal((function, tuple(args), kwargs), to.id, call="call", remote=remote)
        except RuntimeError:
            raise
        except Exception as error:
            raise NotSendableError(str(error)) from None
        if self.creations is not None and remote is not None:
            return self.creations
        if self.late is not None and remote is not None:
            self.late.append(lambda: self._all[to.id].serve(self, sealed))
            return failed_with(DeadlineExceeded("RPC ran for more than set timeout"))
        return self._all[to.id].serve(self, sealed)

    def call_sync(self, to: WorkerInfo, function: Any, args: Any, kwargs: Any, *, timeout_s: float) -> Any:
        return result_of(self.call(to, function, args, kwargs, timeout_s=timeout_s))

    def serve(self, caller: "PlayedAgent", sealed: Any) -> "Future[Any]":
        before = agents.current()
        be(self)
        try:
            opened = self.envelopes.open(sealed, caller.info.id)
            unconfirmed = self.references.confirmed()
            if unconfirmed is not None:
                unconfirmed.wait()

            def run() -> Any:
                function, args, kwargs = opened.value
                value = function(*args, **kwargs)
                return Later(value) if hasattr(function, "_wrapped_async_rpc_function") else value

            answer = run() if opened.remote is None else self.references.keep(caller.info, opened.remote, run)
            answer = answer.future.wait() if type(answer) is Later else answer
            back = self.envelopes.seal(answer, caller.info.id)
        except Exception as error:
            return failed_with(error.with_traceback(None))  # as it comes over a link
        finally:
            be(before)
        return done_with(caller.envelopes.open(back, self.info.id).value)


def failed_with(error: Exception) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def be(agent: Any) -> None:
    agents.set_current(agent)


@pytest.fixture
def three() -> Iterator[list[PlayedAgent]]:
    """Workers 0, 1, 2; this process is worker 0."""
    everybody: dict[int, PlayedAgent] = {}
    played = [PlayedAgent(everybody, id, id + 100) for id in range(3)]
    for agent in played:
        References(agent, tick_s=0.05)  # type: ignore[arg-type]  # played
    be(played[0])
    yield played
    gc.collect()
    for agent in played:
        agent.references.destroy()
    be(None)


def lose(three: list[PlayedAgent], id: int) -> None:
    dead = three[id]._all.pop(id)
    for agent in three[id]._all.values():
        for callback in agent.on_lost:
            callback(dead.info, dead.incarnation)


def is_empty(agent: PlayedAgent) -> bool:
    return set(agent.references.debug_info().values()) == {"0"}


def all_empty(three: list[PlayedAgent]) -> None:
    gc.collect()
    within(5.0, lambda: all(is_empty(agent) for agent in three), "no worker has a reference")
    keepers = [agent.references._keeper for agent in three]
    within(5.0, lambda: not any(keeper.values or keeper.users for keeper in keepers), "no keeper has one")


class Counter:
    """Has methods of all kinds."""

    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @staticmethod
    @async_execution
    def later(value: int) -> "Future[int]":
        return done_with(value)


def make(value: Any) -> Any:
    return value


def fail(text: str) -> None:
    raise ZeroDivisionError(text)


def add(rref: RRef[Any], value: Any) -> Any:
    return rref.to_here() + value


def hold(rref: RRef[Any]) -> None:
    HELD.append(rref)


HELD: list[RRef[Any]] = []


def remote(to: int, function: Callable[..., Any], *args: object) -> RRef[Any]:
    agent = agents.current()
    return agent.references.remote(agent.worker(to), function, args, {}, timeout_s=-1)


def ask(to: int, function: Callable[..., Any], *args: object) -> Any:
    agent = agents.current()
    return agent.call_sync(agent.worker(to), function, args, {}, timeout_s=-1)


def test_a_value_of_ones_own_is_there_at_once(three: list[PlayedAgent]) -> None:
    value = [1, 2]
    rref: RRef[list[int]] = RRef[list[int]](value)
    assert rref.is_owner() and rref.confirmed_by_owner() and rref.owner_name() == "worker0"
    assert rref.to_here() is rref.local_value() is value
    assert str(rref) == repr(rref) == "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"
    assert rref._get_type() is rref._get_type(blocking=False).wait() is list
    assert rref._get_future().done() and is_empty(three[0])


def test_a_remote_value_comes_as_a_copy(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, torch.ones(2))
    assert torch.equal(rref.to_here(), torch.ones(2))
    assert not rref.is_owner() and rref.confirmed_by_owner() and rref.owner() == three[1].info
    assert str(rref) == (
        "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=0), "
        "ForkId = GloballyUniqueId(created_on=0, local_id=1))"
    )
    assert three[1].references.debug_info() == {
        "num_owner_rrefs": "1",
        "num_pending_users": "0",
        "num_pending_futures": "0",
        "num_forks": "1",
    }
    del rref
    all_empty(three)


def test_local_value_of_a_user_names_ids_and_owner(three: list[PlayedAgent]) -> None:
    with pytest.raises(RuntimeError) as caught:
        remote(1, make, 1).local_value()
    assert str(caught.value) == (
        "For UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=0), fork_id=GloballyUniqueId(created_on=0, "
        "local_id=1)), can't call localValue() on user WorkerInfo(id=0, name=worker0). Call it on owner "
        "WorkerInfo(id=1, name=worker1)"
    )


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_a_reference_may_go_to_anybody(three: list[PlayedAgent], reader: int) -> None:
    for rref in (remote(1, make, 40), RRef(40), remote(0, make, 40)):
        assert ask(reader, add, rref, 2) == 42
    del rref
    all_empty(three)


def test_a_value_lives_as_long_as_somebody_holds_it(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 7)
    ask(2, hold, rref)
    del rref
    within(5.0, lambda: three[1].references.debug_info()["num_forks"] == "1", "only worker 2 holds it")
    be(three[2])
    assert HELD[0].to_here() == 7
    be(three[0])
    HELD.clear()
    all_empty(three)


def test_a_failed_function_fails_each_use_and_keeps_nothing(three: list[PlayedAgent]) -> None:
    for owner in (0, 1):
        rref = remote(owner, fail, "no")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no"):
                rref.to_here()
        with pytest.raises(ZeroDivisionError, match="no"):
            rref._get_type()
    del rref
    all_empty(three)


def test_a_creation_that_took_too_long_fails_each_use_and_is_forgotten(three: list[PlayedAgent]) -> None:
    three[0].late = []
    rref = remote(1, make, 1)
    uses: list[Callable[[RRef[Any]], Any]] = [RRef.to_here, RRef._serialize, RRef._get_type, partial(ask, 2, hold)]
    for use in uses:
        with pytest.raises(RuntimeError, match=TIMED_OUT):
            use(rref)
    del rref
    gc.collect()
    forgotten = three[1].references._keeper.table._forgotten
    within(5.0, lambda: len(forgotten) == 1, "the owner was told to forget it")
    three[0].late[0]()
    three[0].late = None
    all_empty(three)


@pytest.mark.parametrize("owner", [0, 1])
def test_who_has_heard_that_a_creation_failed_can_use_the_reference_no_more(
    three: list[PlayedAgent], owner: int
) -> None:
    """Those who wait for a future of torch's wake before its callbacks have run."""
    made: Future[Any] = Future()
    go_on = threading.Event()
    made.add_done_callback(lambda _: go_on.wait())
    three[0].creations = made
    rref = remote(owner, make, 1)
    failing = threading.Thread(target=made.set_exception, args=(DeadlineExceeded("RPC ran for more than that"),))
    failing.start()
    within(5.0, made.done, "the call has failed")
    heard = rref._get_future().done()
    go_on.set()
    assert not heard, "the reference did not know yet"
    with pytest.raises(DeadlineExceeded, match="RPC ran for more than"):
        rref._get_future().wait()
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        rref.to_here()
    failing.join()


def test_a_value_whose_call_never_left_keeps_nobody_waiting(three: list[PlayedAgent]) -> None:
    three[0].creations = made = Future()
    rref = remote(0, make, 1)
    asked = three[0].references.value_of(rref._rref_id)
    made.set_exception(DeadlineExceeded("the call still waited for its link"))
    assert asked.done()
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        asked.wait()
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


@pytest.fixture
def during_the_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Something happens, on a thread of its own, while the thread of the references is started."""

    def arrange(what: Callable[[], None]) -> None:
        start = threading.Thread.start

        def begin(thread: threading.Thread) -> None:
            if thread.name == "fanwise-references":
                monkeypatch.undo()
                other = threading.Thread(target=what)
                other.start()
                other.join(0.2)  # it may have to wait for this one
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", begin)

    return arrange


def test_the_end_may_come_while_the_first_message_about_references_is_read(
    three: list[PlayedAgent], during_the_start: Callable[[Callable[[], None]], None]
) -> None:
    ends: list[str] = []

    def end() -> None:
        three[2].references.destroy(ignore_leak=False)
        ends.append("ended")

    during_the_start(end)
    assert three[2].references.debug_info()["num_owner_rrefs"] == "0"
    within(5.0, lambda: ends == ["ended"], "the end came")
    within(5.0, lambda: not reference_threads(), "and with it that of the thread")


def test_references_that_are_first_heard_of_after_the_end_begin_nothing(three: list[PlayedAgent]) -> None:
    three[2].references.destroy()
    assert is_empty(three[2])
    assert not reference_threads()


def reference_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fanwise-references"]


def test_references_cannot_be_pickled_outside_of_calls(three: list[PlayedAgent]) -> None:
    text = "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
    for rref in (RRef(1), remote(1, make, 1)):
        with pytest.raises(RuntimeError, match=text):
            pickle.dumps(rref)
        with pytest.raises(RuntimeError, match=text):
            rref._serialize()


def test_a_call_that_cannot_be_pickled_leaves_no_fork(three: list[PlayedAgent]) -> None:
    for rref in (RRef(1), remote(1, make, 1)):
        with pytest.raises(NotSendableError):
            ask(2, add, rref, lambda: 1)
    del rref
    all_empty(three)


def test_a_creation_that_cannot_be_sent_leaves_nothing(three: list[PlayedAgent]) -> None:
    for owner in (0, 1):
        with pytest.raises(NotSendableError):
            remote(owner, make, lambda: 1)
    all_empty(three)


def test_a_call_that_cannot_be_unpickled_leaves_no_fork(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    with pytest.raises(ArithmeticError, match="not here"):
        ask(2, make, [Unreadable(), rref])
    del rref
    all_empty(three)


class Unreadable:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return fail_to_read, ("not here",)


def fail_to_read(text: str) -> None:
    raise ArithmeticError(text)


def test_the_value_of_a_lost_owner_is_lost_with_it(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    kept = RRef(5)
    ask(1, make, kept)
    lose(three, 1)
    with pytest.raises(OwnerLostError, match="worker1 died or left") as caught:
        rref.to_here()
    assert isinstance(caught.value, WorkerLostError) and "docs/errors.md#owner-lost" in str(caught.value)
    with pytest.raises(OwnerLostError):
        ask(2, add, rref, 1)
    assert rref.owner_name() == "worker1" and not rref.confirmed_by_owner()


def test_what_a_lost_user_held_is_released(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    ask(2, hold, rref)
    within(5.0, lambda: three[1].references.debug_info()["num_forks"] == "2", "both hold it")
    lose(three, 2)
    within(5.0, lambda: three[1].references.debug_info()["num_forks"] == "1", "the lost one holds nothing")
    assert rref.to_here() == 1
    HELD.clear()


def test_methods_are_called_where_the_object_lives(three: list[PlayedAgent]) -> None:
    rref = remote(1, Counter, 7)
    assert rref.rpc_sync().add() == 8
    assert rref.rpc_async().add(by=2).wait() == 10
    assert rref.remote().add(5).to_here() == 15
    assert rref.rpc_sync().later(3) == rref.rpc_async().later(3).wait() == 3
    with pytest.raises(AttributeError, match="nothing"):
        rref.rpc_sync().nothing()
    with pytest.raises(AttributeError, match="nothing"):
        rref.remote().nothing()
    later = rref.rpc_async().nothing()
    with pytest.raises(AttributeError, match="nothing"):
        later.wait()
    del rref, later
    all_empty(three)


def test_the_type_is_asked_for_once(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    first = rref._get_type(blocking=False)
    assert rref._get_type(blocking=False) is first and first.wait() is rref._get_type() is int


def test_deleted_references_say_so(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    three[0].references.delete_all_user_and_unforked_owner_rrefs(5.0)
    assert is_empty(three[1])
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion\."):
        rref.to_here()
    with pytest.raises(RuntimeError, match=r"Cannot call fork an UserRRef after deletion\."):
        rref._serialize()


def test_a_leak_is_an_error_when_that_is_asked_for(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    with pytest.raises(RuntimeError, match=r"Leaking RRef GloballyUniqueId\(created_on=0, local_id=0\) with fork Id"):
        three[1].references.destroy(ignore_leak=False)
    assert rref.confirmed_by_owner()


def test_backward_of_a_user_needs_a_context(three: list[PlayedAgent]) -> None:
    leaf = torch.ones(2, requires_grad=True)
    RRef(leaf.sum()).backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.ones(2))
    with pytest.raises(RuntimeError, match="User RRefs require 'dist_autograd_ctx_id' to be specified"):
        remote(1, make, torch.ones(())).backward()
    with pytest.raises(RuntimeError, match=r"RRef should contain a tensor for \.backward\(\)"):
        RRef(3).backward()


def test_references_die_in_garbage_collections_of_any_thread(three: list[PlayedAgent]) -> None:
    for _ in range(50):
        ring: list[Any] = [remote(1, make, 1)]
        ring.append(ring)
    del ring
    all_empty(three)

"""Workers in one process that have references and no links: real tables and serializers on fake agents.

    with fake_workers(3) as three:          # this process is worker 0
        rref = remote(1, make, 40)          # created at once, on this thread, which is worker 1 meanwhile

Calls run when they are made, and messages are handled when they are sent. `lose` and `leave_with_all` end workers.
"""

import contextlib
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from torch.futures import Future

from fanwise.base.errors import DeadlineExceeded, NotSendableError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc import current as process
from fanwise.rpc.calling.futures import result_of
from fanwise.rpc.calling.serializer import Serializer
from fanwise.rpc.membership.members import Lost, Member
from fanwise.rpc.messages.ids import Invocation
from fanwise.rpc.messages.messages import creation_of
from fanwise.rpc.references.references import References
from fanwise.rpc.references.rref import RRef
from fanwise.rpc.worker_info import WorkerInfo
from fanwise.testing.within import within

# Any throughout: what users' functions take and return.


class FakeAgent:
    """The methods of an agent that `References` uses.

    `late`: calls that create fail, and run later when the test calls them. `creations`: the result of calls that
    create, which do not run. `newcomers`: workers that this one does not know yet, with the number of messages
    that fail.
    """

    def __init__(self, agents_by_id: dict[int, "FakeAgent"], id: int, incarnation: int) -> None:
        self.info = WorkerInfo(f"worker{id}", id)
        self.incarnation = incarnation
        self.member = Member(self.info.name, id, incarnation, "", "", 0)
        self.late: list[Callable[[], object]] | None = None
        self.creations: Future[Any] | None = None
        self.has_left = False
        self.newcomers: dict[int, int] = {}
        self.group = SimpleNamespace(
            on_event=[], members=self.members, former={}, fenced=None, ending=SimpleNamespace(is_set=False)
        )
        self._all = agents_by_id
        self._handlers: dict[str, Callable[..., Any]] = {}
        agents_by_id[id] = self
        self.references = References(self)  # type: ignore[arg-type]  # a fake
        self.references.start()
        self.serializer = Serializer(references=self.references)

    def members(self) -> dict[int, Member]:
        return {id: agent.member for id, agent in self._all.items() if id not in self.newcomers}

    def workers(self) -> list[WorkerInfo]:
        return [agent.info for agent in self._all.values()]

    def worker(self, to: Any) -> WorkerInfo:
        return to if isinstance(to, WorkerInfo) else next(i for i in self.workers() if to in (i.name, i.id))

    def on(self, method: str, handler: Callable[..., Any]) -> None:
        self._handlers[method] = handler

    def call_later(self, delay_s: float, job: Callable[[], None]) -> None:
        threading.Timer(min(delay_s, 0.05), job).start()

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def request(self, to: int, method: str, *args: object) -> "Future[Any]":
        if to in self.newcomers:
            self.newcomers[to] -= 1
            if not self.newcomers[to]:
                del self.newcomers[to]
            return failed_with(WorkerLostError(f"worker {to} is not in the group."))
        if to not in self._all or self._all[to].has_left:
            return failed_with(WorkerLostError(f"worker {to} was lost."))
        return done_with(self._all[to]._handlers[method](self.info, *pickle.loads(pickle.dumps(args))))

    def call(
        self, to: WorkerInfo, invocation: Invocation, *, timeout_s: float, remote: Any = None, **_: Any
    ) -> "Future[Any]":
        if to.id not in self._all:
            return failed_with(WorkerLostError(f"worker {to.id} was lost."))
        try:
            message = self.serializer.serialize(invocation, to.id, call="call", remote=remote)
        except RuntimeError:
            raise
        except Exception as error:
            raise NotSendableError(str(error)) from None
        if self.creations is not None and remote is not None:
            return self.creations
        if self.late is not None and remote is not None:
            self.late.append(lambda: self._all[to.id].serve(self, message))
            late = Late()
            late.set_exception(DeadlineExceeded("RPC ran for more than set timeout"))
            return late
        return self._all[to.id].serve(self, message)

    def call_sync(self, to: WorkerInfo, invocation: Invocation, *, timeout_s: float) -> Any:
        return result_of(self.call(to, invocation, timeout_s=timeout_s))

    def serve(self, caller: "FakeAgent", message: Any) -> "Future[Any]":
        before = agents.current()
        be(self)
        try:
            creation = creation_of(message)
            opened = self.serializer.deserialize(message, caller.info.id)
            unconfirmed = self.references.confirmation()
            if unconfirmed is not None:
                unconfirmed.wait()
            function, args, kwargs = opened.value
            future = None if creation is None else self.references.expect(creation)
            answer, error = None, None
            try:
                answer = function(*args, **kwargs)
                answer = answer.wait() if hasattr(function, "_wrapped_async_rpc_function") else answer
            except Exception as raised:
                if future is None:
                    raise
                error = raised.with_traceback(None)
            if future is not None and creation is not None:
                self.references.set_value(creation[0], future, error, answer)
                answer = None
            back = self.serializer.serialize(answer, caller.info.id)
        except Exception as error:
            return failed_with(error.with_traceback(None))  # as over a link
        finally:
            be(before)
        return done_with(caller.serializer.deserialize(back, self.info.id).value)


class Late(Future[Any]):
    """The future of a call that was sent and has timed out."""

    was_sent = True


def done_with(value: Any) -> "Future[Any]":
    """Return a future that is done."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed_with(error: Exception) -> "Future[Any]":
    """Return a future that has failed."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def be(agent: Any) -> None:
    """Make this process that worker, or none."""
    process.set_current(agent)


@contextlib.contextmanager
def fake_workers(count: int) -> Iterator[list[FakeAgent]]:
    """Create workers 0, 1, ... This process is worker 0."""
    agents_by_id: dict[int, FakeAgent] = {}
    workers = [FakeAgent(agents_by_id, id, id + 100) for id in range(count)]
    be(workers[0])
    try:
        yield workers
    finally:
        gc.collect()
        for agent in workers:
            agent.references.destroy()
        be(None)


def lose(workers: list[FakeAgent], id: int) -> None:
    """Kill a worker. All others learn it."""
    dead = workers[id]._all.pop(id)
    for agent in workers[id]._all.values():
        agent.group.former[id] = dead.member
        for callback in agent.group.on_event:
            callback(Lost(dead.member, "killed"))


def leave_with_all(workers: list[FakeAgent], id: int) -> None:
    """Let all workers leave, and one of them first, whose departure is not reported."""
    for agent in workers:
        agent.group.ending.is_set = True
    workers[id].has_left = True


def is_empty(agent: FakeAgent) -> bool:
    """Return True if the worker has no references."""
    return set(agent.references.debug_info().values()) == {"0"}


def wait_until_empty(workers: list[FakeAgent]) -> None:
    """Wait until no worker has references."""
    gc.collect()
    within(5.0, lambda: all(is_empty(agent) for agent in workers), "no worker has a reference")
    states = [vars(agent.references) for agent in workers]
    within(5.0, lambda: not any(state["_values"] or state["_users"] for state in states), "no worker keeps a value")


def remote(to: int, function: Callable[..., Any], *args: object) -> RRef[Any]:
    """Call `rpc.remote`."""
    agent = agents.current()
    return agent.references.remote(agent.worker(to), (function, args, {}), timeout_s=-1)


def ask(to: int, function: Callable[..., Any], *args: object) -> Any:
    """Call `rpc.rpc_sync`."""
    agent = agents.current()
    return agent.call_sync(agent.worker(to), (function, args, {}), timeout_s=-1)


def make(value: Any) -> Any:
    """Return the value, on the worker that is called."""
    return value

"""The workers of the group, for programs: a list, and callbacks for workers that join, leave or die."""

from collections.abc import Callable
from dataclasses import dataclass

from . import agent as _agent
from .membership.members import COORDINATOR, Joined, Left, Lost
from .membership.worker_events import Subscription
from .worker_info import WorkerInfo


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of the group, returned by `workers`.

    Attributes:
        name, id: as in its `WorkerInfo`; the id is the rank.
        host: name of its host.
        pid: process ID on that host.
        is_coordinator: True for the worker that decides about membership.
    """

    name: str
    id: int
    host: str
    pid: int
    is_coordinator: bool


def workers() -> tuple[Worker, ...]:
    """Return the workers of the group, including this one, ordered by rank. Does not block.

    Changes are visible here before the callbacks below are called. If the group has ended for this worker, because rank
    0 has ended or the others have declared this worker lost, the result contains only this worker.

    >>> [worker.name for worker in workers()]
    ['worker0', 'worker1']
    """
    agent = _agent.current()
    return tuple(
        Worker(
            member.name,
            member.id,
            member.host.partition("/")[0],
            member.pid,
            member.id == COORDINATOR,
        )
        for member in agent.worker_events.members()
    )


def on_worker_joined(callback: Callable[[WorkerInfo], object]) -> Subscription:
    """Call `callback(worker)` for each other worker in the group now, and for each that joins later.

    No worker is missed or reported twice. A process restarted under an old name is a new worker. Callbacks run on a
    thread of fanwise, one call at a time and in the order of events. They may block and call other workers. A slow
    callback delays only its own next call; errors are logged. Different callbacks are independent, so a callback for
    losses may run before a slow one for joins. To maintain a list of live workers, call `workers` in each callback.

    Returns a subscription; its `cancel()` stops the calls. `shutdown` cancels all subscriptions.

    >>> on_worker_joined(lambda worker: print(worker.name, "is there")).cancel()
    """
    return _subscribe(callback, Joined)


def on_worker_left(callback: Callable[[WorkerInfo], object]) -> Subscription:
    """Call `callback(worker)` for each worker that leaves by `shutdown` from now on.

    Threads, order and cancellation are those of `on_worker_joined`. A graceful shutdown of a static group ends all
    workers at once and is not reported.

    >>> on_worker_left(lambda worker: print(worker.name, "has left")).cancel()
    """
    return _subscribe(callback, Left)


def on_worker_lost(callback: Callable[[WorkerInfo, str], object]) -> Subscription:
    """Call `callback(worker, why)` for each worker that dies or is unreachable for too long from now on.

    It is called once per incarnation of a worker, after the group has decided; calls to that worker already fail. When
    rank 0 ends, or the others have declared this worker lost, it is called for each of the others. Threads, order and
    cancellation are those of `on_worker_joined`.

    >>> on_worker_lost(lambda worker, why: print(worker.name, "was lost:", why)).cancel()
    """
    return _subscribe(callback, Lost)


def _subscribe(callback: Callable[..., object], kind: type[Joined | Left | Lost]) -> Subscription:
    agent = _agent.current()
    with agent.waiting():
        return agent.worker_events.subscribe(callback, kind)

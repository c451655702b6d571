"""Who is in the group, for programs: a list, and callbacks for those who join, leave and die."""

from collections.abc import Callable
from dataclasses import dataclass

from . import agent as _agent
from .membership.members import Joined, Left, Lost
from .membership.worker_events import Subscription
from .worker_info import WorkerInfo


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of the group, as `workers` shows it.

    Attributes:
        name, id: as in its `WorkerInfo`; the id is the rank.
        host: the name of its host.
        pid: the number of its process there.
        is_coordinator: whether it is the one that decides who is in the group.
    """

    name: str
    id: int
    host: str
    pid: int
    is_coordinator: bool


def workers() -> tuple[Worker, ...]:
    """All workers that are in the group, this one included, by rank. Does not block.

    As this worker knows them now. What a callback below is told is seen here before it is called. When the others have
    declared this worker lost, it is the only one.

    >>> [worker.name for worker in workers()]
    ['worker0', 'worker1']
    """
    agent = _agent.current()
    coordinator = agent.group.coordinator
    return tuple(
        Worker(
            member.name,
            member.id,
            member.host.partition("/")[0],
            member.pid,
            member.incarnation == coordinator,
        )
        for member in agent.worker_events.members()
    )


def on_worker_joined(callback: Callable[[WorkerInfo], object]) -> Subscription:
    """Call `callback(worker)` for each other worker that is in the group now, and for each that joins later.

    Between the two there is no gap, and nobody comes twice. A process that was started again under an old name is a new
    worker. Callbacks run on a thread of fanwise's own, one call at a time, in the order of what happened; they may
    block and call other workers. One that is slow delays nothing but its own next call, one that raises is logged.
    Different callbacks are independent: when one for joins is slow, one for losses may be called first. Whoever keeps
    a list of the living asks `workers` in each callback.

    Returns a subscription; its `cancel()` ends the calls. `shutdown` ends all of them.

    >>> on_worker_joined(lambda worker: print(worker.name, "is there")).cancel()
    """
    return _subscribe(callback, Joined)


def on_worker_left(callback: Callable[[WorkerInfo], object]) -> Subscription:
    """Call `callback(worker)` for each worker that leaves on its own, by `shutdown`, from now on.

    Threads, order and the end are those of `on_worker_joined`. A graceful shutdown of a static group ends all at once:
    nobody hears of anybody then.

    >>> on_worker_left(lambda worker: print(worker.name, "has left")).cancel()
    """
    return _subscribe(callback, Left)


def on_worker_lost(callback: Callable[[WorkerInfo, str], object]) -> Subscription:
    """Call `callback(worker, why)` for each worker that dies, or is out of reach for too long, from now on.

    It is called once for each life of a worker, when the group has decided: calls to that worker fail by then. When the
    others have declared this worker lost, it is called for each of them. Threads, order and the end are those of
    `on_worker_joined`.

    >>> on_worker_lost(lambda worker, why: print(worker.name, "was lost:", why)).cancel()
    """
    return _subscribe(callback, Lost)


def _subscribe(callback: Callable[..., object], kind: type[Joined | Left | Lost]) -> Subscription:
    agent = _agent.current()
    with agent.waiting():
        return agent.worker_events.subscribe(callback, kind)

"""The interface of `agent.Agent` that its parts use.

References, lending, futures, streams and distributed autograd are created by the agent and are below it in the import
graph, so they depend on this protocol. Parts that need more extend it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch.futures import Future

from .worker_info import WorkerInfo

if TYPE_CHECKING:  # loaded when this process becomes a worker
    from .hub_thread import OneShot
    from .membership.members import Event, Member

Job = Callable[[], None]


class Group(Protocol):
    """Current and former members by id. Events are delivered on the hub's thread."""

    @property
    def me(self) -> "Member": ...
    @property
    def on_event(self) -> "list[Callable[[Event], None]]": ...
    @property
    def ending(self) -> "OneShot": ...
    @property
    def fenced(self) -> str | None: ...
    @property
    def former(self) -> "dict[int, Member]": ...
    def members(self) -> "dict[int, Member]": ...


class Agent(Protocol):
    """See `agent.Agent`.

    Attributes:
        on_lost: called with a lost worker and its incarnation.
        on_cut: called with a member and the number of a link over which nothing will arrive there any more.
        on_over: called with a member and the number of a link over which nothing will arrive here any more.
    """

    @property
    def info(self) -> WorkerInfo: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def group(self) -> Group: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def now_s(self) -> Callable[[], float]: ...
    @property
    def on_lost(self) -> list[Callable[[WorkerInfo, int], None]]: ...
    @property
    def on_cut(self) -> "list[Callable[[Member, int], None]]": ...
    @property
    def on_over(self) -> "list[Callable[[Member, int], None]]": ...
    def worker(self, to: str | int | WorkerInfo) -> WorkerInfo: ...
    def workers(self) -> list[WorkerInfo]: ...

    # requests
    def on(self, method: str, handler: Callable[..., Any]) -> None: ...
    def request(self, to: int, method: str, *args: object) -> "Future[Any]": ...

    # threads
    @property
    def outside(self) -> Callable[[Job], None]: ...
    @property
    def answer(self) -> Callable[[Job], None]: ...
    @property
    def waiting(self) -> Callable[[], AbstractContextManager[None]]: ...
    @property
    def begin_waiting(self) -> Callable[[], bool]: ...
    @property
    def end_waiting(self) -> Callable[[], None]: ...
    def may_wait(self) -> bool: ...

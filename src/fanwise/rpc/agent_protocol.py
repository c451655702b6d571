"""What the parts of a worker ask of the agent that they belong to: `agent.Agent`, which knows all of them.

References, lending, futures, streams and distributed autograd are made by the agent, or with it, and are below it: no
file imports another in a circle. So they know it by this. What one of them alone asks for, it adds itself.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch.futures import Future

from .worker_info import WorkerInfo

if TYPE_CHECKING:  # they are loaded when this process becomes a worker
    from .membership.members import Event, Member
    from .waiting import Mailbox

Job = Callable[[], None]


class Group(Protocol):
    """Who is there, and who was, by id; what happens is told on the hub's thread."""

    @property
    def me(self) -> "Member": ...
    @property
    def on_event(self) -> "list[Callable[[Event], None]]": ...
    @property
    def ending(self) -> "Mailbox": ...
    @property
    def former(self) -> "dict[int, Member]": ...
    def members(self) -> "dict[int, Member]": ...


class Agent(Protocol):
    """See the module, and `agent.Agent`.

    Attributes:
        on_lost: called with a worker that was lost, and its incarnation.
        on_cut, on_over: called with a member and the number of a link to it: nothing comes there by it any more; here.
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

    # what is said to others, and heard
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

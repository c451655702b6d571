"""References in messages: which forks came with what this thread unpickles.

    pickle                           each reference is a place in the forks of the message (`References.share`)
    with Receiving(forks): unpickle  all forks are references before; those nobody took end with it

So the pickle holds numbers only, and no fork is lost when a pickle cannot be read. Nests, since unpickling may call.
"""

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from torch.futures import Future

from ...links import Link
from .orders import Fork


class References(Protocol):
    """What is asked of the references of this worker."""

    def received(self, forks: Sequence[Fork], link: Link | None) -> Sequence[Any]: ...  # Any: the references
    def unconfirmed(self, received: Sequence[Any]) -> "Sequence[Future[None]]": ...  # Any: as above


class Now(threading.local):
    """What came with the message that this thread unpickles."""

    received: Sequence[Any] = ()  # Any: references
    unconfirmed: "Sequence[Future[None]]" = ()


now = Now()


def received(place: int) -> Any:  # Any: a reference
    """The reference at this place of the message that this thread unpickles."""
    if not 0 <= place < len(now.received):
        raise RuntimeError("Can not unpickle rref in python pickler, rref can only be unpickled when using RPC")
    return now.received[place]


class Receiving:
    """While a message is unpickled: its forks are references; those that nobody took end with it."""

    def __init__(self, references: References, forks: Sequence[Fork], link: Link | None) -> None:
        self._references = references
        self._forks = forks
        self._link = link

    def __enter__(self) -> None:
        self._outer = now.received
        now.received = self._references.received(self._forks, self._link)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now.unconfirmed = self._references.unconfirmed(now.received)
        now.received = self._outer

"""References in messages: which forks go with what this thread pickles, and which came with what it unpickles.

    with Sealing(to) as forks: pickle     each reference is a place in `forks`; pickling fails: they are taken back
    with Opening(forks): unpickle         all forks are references before; those nobody took end with it

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

    def unsent(self, forks: Sequence[Fork]) -> None: ...
    def received(self, forks: Sequence[Fork], link: Link | None) -> Sequence[Any]: ...  # Any: the references
    def unconfirmed(self, received: Sequence[Any]) -> "Sequence[Future[None]]": ...  # Any: as above


class Now(threading.local):
    """What this thread seals or opens."""

    sealing: "Sealing | None" = None
    opened: Sequence[Any] = ()  # Any: references
    unconfirmed: "Sequence[Future[None]]" = ()


now = Now()


def received(place: int) -> Any:  # Any: a reference
    """The reference at this place of the message that this thread unpickles."""
    if not 0 <= place < len(now.opened):
        raise RuntimeError("Can not unpickle rref in python pickler, rref can only be unpickled when using RPC")
    return now.opened[place]


class Sealing:
    """While a message is pickled: collects the forks it carries; takes them back when pickling fails."""

    def __init__(self, references: References, to: int) -> None:
        self.references = references
        self.to = to
        self.forks: list[Fork] = []

    def __enter__(self) -> list[Fork]:
        self._outer, now.sealing = now.sealing, self
        return self.forks

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now.sealing = self._outer
        if kind is not None:
            self.references.unsent(self.forks)


class Opening:
    """While a message is unpickled: its forks are references; those that nobody took end with it."""

    def __init__(self, references: References, forks: Sequence[Fork], link: Link | None) -> None:
        self._references = references
        self._forks = forks
        self._link = link

    def __enter__(self) -> None:
        self._outer = now.opened
        now.opened = self._references.received(self._forks, self._link)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now.unconfirmed = self._references.unconfirmed(now.opened)
        now.opened = self._outer

"""References in messages: which forks came with what this thread unpickles.

    pickle                           each reference is a place in the forks of the message (`References.share`)
    with receiving(forks): unpickle  all forks are references before; those nobody took end with it

So the pickle holds numbers only, and no fork is lost when a pickle cannot be read. Nests, since unpickling may call.
"""

import threading
from collections.abc import Sequence
from typing import Any

from torch.futures import Future


class Now(threading.local):
    """What came with the message that this thread unpickles."""

    received: Sequence[Any] = ()
    unconfirmed: "Sequence[Future[None]]" = ()


now = Now()


def received(place: int) -> Any:
    """The reference at this place of the message that this thread unpickles."""
    if not 0 <= place < len(now.received):
        raise RuntimeError("Can not unpickle rref in python pickler, rref can only be unpickled when using RPC")
    return now.received[place]

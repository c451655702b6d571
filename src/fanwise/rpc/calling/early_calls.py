"""Calls that come before this worker has joined: the callers have learnt earlier that the group is complete.

    came --not joined--> kept --joined--> served, in the order in which they came
      +-------joined, none is kept------> served at once, on the thread that read it

While what was kept is served, what comes is kept behind it: no call passes another.
"""

import contextlib
import threading
from collections.abc import Callable

from ...base.errors import FanwiseError
from ...links.link import Request
from ..worker_info import WorkerInfo


class EarlyCalls:
    """See the module. `serve`: runs a call; its last argument says that its caller gave it up since it came."""

    def __init__(self, serve: Callable[[WorkerInfo, Request, bool], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._kept: list[tuple[WorkerInfo, Request]] | None = []  # None: nothing is kept any more

    def came(self, sender: WorkerInfo, request: Request) -> None:
        """A call came in. On a reading thread."""
        if self._kept is not None:
            with self._lock:
                if self._kept is not None:
                    self._kept.append((sender, request))
                    return
        self._serve(sender, request, False)

    def joined(self) -> None:
        """Serve what was kept. Does not wait for a call to end."""
        while kept := self._take():
            for sender, request in kept:
                try:
                    self._serve(sender, request, not request.is_open)
                except Exception as error:  # as a link does that reads one
                    with contextlib.suppress(FanwiseError):
                        request.fail(error)

    def _take(self) -> list[tuple[WorkerInfo, Request]]:
        """What was kept since the last time; nothing: from now on calls are served at once."""
        with self._lock:
            kept = self._kept or []
            self._kept = [] if kept else None
            return kept

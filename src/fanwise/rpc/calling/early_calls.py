"""Buffer of calls received before this worker has joined. Their callers learned earlier that the group is complete.

    receive --not joined---------> buffered --serve_buffered--> served, in order of arrival
       +-----joined, buffer empty------------> served at once, on the thread that read it

Calls received while the buffer is served are appended to it, so no call overtakes another.
"""

import contextlib
import threading
from collections.abc import Callable

from ...base.errors import FanwiseError
from ...links.link import Request
from ..worker_info import WorkerInfo


class EarlyCalls:
    """See the module. `serve(sender, request, was_cancelled)` starts a call."""

    def __init__(self, serve: Callable[[WorkerInfo, Request, bool], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._buffer: list[tuple[WorkerInfo, Request]] | None = []  # None: calls are served at once

    def receive(self, sender: WorkerInfo, request: Request) -> None:
        """Buffer or serve a call, on a reading thread."""
        if self._buffer is not None:
            with self._lock:
                if self._buffer is not None:
                    self._buffer.append((sender, request))
                    return
        self._serve(sender, request, False)

    def serve_buffered(self) -> None:
        """Serve the buffered calls. Does not wait for their replies."""
        while buffered := self._take():
            for sender, request in buffered:
                try:
                    self._serve(sender, request, not request.is_open)
                except Exception as error:  # as the reader of a link does
                    with contextlib.suppress(FanwiseError):
                        request.fail(error)

    def _take(self) -> list[tuple[WorkerInfo, Request]]:
        """Take the buffered calls. If there are none, stop buffering."""
        with self._lock:
            buffered = self._buffer or []
            self._buffer = [] if buffered else None
            return buffered

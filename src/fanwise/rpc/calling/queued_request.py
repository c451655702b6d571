"""An internal request to another worker that waits for a link if there is none. The sender does not wait."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch.futures import Future

from ...base.errors import FanwiseError
from ...links.link import Link, NeverSent, Reply


class QueuedRequest:
    """Created by `Agent.request`. `future` is completed with the result of the peer's handler."""

    deadline_s: float | None = None
    num_bytes = 0  # not counted against the queue limit

    def __init__(self, future: "Future[Any]", method: str, args: Sequence[object]) -> None:
        self._future = future
        self._method = method
        self._args = args

    def try_send(self, link: Link) -> bool:
        """Send over `link`. Return False if it has ended."""
        try:
            reply = link.call(self._method, *self._args)
        except NeverSent:
            return False
        reply.add_done_callback(partial(_settle, self._future))
        return True

    def send(self, link: Link) -> None:
        """Send, or fail. Called once, by `routes`."""
        try:
            if self.try_send(link):
                return
            error: Exception = NeverSent(f"{self._method!r} was not sent: the link has ended.")
        except Exception as reason:
            error = reason
        self._future.set_exception(error)

    def fail(self, error: FanwiseError) -> None:
        """Fail because there is no link."""
        self._future.set_exception(error)


def _settle(future: "Future[Any]", reply: Reply) -> None:
    try:
        future.set_result(reply.result())
    except Exception as error:
        future.set_exception(error)

"""Book-keeping for another worker that waits for a link, if there is none, and never makes its teller wait."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch.futures import Future

from ...base.errors import FanwiseError
from ...links.link import Link, NeverSent, Reply


class QueuedRequest:
    """Made by `Agent.request`. `future`: done with what the other side's handler returns."""

    due_s: float | None = None
    num_bytes = 0  # there is always room for it

    def __init__(self, future: "Future[Any]", method: str, args: Sequence[object]) -> None:  # Any: as above
        self._future = future
        self._method = method
        self._args = args

    def left_by(self, link: Link) -> bool:
        """Leave over `link`. False: that has ended."""
        try:
            reply = link.call(self._method, *self._args)
        except NeverSent:
            return False
        reply.add_done_callback(partial(_settle, self._future))
        return True

    def send(self, link: Link) -> None:
        """As `left_by`, for `routes`: once."""
        try:
            if self.left_by(link):
                return
            error: Exception = NeverSent(f"{self._method!r} was not sent: the link has just ended.")
        except Exception as raised:
            error = raised
        self._future.set_exception(error)

    def fail(self, error: FanwiseError) -> None:
        """There will be no link."""
        self._future.set_exception(error)


def _settle(future: "Future[Any]", reply: Reply) -> None:  # Any: what the handler returned
    try:
        future.set_result(reply.result())
    except Exception as error:
        future.set_exception(error)

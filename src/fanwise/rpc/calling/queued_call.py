"""The future of a call that waits for its link. The call is already serialized and is sent when the link is open.

    created --> send(link) --> a `CallFuture`, which this one follows
           +--> fail(error)    no link could be opened, or not in time: the message is rolled back

Buffers are copied, because the caller may change its arrays at once. A thread blocked on this future wakes when the
call is sent and then reads the reply itself. User code runs there or outside the reading threads, as with `CallFuture`.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch.futures import Future

from ...base.errors import CancelledError, FanwiseError
from ...links.credits import cost_of
from ...links.link import Link
from ..messages.messages import Message
from ..worker_info import WorkerInfo
from .call import Call
from .call_future import CallFuture, call_error, keep_until_reply
from .futures import copy_result, unwrap, wait_for, wait_for_event

if TYPE_CHECKING:
    from ..agent import Agent


class QueuedCall(Call[Any]):
    """See the module. Created by `Sender.call`; `routes.Routes` calls `send` or `fail` once.

    Args:
        message: the serialized call.
        now_s: the hub's clock.
        limit_s: time limit in seconds, including the wait for the link; None: no limit.
    """

    def __init__(
        self, agent: "Agent", message: Message, to: WorkerInfo, *, now_s: Callable[[], float], limit_s: float | None
    ) -> None:
        super().__init__()
        self.deadline_s = None if limit_s is None else now_s() + limit_s
        self._now_s = now_s
        self._agent = agent
        self._message = message._replace(buffers=[memoryview(bytes(buffer)) for buffer in message.buffers])
        self.num_bytes = cost_of(message.head, message.buffers)
        self._to = to
        self._limit_s = limit_s
        self._resolved = threading.Event()
        self._sent_call: CallFuture | None = None
        self._error: Exception | None = None
        self._unclaimed = [True]

    @property
    def was_sent(self) -> bool:
        """Return True if the call was sent: it arrives unless the callee is lost."""
        return self._sent_call is not None

    def send(self, link: Link) -> None:
        """Send the call over `link`."""
        remaining_s = None if self.deadline_s is None else max(0.0, self.deadline_s - self._now_s())
        try:
            reply = link.call_on_credit(
                cast(str, self._message), deadline_s=remaining_s, waiting=self._agent.waiting, overdraws=True
            )  # `dumps` knows it
        except FanwiseError as error:
            self.fail(error)
            return
        if self._message.keep_alive:
            reply.add_done_callback(partial(keep_until_reply, self._message.keep_alive))
        self._message = self._message._replace(keep_alive=())
        self._sent_call = sent_call = CallFuture(self._agent, reply, self._to, self._limit_s)
        self._resolved.set()
        # In a job: the call may be done already, and callbacks are user code.
        self._agent.answer(partial(sent_call.add_done_callback, self._finish))

    def fail(self, error: FanwiseError) -> None:
        """Fail because there is no link."""
        self._error = call_error(error, self._to, self._limit_s, closed=self._agent.is_closed).with_traceback(None)
        self._resolved.set()
        self._agent.answer(self._finish)

    def cancel(self) -> bool:
        if self._agent.connections.withdraw(self._to.id, self):
            self.fail(CancelledError("canceled while waiting for its link"))
            self._finish_now()
            return True
        wait_for_event(self._resolved)  # briefly: it is being sent, or was sent
        if self._sent_call is None or not self._sent_call.cancel():
            return False
        self._finish_now(self._sent_call)
        return True

    def _finish_now(self, sent_call: "Future[Any] | None" = None) -> None:
        """Complete before returning, even if another thread has started to. A reading thread does not wait."""
        if self._agent.may_wait():
            self._finish(sent_call)
            wait_for(self)

    def _finish(self, sent_call: "Future[Any] | None" = None) -> None:
        """Complete like the sent call, or fail."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return  # done by another thread
        if sent_call is not None:
            copy_result(self, sent_call)
            return
        assert self._error is not None, "set before `_resolved`"
        try:
            self._agent.serializer.roll_back(self._message, self._to.id)
        finally:
            self.set_exception(self._error)

    def wait(self) -> Any:
        """Block until the reply arrives. Raises as `CallFuture.wait` does."""
        if not self.done():
            with self._agent.waiting():
                wait_for_event(self._resolved)
                self._wait_on()
        return unwrap(super().wait)

    def _wait_on(self) -> None:
        """Wait for the reply after `_resolved`."""
        if self._sent_call is None:
            self._finish()
            return
        try:
            self._sent_call.wait()
        except Exception:
            if not self._sent_call.done():  # this thread must not wait
                raise
        self._finish(self._sent_call)

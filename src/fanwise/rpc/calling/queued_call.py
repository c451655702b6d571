"""The future of a call that waits for its link: the call is closed already, and leaves when there is one.

    made --> send(link) --> a `CallFuture`, which this one follows
        +--> fail(error)    no link could be made, or not in time: what was closed is taken back

What was closed is kept as copies: the caller may change its arrays at once. Who waits for this future wakes when the
call has left, and then reads its own answer; user code runs there or outside the reading threads, as with `CallFuture`.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

from torch.futures import Future

from ...base.errors import CancelledError, FanwiseError
from ...links.flow_control.credits import cost_of
from ...links.link import Link, NeverSent
from ..messages.messages import Message
from ..worker_info import WorkerInfo
from . import call_future
from .call import Call
from .call_future import CallFuture, failed, not_sent, until_answered
from .outcomes import hand_on, outcome_of, wait_for, wait_for_event


class Queues(Protocol):
    """What is asked of the connections."""

    @property
    def withdraw(self) -> Callable[[int, Any], bool]: ...  # Any: a call that waits


class Agent(call_future.Agent, Protocol):
    """What is asked of the agent."""

    @property
    def connections(self) -> "Queues": ...
    def is_leaving(self, message: Message, link: Link) -> bool: ...


class QueuedCall(Call[Any]):  # Any: what the function returns
    """See the module. Made by `Sender.call`; `routes.Routes` sends it or lets it fail, once.

    Args:
        message: the call.
        now_s: the hub's clock.
        limit_s: seconds that it may take, waiting for the link included; None: any.
    """

    def __init__(
        self, agent: Agent, message: Message, to: WorkerInfo, *, now_s: Callable[[], float], limit_s: float | None
    ) -> None:
        super().__init__()
        self.due_s = None if limit_s is None else now_s() + limit_s
        self._now_s = now_s
        self._agent = agent
        self._message = message._replace(buffers=[memoryview(bytes(buffer)) for buffer in message.buffers])
        self.num_bytes = cost_of(message.head, message.buffers)
        self._to = to
        self._limit_s = limit_s
        self._decided = threading.Event()
        self._inner: CallFuture | None = None
        self._error: Exception | None = None
        self._unfinished = [True]

    @property
    def has_left(self) -> bool:
        """Whether it comes to the other worker, or that is lost."""
        return self._inner is not None

    def send(self, link: Link) -> None:
        """The link is there: leave."""
        left_s = None if self.due_s is None else max(0.0, self.due_s - self._now_s())
        try:
            if (self._message.carries or self._message.loans) and not self._agent.is_leaving(self._message, link):
                raise NeverSent("the link has just ended")
            reply = link.call_on_credit(
                cast(str, self._message), deadline_s=left_s, waiting=self._agent.waiting, overdraws=True
            )  # `dumps` knows it
        except NeverSent:
            self.fail(not_sent(self._to))
            return
        except FanwiseError as error:
            self.fail(error)
            return
        if self._message.keeps:
            reply.add_done_callback(partial(until_answered, self._message.keeps))
        self._message = self._message._replace(keeps=())
        self._inner = inner = CallFuture(self._agent, reply, self._to, self._limit_s)
        self._decided.set()
        self._agent.answer(partial(inner.add_done_callback, self._finish))  # it may be done: callbacks are the user's

    def fail(self, error: FanwiseError) -> None:
        """There will be no link."""
        self._error = failed(error, self._to, self._limit_s, closed=self._agent.is_closed).with_traceback(None)
        self._decided.set()
        self._agent.answer(self._finish)

    def cancel(self) -> bool:
        if self._agent.connections.withdraw(self._to.id, self):
            self.fail(CancelledError("it waited for its link"))
            self._finish_now()
            return True
        wait_for_event(self._decided)  # for a moment: it is just leaving, or has left
        if self._inner is None or not self._inner.cancel():
            return False
        self._finish_now(self._inner)
        return True

    def _finish_now(self, inner: "Future[Any] | None" = None) -> None:
        """Finish before returning, even if another thread has just begun to. A reading thread does not wait."""
        if self._agent.may_wait():
            self._finish(inner)
            wait_for(self)

    def _finish(self, inner: "Future[Any] | None" = None) -> None:  # Any: as this
        """Become as the call that left, or fail."""
        try:
            self._unfinished.pop()
        except IndexError:
            return  # another thread does, or did
        if inner is not None:
            hand_on(self, inner)
            return
        assert self._error is not None, "set before it was decided"
        try:
            self._agent.serializer.take_back(self._message, self._to.id)
        finally:
            self.set_exception(self._error)

    def wait(self) -> Any:  # Any: what the function returned
        """Block until the call is answered. Raises as `CallFuture.wait` does."""
        if not self.done():
            with self._agent.waiting():
                wait_for_event(self._decided)
                self._wait_on()
        return outcome_of(super().wait)

    def _wait_on(self) -> None:
        """It has left, or never will."""
        if self._inner is None:
            self._finish()
            return
        try:
            self._inner.wait()
        except Exception:
            if not self._inner.done():  # this thread must not wait
                raise
        self._finish(self._inner)

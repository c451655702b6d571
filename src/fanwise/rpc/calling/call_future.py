"""The future of a call: a `torch.futures.Future`, whose waiting thread reads its own answer.

The answer is opened - unpickled, which is the user's code - by whoever waits, or outside the reading threads when
nobody does; once. Callbacks run where it was opened.
"""

from typing import Any, NamedTuple, Protocol

from ...base.errors import (
    CancelledError,
    ClosedError,
    DeadlineExceeded,
    LinkLostError,
    OwnerLostError,
    RemoteError,
    WorkerLostError,
)
from ...links.link import Reply
from .. import agent_protocol
from ..messages.serializer import Serializer
from ..worker_info import WorkerInfo
from .call import Call
from .cancelling import here
from .outcomes import outcome_of, raise_afresh, wait_for


class Agent(agent_protocol.Agent, Protocol):
    """What is asked of the agent."""

    @property
    def serializer(self) -> Serializer: ...


class CallFuture(Call[Any]):  # Any: what the function returns
    """See the module. Made by `Sender.call`."""

    # Thousands may be open: the fewer objects each is, the less the garbage collector has to look at.
    __slots__ = ("_agent", "_limit_s", "_reply", "_to", "_unopened", "_waited")
    has_left = True  # it was sent

    def __init__(self, agent: Agent, reply: Reply, to: WorkerInfo, limit_s: float | None) -> None:
        super().__init__()
        self._agent = agent
        self._reply = reply
        self._to = to
        self._limit_s = limit_s
        self._waited = False
        self._unopened = True  # deleted by the one thread that opens it
        reply.add_done_callback(self._answered)

    def wait(self) -> Any:  # Any: what the function returned
        """Block until the call is answered.

        Raises what the function raised; `WorkerLostError`, `DeadlineExceeded`; `CancelledError` after `cancel()`.
        """
        agent = self._agent
        scope = here()
        if scope is not None:
            scope.check()
        # A call that the one which waits has not made itself goes on when that is cancelled, and its wait must not.
        if hasattr(self, "_unopened") and (scope is None or scope.has(self._reply)):
            self._waited = True
            released = agent.begin_waiting()
            try:
                self._reply.wait()
            except BaseException:  # Ctrl-C: others may wait, or have callbacks
                self._waited = False
                if self._reply.done():
                    agent.answer(self._open_outside)
                raise
            finally:
                if released:
                    agent.end_waiting()
            opened = self._open()
            if opened is not None:  # by this thread: what it has at hand need not come out of torch's future
                if opened.error is not None:
                    raise_afresh(opened.error)
                return opened.value
        if not self.done():
            with agent.waiting():
                wait_for(self)
        return outcome_of(super().wait)

    def cancel(self) -> bool:
        waited, self._waited = self._waited, True  # so that it is this thread which opens it, at once
        if self._reply.cancel():
            self._open()
            return True
        self._waited = waited
        if not waited and self._reply.done():  # answered meanwhile
            self._agent.answer(self._open_outside)
        return False

    def _answered(self, _reply: Reply) -> None:
        """On a reading thread."""
        if not self._waited:
            self._agent.answer(self._open_outside)

    def _open_outside(self) -> None:
        self._open()

    def _open(self) -> "_Outcome | None":
        """Open the answer and be done. None: another thread does, or did."""
        try:
            del self._unopened
        except AttributeError:
            return None
        try:
            answer, link = self._reply.result(), self._reply.link
            outcome = _Outcome(self._agent.serializer.deserialize(answer, self._to.id, link).value, None)
        except Exception as error:
            outcome = _Outcome(
                None, failed(error, self._to, self._limit_s, closed=self._agent.is_closed).with_traceback(None)
            )
            self.set_exception(outcome.error)
        except BaseException as error:  # Ctrl-C, or the value's own type: the others who wait must hear of it too
            self.set_exception(
                RemoteError(f"an answer of worker {self._to.name} was not read: {type(error).__name__} was raised.")
            )
            raise
        else:
            self.set_result(outcome.value)
        return outcome


class _Outcome(NamedTuple):
    """What a call came to."""

    value: Any  # Any: what the function returned
    error: Exception | None


def failed(error: Exception, to: WorkerInfo, limit_s: float | None, *, closed: bool) -> Exception:
    """The error of a call, for its caller: what the link says, said of a worker. `closed`: this process shut down."""
    if hasattr(error, "__notes__"):
        return error  # raised there: a note has its traceback
    if isinstance(error, DeadlineExceeded) and limit_s is not None:  # before an answer came, or a link was there
        limit_ms = round(limit_s * 1000)
        return DeadlineExceeded(
            f"RPC ran for more than set timeout ({limit_ms} ms) and will now be marked with an error: "
            f"worker {to.name} has not answered. Its function may still run."
        )
    if isinstance(error, CancelledError):
        return CancelledError(
            f"the call on worker {to.name} was cancelled here before it was answered. "
            f"If its function has begun, it hears of that at its next wait."
        )
    if isinstance(error, ClosedError):
        if closed:
            return ClosedError(f"the call on worker {to.name} was not answered: RPC was shut down in this process.")
        return WorkerLostError(f"worker {to.name} (rank {to.id}) left before it answered: {error.message}")
    if isinstance(error, WorkerLostError) and not isinstance(error, OwnerLostError):
        return WorkerLostError(f"worker {to.name} (rank {to.id}) was lost before it answered: {error.message}")
    return error


def not_sent(to: WorkerInfo) -> LinkLostError:
    """Of a call whose link ended before any of it left."""
    return LinkLostError(
        f"the link to worker {to.name} (rank {to.id}) was cut just before the call left: it did not run; the worker "
        f"lives.\nCall again: the next call makes a new link."
    )


def until_answered(_: object, __: Reply) -> None:
    """A callback that keeps what it is made with: the references of a call, until it is answered or given up."""

"""The callee's half of a call: deserializes received calls, runs them and replies, outside the reading threads.

    request --job--> deserialize, wait for references, run --+--> value      --> serialize, reply
                                                             +--> Future     --> reply when it is done (async_execution)
                                                             +--> coroutine  --> run on the asyncio loop, then reply
                                                             +--> exception  --> send it as an error

An error of the function is logged here and sent to the caller.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ...base.errors import ClosedError, FanwiseError, RemoteError, WireError, WorkerLostError
from ...links.link import Request
from ...links.runner_threads import RunnerThreads
from .. import allowed
from ..messages.ids import Created, Invocation
from ..messages.messages import BARE_CALL, PLAIN_CALL, Message, creation_of
from ..messages.metadata import Address, Context
from ..worker_info import WorkerInfo
from .call import method_called
from .cancellation import Scope, current_call
from .coroutines import Coroutines
from .errors import as_exception, result_error, traceback_of
from .serializer import Deserialized, Serializer

if TYPE_CHECKING:
    from ..references.references import References

_log = logging.getLogger("fanwise.rpc")

_NOT_FOUND = (
    "Default RPC pickler does not serialize function code. Ensure that UDFs are defined on both caller and callee "
    "modules."
)
# Logged without a traceback: where the loss was noticed is irrelevant.
_CONNECTION_ERRORS = (WorkerLostError, ClosedError, KeyboardInterrupt)


class Server:
    """Serves the calls that this worker receives.

    Args:
        enqueue_actor_call: queues a call to an actor.
    """

    def __init__(
        self,
        serializer: Serializer,
        runners: RunnerThreads,
        *,
        references: "References",
        enqueue_actor_call: Callable[[Address, "ReceivedCall"], None],
    ) -> None:
        self.num_open = 0
        self.num_begun = 0
        self.coroutines = Coroutines()
        self._references = references
        self._serializer = serializer
        self._runners = runners
        self._lock = threading.Lock()
        self._enqueue_actor_call = enqueue_actor_call

    def serve(self, sender: WorkerInfo, request: Request) -> None:
        """Start a received call, on a reading thread."""
        message: Message = request.method  # type: ignore[assignment]
        if self._serializer.allowed is not None and message.head[0] != PLAIN_CALL:
            raise WireError("received a call that is not plain; this worker has an allow-list, so it was not read.")
        address, creation, value = message.address, None, None
        if message.head[0] != BARE_CALL:
            creation = creation_of(message)
        if address is not None and address.concurrency and (creation is None or creation[0] != address.actor):
            raise WireError("a call that creates an actor makes another value.")
        if creation is not None:
            value = self._references.expect(creation)
        with self._lock:
            self.num_open += 1
            self.num_begun += 1
        call = ReceivedCall(self, sender, request, creation, value)
        request.on_cancel = call.cancel
        if address is None:
            self._runners.call(call)
        else:
            self._enqueue_actor_call(address, call)

    def on_finished(self) -> None:
        """Count a call as finished."""
        with self._lock:
            self.num_open -= 1


class ReceivedCall:
    """One received call, and a job of the runner threads.

    Attributes:
        on_end: called once, after the reply.
    """

    __slots__ = (
        *("_autograd_context", "_creation", "_is_plain", "_name"),
        *("_scope", "_sender", "_server", "_value", "on_end", "request"),
    )

    def __init__(
        self, server: Server, sender: WorkerInfo, request: Request, creation: Created | None, value: Any
    ) -> None:
        self._server = server
        self._creation = creation  # None if the value is returned
        self._value = value
        self._sender = sender
        self.request = request
        self.on_end: Callable[[], None] = _nothing
        self._autograd_context: Context | None = None
        self._name = ""
        self._is_plain = request.method.head[0] == PLAIN_CALL  # type: ignore[attr-defined]  # Message
        self._scope: Scope | None = None

    def scope(self) -> Scope:
        """Return the cancellation scope, created on demand."""
        with self._server._lock:
            if self._scope is None:
                self._scope = Scope()
            return self._scope

    def is_cancelled(self) -> bool:
        return self._scope is not None and self._scope.is_cancelled

    def cancel(self) -> None:
        """Handle a cancellation by the caller, on a reading thread."""
        self.scope().cancel()

    # -- running ---------------------------------------------------------------------------------------------------

    def __call__(self) -> None:
        """Deserialize and run the call, as a job of a runner thread."""
        call_in_default_state(self._deserialize_and_run)

    def _deserialize_and_run(self) -> None:
        server, request = self._server, self.request
        if request.when_answers_leave(partial(server._runners.call, self)):
            return
        try:
            content = server._serializer.deserialize(request.method, self._sender.id)  # type: ignore[arg-type]  # Message
        except AttributeError as error:
            self.fail(RuntimeError(f"{error}. {_NOT_FOUND}"))
            return
        except BaseException as error:
            self.fail(error)
            return
        unconfirmed = server._references.confirmation() if content.has_references else None
        if unconfirmed is None:
            self.run(content)
        else:
            run = partial(call_in_default_state, self.run, content)
            unconfirmed.add_done_callback(lambda _: server._runners.call(run))

    def drop(self, error: Exception) -> None:
        """Reply with an error without running the call, and release its contents. Not on a reading thread."""
        try:
            self._keep(error)
            self._server._serializer.discard(self.request.method)  # type: ignore[arg-type]  # Message
        except FanwiseError:
            pass  # the link was lost, which also releases the contents
        finally:
            self._finish(partial(self.request.fail, error))

    def run(self, content: Deserialized) -> None:
        """Run the function and reply, now or when its future is done."""
        function, args, kwargs = content.value
        self._autograd_context = content.autograd
        self._name = _name_of(content.value)
        self.request.taken_up()
        token = current_call.set(self)
        try:
            if self._scope is not None:
                self._scope.check()  # canceled before it started
            with self._server._serializer.entered(self._autograd_context):
                value = function(*args, **kwargs)
                if hasattr(function, "_wrapped_async_rpc_function"):
                    value = delayed_reply(self._name, value)
                elif type(value) is CoroutineType:
                    value = DelayedReply(self._server.coroutines.run(value))
        except BaseException as error:
            current_call.reset(token)
            self.fail(error)
            return
        current_call.reset(token)
        if type(value) is DelayedReply:
            value.future.add_done_callback(self._on_future_done)
        else:
            self._answer(value)

    def _on_future_done(self, future: "Future[Any]") -> None:
        try:
            value = future.value()
        except Exception as error:
            self.fail(error)
            error.with_traceback(None)  # the future holds the error, which would hold these frames
            return
        self._answer(value)

    # -- replying --------------------------------------------------------------------------------------------------

    def _serialize(self, value: Any, description: str) -> Message:
        """Serialize a result. Raises an error that explains why that failed."""
        try:
            if self._is_plain:
                return allowed.encode_reply(value)
            with self._server._serializer.entered(self._autograd_context):
                return self._server._serializer.serialize(value, self._sender.id)
        except BaseException as error:
            explained = result_error(error, value, description)
        try:
            raise explained
        finally:
            del explained  # otherwise the error would keep this frame, and so the value, until a garbage collection

    def _roll_back(self, message: Message) -> None:
        self._server._serializer.roll_back(message, self._sender.id)

    def _keep(self, error: Exception | None, value: object = None) -> None:
        """Set the value that stays on this worker, if the call creates one."""
        if self._creation is not None:
            self._server._references.set_value(self._creation[0], self._value, error, value)

    def _answer(self, value: object) -> None:
        if self._creation is not None:
            self._keep(None, value)
            value = None
        if self.is_cancelled():
            self._finish(self.request.unanswered)
            return
        try:
            message = self._serialize(value, self._name if " " in self._name else f"what {self._name} returned")
        except BaseException as error:
            self.fail(error)
            return
        self._finish(partial(self._send, message))

    def fail(self, error: BaseException) -> None:
        """Reply with an error. The reply to a call that creates a value is None: the value is the error."""
        sent = as_exception(error)
        if self.is_cancelled():
            self._keep(sent.with_traceback(None))
            self._finish(self.request.unanswered)
            return
        # As text: a log record with the exception would keep the frames of the function alive, and their references.
        is_of_connection = isinstance(error, _CONNECTION_ERRORS)
        description = f"{type(error).__name__}: {error}" if is_of_connection else traceback_of(error)
        _log.error("%s by worker %s failed\n%s", self.request.method, self._sender.name, description)
        if self._creation is not None:
            self._keep(sent.with_traceback(None))
            self._creation = None
            self._answer(None)
            return
        self._finish(partial(self._send_error, sent))

    def _finish(self, send_reply: Callable[[], object]) -> None:
        self._server.on_finished()
        try:
            with contextlib.suppress(FanwiseError):  # the caller has disconnected
                send_reply()
        finally:
            on_end, self.on_end = self.on_end, _nothing
            on_end()

    def _send(self, message: Message) -> None:
        if not self.request.answer(message):
            self._roll_back(message)

    def _send_error(self, error: Exception) -> None:
        try:
            self.request.fail(error)
        except FanwiseError:
            raise
        except BaseException as failure:  # raised by a method of the error
            name, reason = type(error).__name__, type(failure).__name__
            text = f"the function raised {name}, which could not be sent: its text or its pickling raised {reason}."
            self.request.fail(RemoteError(text))


def _nothing() -> None: ...


def call_in_default_state(job: Callable[..., None], *args: object) -> None:
    """Call `job(*args)` with torch's default grad mode, inference mode and autocast, which belong to the thread.

    A function that changes them would affect later calls on its thread. Takes 0.1 us if they are unchanged.
    """
    if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not torch._C._is_any_autocast_enabled():
        job(*args)
        return
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda", "xpu", "mps"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        job(*args)


def _name_of(call: Invocation) -> str:
    method, function = method_called(call), call[0]
    about_rref = getattr(function, "_about_rref", None)
    if about_rref is not None:
        return f"{about_rref} RRef({call[1][0]})"
    if method is not None:
        return str(method[0])
    return getattr(function, "__qualname__", "") or getattr(function, "__name__", type(function).__qualname__)


class DelayedReply:
    """The reply of a call is sent when this future is done."""

    __slots__ = ("future",)

    def __init__(self, future: Any) -> None:
        self.future = future


def delayed_reply(name: str, value: object) -> DelayedReply:
    """Wrap the result of an `async_execution` function. Raises RuntimeError if it is no future."""
    if not isinstance(value, torch._C.Future):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, "
            f"but {name} returned {type(value).__name__}."
        )
    return DelayedReply(value)

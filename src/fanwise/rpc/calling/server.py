"""The callee's half of a call: deserializes received calls, runs them and replies, outside the reading threads.

    request --job--> deserialize, wait for references, run --+--> value      --> serialize, reply
                                                             +--> Future     --> reply when it is done (async_execution)
                                                             +--> coroutine  --> run on the asyncio loop, then reply
                                                             +--> exception  --> send it as an error

An error of the function is logged here and sent to the caller (`sendable_errors`).
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

from ...base.errors import ClosedError, FanwiseError, NotSendableError, WireError, WorkerLostError
from ...links.link import Request
from ...links.runner_threads import RunnerThreads
from .. import allowed
from ..messages.ids import Created, Invocation
from ..messages.messages import BARE_CALL, PLAIN_CALL, Message, creation_of
from ..messages.metadata import Address, Context
from ..streams.producer import Producer
from ..streams.window import Window
from ..worker_info import WorkerInfo
from .call import method_called
from .cancellation import Scope, current_call
from .coroutines import Coroutines
from .sendable_errors import as_exception, replacement_error, result_error, sendable_error, traceback_of
from .serializer import Deserialized, Serializer
from .torch_state import call_in_default_state

if TYPE_CHECKING:
    from ..references.references import References

_log = logging.getLogger("fanwise.rpc")


class Server:
    """Serves the calls that this worker receives.

    Args:
        enqueue_actor_call: queues a call to an actor: (address, request, function that creates the job).
    """

    def __init__(
        self,
        serializer: Serializer,
        runners: RunnerThreads,
        *,
        references: "References",
        enqueue_actor_call: Callable[[Address, Request, Callable[[Any], Any]], None],
    ) -> None:
        self.num_open = 0
        self.num_begun = 0
        self._producers: set[Producer] = set()
        self._references = references
        self._serializer = serializer
        self._runners = runners
        self._lock = threading.Lock()
        self.coroutines = Coroutines()
        self._enqueue_actor_call = enqueue_actor_call

    def serve(self, sender: WorkerInfo, request: Request, was_cancelled: bool = False) -> None:
        """Start a received call, on a reading thread. `was_cancelled`: while it was buffered."""
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
        call = request.listener = _Call(self, sender, request, creation, value)
        if was_cancelled:
            call.cancelled()
        if address is None:
            self._runners.call(call)
        else:
            self._enqueue_actor_call(address, request, call.reply_to)

    def _run_when_confirmed(self, call: "_Call", content: Deserialized) -> None:
        """Run a call once the owners of the references in its arguments have confirmed them."""
        confirmed = self._references.confirmation()
        if confirmed is None:
            call.run(content)
        else:
            confirmed.add_done_callback(lambda _: self._runners.call(partial(call_in_default_state, call.run, content)))

    def on_finished(self) -> None:
        """Count a reply."""
        with self._lock:
            self.num_open -= 1

    def add_producer(self, producer: Producer) -> None:
        with self._lock:
            self._producers.add(producer)

    def remove_producer(self, producer: Producer) -> None:
        with self._lock:
            self._producers.discard(producer)

    @property
    def num_streams(self) -> int:
        return len(self._producers)

    @property
    def num_open_but_waiting(self) -> int:
        """Number of open calls without streams that wait for their consumers."""
        with self._lock:
            return self.num_open - sum(producer.is_blocked for producer in self._producers)


_NOT_FOUND = (
    "Default RPC pickler does not serialize function code. Ensure that UDFs are defined on both caller and callee "
    "modules."
)


class _Call:
    """One received call."""

    __slots__ = (
        *("_autograd_context", "_creation", "_is_plain", "_name", "_producer"),
        *("_request", "_scope", "_sender", "_server", "_value"),
    )

    def __init__(
        self, server: Server, sender: WorkerInfo, request: Request, creation: Created | None, value: Any
    ) -> None:
        self._server = server
        self._creation = creation  # None if the value is returned
        self._value = value
        self._sender = sender
        self._request = request
        self._autograd_context: Context | None = None
        self._name = ""
        self._is_plain = request.method.head[0] == PLAIN_CALL  # type: ignore[attr-defined]  # Message
        self._scope: Scope | None = None
        self._producer: Producer | None = None

    def reply_to(self, request: Any) -> "_Call":
        """Reply to `request`, the wrapper of an actor's queue, instead of the original request."""
        self._request = request
        return self

    # -- events from the link: see `Listener` ----------------------------------------------------------------------

    def scope(self) -> Scope:
        """Return the cancellation scope, created on demand."""
        with self._server._lock:
            if self._scope is None:
                self._scope = Scope()
            return self._scope

    def is_cancelled(self) -> bool:
        return self._scope is not None and self._scope.is_cancelled

    def cancelled(self) -> None:
        """Handle a cancellation by the caller, on a reading thread."""
        self.scope().cancel()
        if self._producer is not None:
            self._producer.cancel()

    def taken(self, num_items: int, num_bytes: int) -> None:
        """Handle an acknowledgment of a stream. Raises ValueError if it is invalid."""
        if self._producer is None:
            raise ValueError(f"acknowledgment of {num_items} items of a call that is no stream")
        self._producer.on_ack(num_items, num_bytes)

    def lost(self) -> None:
        """Handle the loss of the link. Only streams are canceled: other functions may have side effects."""
        if self._producer is not None:
            self.cancelled()

    # -- running ---------------------------------------------------------------------------------------------------

    def __call__(self) -> None:
        """Deserialize and run the call, as a job of a runner thread."""
        call_in_default_state(self._deserialize_and_run)

    def _deserialize_and_run(self) -> None:
        if self._request.when_answers_leave(self._retry):
            return
        try:
            content = self._server._serializer.deserialize(self._request.method, self._sender.id, self._request.link)  # type: ignore[arg-type]  # Message
        except AttributeError as error:
            self._fail_unread(RuntimeError(f"{error}. {_NOT_FOUND}"))
        except BaseException as error:
            self._fail_unread(error)
        else:
            if content.has_references:
                self._server._run_when_confirmed(self, content)
            else:
                self.run(content)

    def _retry(self) -> None:
        self._server._runners.call(self)

    def _fail_unread(self, error: BaseException) -> None:
        """Fail a call that could not be deserialized."""
        self._run_for_value(partial(_raise, as_exception(error)))
        self.fail(error)

    def _run_for_value(self, run: Callable[[], Any]) -> Any:
        """Call `run` for the value that stays on this worker, if the call has one."""
        if self._creation is None:
            return None
        return self._server._references.run_creation(self._sender, self._creation, self._value, run)

    def drop(self, error: Exception) -> None:
        """Reply with an error without running the call, and release its contents. Not on a reading thread."""
        server, message, link = self._server, self._request.method, self._request.link
        server.on_finished()
        try:
            self._run_for_value(partial(_raise, error))
            server._serializer.discard(message, link)  # type: ignore[arg-type]  # Message
        except FanwiseError:
            pass  # the link was lost, which also releases the contents
        finally:
            with contextlib.suppress(FanwiseError):
                self._request.fail(error)

    def run(self, content: Deserialized) -> None:
        """Run the function and reply, now or when its future is done."""
        function, args, kwargs = content.value
        self._autograd_context = content.autograd
        self._name = _name_of(content.value)
        if content.window is not None:
            function = partial(self._run_as_stream, Window(*content.window), function)
        try:
            if content.remote is None:
                value = self._call_function(function, args, kwargs)
            else:
                value = self._run_for_value(partial(self._call_function, function, args, kwargs))
            if type(value) is DelayedReply:
                value.future.add_done_callback(self._on_future_done)
                return
        except BaseException as error:
            self.fail(error)
            return
        self._answer(value)

    def _call_function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of the function, or a `DelayedReply`."""
        self._request.taken_up()
        token = current_call.set(self)
        try:
            if self._scope is not None:
                self._scope.check()  # canceled before it started
            if self._autograd_context is None:
                value = function(*args, **kwargs)
                if type(value) is CoroutineType or hasattr(function, "_wrapped_async_rpc_function"):
                    return self._wrap_result(function, value)
                return value
            with self._server._serializer.entered(self._autograd_context):
                return self._wrap_result(function, function(*args, **kwargs))
        except BaseException as error:
            raise as_exception(error)  # noqa: B904  # the same error, or caused by it
        finally:
            current_call.reset(token)

    def _run_as_stream(self, window: Window, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function that is called as a stream."""
        if hasattr(function, "_wrapped_async_rpc_function"):
            raise TypeError(
                f"{self._name} is an async_execution function, which returns one value: it cannot be streamed."
            )
        waiting = self._server._runners.waiting
        self._producer = producer = Producer(window, self, self.scope(), release_slot=waiting)
        if self.is_cancelled() or self._request.link.ending is not None:
            self.cancelled()  # perhaps before `_producer` was set
        self._server.add_producer(producer)
        pending = None
        try:
            pending = producer.run(function(*args, **kwargs), self._name)
        finally:
            if pending is None:
                self._server.remove_producer(producer)
        return pending if pending is None else self._stream_async(producer, pending)

    async def _stream_async(self, producer: Producer, items: Any) -> None:
        try:
            await items
        finally:
            self._server.remove_producer(producer)

    def serialize_item(self, item: Any) -> Message:
        """Serialize an item of a stream. Raises an error that explains why that failed."""
        try:
            return self._serialize(item)
        except BaseException as error:
            explained = result_error(error, item, f"an item that {self._name} yielded")
        raise explained

    def _serialize(self, value: Any) -> Message:
        """Serialize a result or an item."""
        if self._is_plain:
            return allowed.encode_reply(value)
        serializer = self._server._serializer
        if self._autograd_context is None:
            return serializer.serialize(value, self._sender.id)
        with serializer.entered(self._autograd_context):
            return serializer.serialize(value, self._sender.id)

    def send_item(self, message: Message) -> bool:
        """Send an item. Return False if the link has ended. Raises NotSendableError if it is too large."""
        server, request = self._server, self._request
        try:
            request.give(message)
        except NotSendableError:
            server._serializer.roll_back(message, self._sender.id)
            raise
        except FanwiseError:
            return False
        return True

    def when_link_drained(self, on_drained: Callable[[], None]) -> bool:
        """Return False if the link has room for an item; otherwise True, and call `on_drained` when it has."""
        return self._request.when_answers_leave(on_drained)

    @property
    def _result_name(self) -> str:
        """Name of the result, for an error message."""
        return self._name if " " in self._name else f"what {self._name} returned"

    def _wrap_result(self, function: Callable[..., Any], value: Any) -> Any:
        if hasattr(function, "_wrapped_async_rpc_function"):
            return delayed_reply(self._name, value)
        if type(value) is CoroutineType:
            return DelayedReply(self._server.coroutines.run(value))
        return value

    def _on_future_done(self, future: "Future[Any]") -> None:
        try:
            value = future.value()
        except Exception as error:
            self.fail(error)
            error.with_traceback(None)  # the future holds the error, which would hold these frames
            return
        self._answer(value)

    def _answer(self, value: object) -> None:
        server = self._server
        if self._scope is not None and self._scope.is_cancelled:
            self._finish_unanswered()
            return
        try:
            message = self._serialize(value)
        except BaseException as error:
            self.fail(result_error(error, value, self._result_name))
            return
        with server._lock:  # inlined `on_finished`
            server.num_open -= 1
        try:
            self._request.answer(message)
        except FanwiseError:
            pass  # the caller has disconnected

    def fail(self, error: BaseException) -> None:
        """Reply with an error."""
        if self.is_cancelled():
            self._finish_unanswered()
            return
        self._server.on_finished()
        # As text: a log record with the exception would keep the frames of the function alive, and their references.
        description = (
            f"{type(error).__name__}: {error}" if isinstance(error, _CONNECTION_ERRORS) else traceback_of(error)
        )
        _log.error("%s by worker %s failed\n%s", self._request.method, self._sender.name, description)
        try:
            self._request.fail(sendable_error(error))
        except FanwiseError:
            pass  # the caller has disconnected
        except BaseException as failure:  # raised by a method of the error
            with contextlib.suppress(FanwiseError):
                self._request.fail(replacement_error(error, failure))

    def _finish_unanswered(self) -> None:
        """Finish a canceled call without a reply."""
        self._server.on_finished()
        self._request.unanswered()


# Logged without a traceback: where the loss was noticed is irrelevant.
_CONNECTION_ERRORS = (WorkerLostError, ClosedError, KeyboardInterrupt)


def _raise(error: Exception) -> None:
    raise error


def _name_of(call: Invocation) -> str:
    method, function = method_called(call), call[0]
    about_rref = getattr(function, "_about_rref", None)
    if about_rref is not None:
        return f"{about_rref} RRef({call[1][0]})"
    if method is not None:
        return str(method[0])
    return getattr(function, "__qualname__", "") or getattr(function, "__name__", type(function).__qualname__)


def delayed_reply(name: str, value: object) -> "DelayedReply":
    """Wrap the result of an `async_execution` function. Raises RuntimeError if it is no future."""
    if not isinstance(value, torch._C.Future):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, "
            f"but {name} returned {type(value).__name__}."
        )
    return DelayedReply(value)


class DelayedReply:
    """The reply of a call is sent when this future is done."""

    __slots__ = ("future",)

    def __init__(self, future: Any) -> None:
        self.future = future

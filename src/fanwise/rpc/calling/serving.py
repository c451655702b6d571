"""Calls that others make of this worker: opened, run and answered outside the threads that read.

    request --outside--> open, wait for references, run --+--> value            --> serialize, answer
                                                          +--> Future           --> when it is done   (async_execution)
                                                          +--> coroutine        --> on the loop of this worker, then so
                                                          +--> exception        --> answered as such

A function that raises is logged here and raised there (`sendable_errors`). Knows no link but the one it answers.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

import torch
from torch.futures import Future

from ...base.errors import ClosedError, FanwiseError, LinkLostError, NotSendableError, WireError, WorkerLostError
from ...links.link import Link, Request
from ...links.runner_threads import RunnerThreads
from ..actors.address import Address
from ..messages.messages import BARE_CALL, Message, made_by
from ..messages.metadata import Context, Created
from ..messages.serializer import Deserialized, Serializer
from ..streams.producing import Producer
from ..streams.window import Window
from ..worker_info import WorkerInfo
from .call import Invocation, method_called
from .cancelling import Scope, running
from .coroutines import Coroutines
from .sendable_errors import about_result, harmless, instead_of, that_can_be_raised_there, traceback_of
from .torch_state import call_in_default_state

_log = logging.getLogger("fanwise.rpc")


class References(Protocol):
    """What is asked of references."""

    def expect(self, made: Created, link: Link) -> Any:
        """A call has come whose value stays here: who asks for that waits from now on. What `keep` takes (Any)."""

    def keep(self, sender: WorkerInfo, made: Created, value: Any, run: Callable[[], Any]) -> Any:
        """Run it; what to answer. Any: the user's, and of `expect`."""

    def confirmed(self) -> "Future[Any] | None":  # Any: nothing
        """Of those among the arguments that this thread has just read: done when the function may run; None: it may."""


class Server:
    """See the module.

    Args:
        take_turn: where a call for an actor waits: (its address, what answers it, the call made of that).
        is_leaving: notes by which link the references and loans of an answer leave. False: that has ended.
    """

    def __init__(
        self,
        serializer: Serializer,
        runners: RunnerThreads,
        *,
        references: References,
        take_turn: Callable[[Address, Request, Callable[[Any], Any]], None],  # Any: as a request; a call
        is_leaving: Callable[[Message, Link], bool],
    ) -> None:
        self.num_open = 0
        self.num_begun = 0
        self._producers: set[Producer] = set()
        self._references = references
        self._is_leaving = is_leaving
        self._serializer = serializer
        self._runners = runners
        self._lock = threading.Lock()
        self.coroutines = Coroutines()
        self._take_turn = take_turn

    def serve(self, sender: WorkerInfo, request: Request, was_cancelled: bool = False) -> None:
        """A call came in. On a reading thread. `was_cancelled`: since it came."""
        message: Message = request.method  # type: ignore[assignment]  # for a link it is text
        address, made, value = message.address, None, None
        if message.head[0] != BARE_CALL:
            made = made_by(message)
        if address is not None and address.concurrency and (made is None or made[0] != address.actor):
            raise WireError("a call that makes an actor makes another value.")
        if made is not None:
            try:
                value = self._references.expect(made, request.link)
            except LinkLostError:  # whoever asked for it is told so too
                request.unanswered()
                return
        with self._lock:
            self.num_open += 1
            self.num_begun += 1
        call = request.listener = _Call(self, sender, request, made, value)
        if was_cancelled:
            call.cancelled()
        if address is None:
            self._runners.call(call)
        else:
            self._take_turn(address, request, call.answering)

    def _run_when_confirmed(self, call: "_Call", opened: Deserialized) -> None:
        """Run a call when the owners of the references in its arguments have confirmed them."""
        confirmed = self._references.confirmed()
        if confirmed is None:
            call.run(opened)
        else:
            confirmed.add_done_callback(lambda _: self._runners.call(partial(call_in_default_state, call.run, opened)))

    def ended(self) -> None:
        """A call was answered."""
        with self._lock:
            self.num_open -= 1

    def produces(self, producer: Producer) -> None:
        """A stream begins."""
        with self._lock:
            self._producers.add(producer)

    def produced(self, producer: Producer) -> None:
        """It has ended, or is just about to be answered."""
        with self._lock:
            self._producers.discard(producer)

    @property
    def num_streams(self) -> int:
        """How many streams go on here."""
        return len(self._producers)

    @property
    def num_open_but_waiting(self) -> int:
        """How many calls are open, without the streams that wait for their readers."""
        with self._lock:
            return self.num_open - sum(producer.waits_for_its_reader for producer in self._producers)


_NOT_FOUND = (
    "Default RPC pickler does not serialize function code. Ensure that UDFs are defined on both caller and callee "
    "modules."
)


class _Call:
    """One call on its way from request to answer."""

    __slots__ = ("_header", "_made", "_name", "_producer", "_request", "_scope", "_sender", "_server", "_value")

    def __init__(self, server: Server, sender: WorkerInfo, request: Request, made: Created | None, value: Any) -> None:
        self._server = server
        self._made = made  # if its value stays here
        self._value = value  # Any: what is expected then
        self._sender = sender
        self._request = request
        self._header: Context | None = None
        self._name = ""
        self._scope: Scope | None = None
        self._producer: Producer | None = None

    def answering(self, request: Any) -> "_Call":  # Any: what is answered in the place of its request
        """This call, which waits for its turn at an actor, is answered by what knows of that."""
        self._request = request
        return self

    # -- what its caller says --------------------------------------------------------------------------------------

    def scope(self) -> Scope:
        """What ends when the caller does not wait any more."""
        with self._server._lock:
            if self._scope is None:
                self._scope = Scope()
            return self._scope

    def is_cancelled(self) -> bool:
        """Whether the caller does not wait any more."""
        return self._scope is not None and self._scope.is_cancelled

    def cancelled(self) -> None:
        """The caller does not wait any more. On a reading thread."""
        self.scope().cancel()
        if self._producer is not None:
            self._producer.cancelled()

    def taken(self, num_items: int, num_bytes: int) -> None:
        """The caller of a stream has taken so much of it. ValueError: it cannot have."""
        if self._producer is None:
            raise ValueError(f"{num_items} items of an answer that has none")
        self._producer.taken(num_items, num_bytes)

    def lost(self) -> None:
        """The link to the caller has ended. A function that gives no items goes on: it may change something."""
        if self._producer is not None:
            self.cancelled()

    # -- running ---------------------------------------------------------------------------------------------------

    def __call__(self) -> None:
        """Open it, and run it. The job that a runner thread is given."""
        call_in_default_state(self._open_and_run)

    def _open_and_run(self) -> None:
        if self._request.when_answers_leave(self._again):
            return
        try:
            opened = self._server._serializer.deserialize(self._request.method, self._sender.id, self._request.link)  # type: ignore[arg-type]  # Message
        except AttributeError as error:
            self._not_run(RuntimeError(f"{error}. {_NOT_FOUND}"))
        except BaseException as error:
            self._not_run(error)
        else:
            if opened.has_references:
                self._server._run_when_confirmed(self, opened)
            else:
                self.run(opened)

    def _again(self) -> None:
        self._server._runners.call(self)

    def _not_run(self, error: BaseException) -> None:
        """It could not be opened."""
        self._keep(partial(_fail, harmless(error)))
        self.fail(error)

    def _keep(self, run: Callable[[], Any]) -> Any:  # Any: what to answer
        """Run this for the value that stays here, if one does."""
        if self._made is None:
            return None
        return self._server._references.keep(self._sender, self._made, self._value, run)

    def drop(self, error: Exception) -> None:
        """It is not run: what came with it is given back; the error is its answer. Not on a reading thread."""
        server, message, link = self._server, self._request.method, self._request.link
        server.ended()
        try:
            self._keep(partial(_fail, error))
            server._serializer.discard(message, link)  # type: ignore[arg-type]  # Message
        except FanwiseError:
            pass  # the link was cut: what came by it is given back so
        finally:
            with contextlib.suppress(FanwiseError):
                self._request.fail(error)

    def run(self, opened: Deserialized) -> None:
        """Run the function and answer, now or when its future is done."""
        function, args, kwargs = opened.value
        self._header = opened.autograd
        self._name = _name_of(opened.value)
        if opened.window is not None:
            function = partial(self._produce, Window(*opened.window), function)
        try:
            if opened.remote is None:
                value = self._begin(function, args, kwargs)
            else:
                value = self._keep(partial(self._begin, function, args, kwargs))
            if type(value) is Later:
                value.future.add_done_callback(self._done)
                return
        except BaseException as error:
            self.fail(error)
            return
        self._answer(value)

    def _begin(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # Any: the user's
        """What the function returns; a future in its place when it is not done yet."""
        self._request.taken_up()
        token = running.set(self)
        try:
            if self._scope is not None:
                self._scope.check()  # cancelled before it began: it never begins
            if self._header is None:
                value = function(*args, **kwargs)
                if type(value) is CoroutineType or hasattr(function, "_wrapped_async_rpc_function"):
                    return self._outcome(function, value)
                return value
            with self._server._serializer.entered(self._header):
                return self._outcome(function, function(*args, **kwargs))
        except BaseException as error:
            raise harmless(error)  # noqa: B904  # the same one, or from it
        finally:
            running.reset(token)

    def _produce(self, window: Window, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # the user's
        """In the place of a function that is called as a stream."""
        if hasattr(function, "_wrapped_async_rpc_function"):
            raise TypeError(f"{self._name} answers later (async_execution), with one value: it was called as a stream.")
        waiting = self._server._runners.waiting
        self._producer = producer = Producer(window, self, self.scope(), without_place=waiting)
        if self.is_cancelled() or self._request.link.ending is not None:
            self.cancelled()  # it may have been before there was a producer to hear of it
        self._server.produces(producer)
        later = None
        try:
            later = producer.run(function(*args, **kwargs), self._name)
        finally:
            if later is None:
                self._server.produced(producer)
        return later if later is None else self._produce_later(producer, later)

    async def _produce_later(self, producer: Producer, items: Any) -> None:  # Any: a coroutine
        try:
            await items
        finally:
            self._server.produced(producer)

    def close_item(self, item: Any) -> Message:  # Any: the user's
        """An item of a stream as it travels. Raises what says why it cannot."""
        serializer = self._server._serializer
        try:
            with serializer.entered(self._header):
                return serializer.serialize(item, self._sender.id)
        except BaseException as error:
            about = about_result(error, item, f"an item that {self._name} yielded")
        raise about

    def give(self, closed: Message) -> bool:
        """It leaves. False: the link has ended. NotSendableError: it is too big."""
        server, request = self._server, self._request
        if (closed.carries or closed.loans) and not server._is_leaving(closed, request.link):
            server._serializer.take_back(closed, self._sender.id)
            return False
        try:
            request.give(closed)
        except NotSendableError:
            server._serializer.take_back(closed, self._sender.id)
            raise
        except FanwiseError:
            return False
        return True

    def when_it_takes_more(self, again: Callable[[], None]) -> bool:
        """Whether so much waits for the link of its reader that no more should come; if so, `again` is called."""
        return self._request.when_answers_leave(again)

    @property
    def _result(self) -> str:
        """What it returned, in words for an error."""
        return self._name if " " in self._name else f"what {self._name} returned"

    def _outcome(self, function: Callable[..., Any], value: Any) -> Any:  # Any: the user's
        if hasattr(function, "_wrapped_async_rpc_function"):
            return answer_later(self._name, value)
        if type(value) is CoroutineType:
            return Later(self._server.coroutines.run(value))
        return value

    def _done(self, future: "Future[Any]") -> None:  # Any: the user's
        try:
            value = future.value()
        except Exception as error:
            self.fail(error)
            error.with_traceback(None)  # it lies in the future, maybe in others too, and would hold these frames
            return
        self._answer(value)

    def _answer(self, value: object) -> None:
        server = self._server
        if self._scope is not None and self._scope.is_cancelled:
            self._end_unheard()
            return
        try:
            if self._header is None:
                message = server._serializer.serialize(value, self._sender.id)
            else:
                with server._serializer.entered(self._header):
                    message = server._serializer.serialize(value, self._sender.id)
        except BaseException as error:
            self.fail(about_result(error, value, self._result))
            return
        with server._lock:  # as `ended`
            server.num_open -= 1
        try:
            if (message.carries or message.loans) and not server._is_leaving(message, self._request.link):
                server._serializer.take_back(message, self._sender.id)  # nobody will read it
                self._request.unanswered()
            else:
                self._request.answer(message)
        except FanwiseError:
            pass  # the caller is gone

    def fail(self, error: BaseException) -> None:
        """The call raises `error` at its caller."""
        if self.is_cancelled():
            self._end_unheard()
            return
        self._server.ended()
        # As text: a record that somebody keeps would keep the function's frames, and the references in them.
        told = f"{type(error).__name__}: {error}" if isinstance(error, _ENDINGS) else traceback_of(error)
        _log.error("%s by worker %s failed\n%s", self._request.method, self._sender.name, told)
        try:
            self._request.fail(that_can_be_raised_there(error))
        except FanwiseError:
            pass  # the caller is gone
        except BaseException as broken:  # by the error's own type; the caller would wait for ever
            with contextlib.suppress(FanwiseError):
                self._request.fail(instead_of(error, broken))

    def _end_unheard(self) -> None:
        """Nobody waits for what came of it."""
        self._server.ended()
        self._request.unanswered()


# Somebody else has ended: where that was noticed tells nothing.
_ENDINGS = (WorkerLostError, LinkLostError, ClosedError, KeyboardInterrupt)


def _fail(error: Exception) -> None:
    """In the place of a function that is not run."""
    raise error


def _name_of(call: Invocation) -> str:
    method, function = method_called(call), call[0]
    about_rref = getattr(function, "_about_rref", None)
    if about_rref is not None:
        return f"{about_rref} RRef({call[1][0]})"
    if method is not None:
        return str(method[0])
    return getattr(function, "__qualname__", "") or getattr(function, "__name__", type(function).__qualname__)


def answer_later(name: str, value: object) -> "Later":
    """What an `async_execution` function of that name returned. RuntimeError when that is no future."""
    if not isinstance(value, torch._C.Future):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, "
            f"but {name} returned {type(value).__name__}."
        )
    return Later(value)


class Later:
    """The value of a call comes when this future is done."""

    __slots__ = ("future",)

    def __init__(self, future: Any) -> None:  # Any: a torch future, also as torch's C++ code makes them
        self.future = future

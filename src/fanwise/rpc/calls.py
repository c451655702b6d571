"""`rpc_sync`, `rpc_async` and `remote` run a function on another worker.

    rpc_sync   wait for the result           rpc_async   return a future           remote   return a reference to it

`to` is a name, a rank or a `WorkerInfo`. Times are in seconds: -1 is the default of the group, 0 no limit. An error of
the function is raised in the caller in its own type, with the remote traceback as a note.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from ..base.errors import WorkerLostError
from . import current as process
from .calling import cancellation, futures
from .calling.call import Call, ChainedCall
from .constants import UNSET_RPC_TIMEOUT
from .messages.ids import Invocation
from .messages.metadata import CONCURRENCY_LIMIT
from .references import proxy
from .references.rref import RRef
from .worker_info import WorkerInfo

if TYPE_CHECKING:
    from .agent import Agent  # loaded when this process becomes a worker, like the next one
    from .streams import Stream

To = str | int | WorkerInfo
Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | None


thread_local_var = threading.local()  # its `future_list` has the futures that `wait_all` collects


def _resolve_call(to: To, function: Any, args: Args, kwargs: Kwargs) -> "tuple[Agent, WorkerInfo, Invocation]":
    agent: Agent = process.current()
    if not callable(function):
        raise TypeError(f"function should be callable, got {function!r} of type {type(function).__name__}.")
    if args is not None and type(args) is not tuple:
        _check_args(function, args)
    if kwargs and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of argument names and values; got {kwargs!r}.")
    return agent, agent.worker(to), (function, tuple(args or ()), dict(kwargs) if kwargs else {})


def _check_args(function: object, args: object) -> None:
    """Raise TypeError for a string or tensor, which is iterable but meant as the only argument."""
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TypeError(
            f"args must be a tuple or a list with the arguments of {getattr(function, '__qualname__', function)}, "
            f"got one {type(args).__name__}. One argument needs a comma:\n"
            f"  wrong:  args=(x)\n"
            f"  right:  args=(x,)"
        )


def rpc_sync(
    to: To, func: Callable[..., Any], args: Args = None, kwargs: Kwargs = None, timeout: float = UNSET_RPC_TIMEOUT
) -> Any:
    """Run `func(*args, **kwargs)` on worker `to`, wait, and return its result.

    Args:
        to: name, rank or `WorkerInfo`.
        func: function, which the callee imports by its module and name. Builtin operators such as `torch.add` too.
        args, kwargs: sent by value. Inside `autograd.context()`, tensors keep their gradient history.
        timeout: seconds; -1 for the default, 0 for no limit; any other negative value times out immediately. The
            function itself is not interrupted.

    Raises:
        The error of `func`, in its own type. DeadlineExceeded (a RuntimeError): no reply in time. WorkerLostError
        (a RuntimeError): `to` died or left. NotSendableError: a value cannot be pickled; the message names it.

    >>> rpc_sync("worker1", torch.add, args=(torch.ones(2), 3))
    tensor([4., 4.])
    """
    agent, info, invocation = _resolve_call(to, func, args, kwargs)
    return agent.call_sync(info, invocation, timeout_s=timeout)


def rpc_async(
    to: To, func: Callable[..., Any], args: Args = None, kwargs: Kwargs = None, timeout: float = UNSET_RPC_TIMEOUT
) -> Call[Any]:
    """As `rpc_sync`, but return a `torch.futures.Future` at once. It can be canceled, and awaited in a coroutine.

    Arguments may be changed as soon as this returns. Do not wait for the future after `shutdown()`.

    >>> rpc_async("worker1", min, args=(1, 2)).wait()
    1
    """
    agent, info, invocation = _resolve_call(to, func, args, kwargs)
    try:
        future = agent.call(info, invocation, timeout_s=timeout)
    except WorkerLostError as error:
        future = ChainedCall.failed(error)
    collect(future)
    return future


def collect(future: "Future[Any]") -> None:
    """Add a future to the enclosing `wait_all` of this thread, if any."""
    collected = getattr(thread_local_var, "future_list", None)
    if collected is not None:
        collected.append(future)


def remote(
    to: To,
    func: Callable[..., Any],
    args: Args = None,
    kwargs: Kwargs = None,
    timeout: float = UNSET_RPC_TIMEOUT,
    *,
    serial: bool = False,
    concurrency: int | None = None,
) -> RRef[Any]:
    """Run `func` on `to`, keep the value there, and return a reference to it at once.

    The value lives as long as any worker holds a reference. If `func` raises or times out, the next use of the
    reference raises the error.

    Args:
        serial: create an actor from the class `func`: calls of its methods by `rref.rpc_sync()`, `rpc_async()` and
            `remote()` run one at a time, those of one caller in order. A queued call takes no thread on `to`, and does
            not run if it times out in the queue.
        concurrency: as `serial`, but run up to this many calls at a time.

    >>> remote("worker1", torch.add, args=(torch.ones(2), 1)).to_here()
    tensor([2., 2.])
    """
    agent, info, invocation = _resolve_call(to, func, args, kwargs)
    if serial is not False or concurrency is not None:
        rref: RRef[Any] = agent.actors.create(
            info, invocation, timeout_s=timeout, concurrency=_concurrency(func, serial, concurrency)
        )
        return rref
    return agent.references.remote(info, invocation, timeout_s=timeout)


def _concurrency(func: object, serial: bool, concurrency: int | None) -> int:
    """Validate and return the maximum number of concurrent calls of an actor."""
    if not isinstance(serial, bool):
        raise TypeError(f"serial must be True or False, got {serial!r}.")
    if not isinstance(func, type):
        raise TypeError(f"an actor is an object of a class: serial= and concurrency= need a class, got {func!r}.")
    if concurrency is None:
        return 1
    if isinstance(concurrency, bool) or not isinstance(concurrency, int):
        raise TypeError(f"concurrency must be an int, got {concurrency!r}.")
    if not 1 <= concurrency < CONCURRENCY_LIMIT:
        raise ValueError(f"concurrency must be at least 1 and less than {CONCURRENCY_LIMIT}, got {concurrency}.")
    if serial and concurrency != 1:
        raise ValueError(f"serial=True is concurrency=1, and concurrency={concurrency} was given too: leave one out.")
    return concurrency


def stream(
    to: To,
    func: Callable[..., Any],
    args: Args = None,
    kwargs: Kwargs = None,
    timeout: float = UNSET_RPC_TIMEOUT,
    *,
    window: int = 16,
) -> "Stream[Any]":
    """Run `func` on `to` and iterate over the items it yields while it runs.

    Args:
        to, args, kwargs: as in `rpc_sync`.
        func: a generator function, or a function that returns an iterable.
        timeout: seconds for each item, from when it is requested; -1 for the default, 0 for no limit.
        window: number of items that the function may be ahead of the consumer, in the memory of the consumer. Then it
            stays at its `yield`.

    Returns:
        An iterator, also for `async for`, and a context manager. Leaving the loop early ends the function:
        its generator gets `GeneratorExit` at its `yield` and runs its `finally`.

    Raises:
        As `rpc_async`, if the call cannot be sent. Errors of the function are raised instead of an item.

    Each step of the generator is a call on `to`, so it may continue on another thread after a `yield`. It keeps its
    grad mode.

    >>> list(stream("worker1", range, args=(3,)))
    [0, 1, 2]
    """
    agent, info, invocation = _resolve_call(to, func, args, kwargs)
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"window must be a whole number of at least 1, got {window!r}")
    from .streams import Stream  # loaded on use

    return Stream(agent, info, invocation, timeout_s=timeout, window=window)


@contextlib.contextmanager
def wait_all() -> Iterator[None]:
    """Collect the futures that `rpc_async` returns on this thread, and wait for all of them on exit."""
    thread_local_var.future_list = []
    try:
        yield
    finally:
        try:
            futures.wait_all(thread_local_var.future_list)
        finally:
            del thread_local_var.future_list


def waiting() -> AbstractContextManager[None]:
    """Release the thread slot of a called function while it waits for another call.

    At most `num_worker_threads` functions run at a time. Waits for a call or a future release the slot by themselves;
    other waits, such as for a lock or a `threading.Event`, must be wrapped in this context. Otherwise, if all slots
    wait for something that a call would do, that call never starts. No effect on other threads.
    Raises `fanwise.errors.CallCancelled` if the call that runs the function was canceled.

    >>> done = threading.Event()
    >>> rpc_async("worker0", done.set)  # doctest: +SKIP
    >>> with waiting():
    ...     done.wait()  # doctest: +SKIP
    """
    cancellation.check()
    return process.waiting()


proxy.calls = sys.modules[__name__]


def get_worker_info(worker_name: "str | int | None" = None) -> WorkerInfo:
    """Return this worker, or the worker with this name or rank. Raises RuntimeError, naming the workers, if unknown."""
    agent: Agent = process.current()
    return agent.info if worker_name is None else agent.worker(worker_name)


def get_rpc_timeout() -> float:
    """Return the default timeout of calls in seconds; 0 means no limit."""
    agent: Agent = process.current()
    return agent.timeout_s


def set_rpc_timeout(rpc_timeout: float) -> None:
    """Set the default timeout of new calls, in seconds; 0 means no limit."""
    if not rpc_timeout >= 0:
        raise ValueError(f"the timeout must be at least 0 seconds, got {rpc_timeout!r}")
    process.current().timeout_s = float(rpc_timeout)

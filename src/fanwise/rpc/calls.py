"""`rpc_sync`, `rpc_async`, `remote`: run a function on another worker, and what a program asks about its worker.

    rpc_sync   wait for the result           rpc_async   a future of it           remote   a reference; the value stays

`to` is a name, a rank or a `WorkerInfo`. Times are seconds: -1 the group's default, 0 without a limit. What a function
raises is raised by the caller in its own type, with the remote traceback as a note.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from ..base.errors import WorkerLostError
from . import current as process
from .actors.address import CONCURRENCY_LIMIT
from .calling import cancelling, torch_futures
from .calling.call import Call, Following, Invocation
from .constants import UNSET_RPC_TIMEOUT
from .references import proxy
from .references.rref import RRef
from .worker_info import WorkerInfo

if TYPE_CHECKING:
    from .agent import Agent  # loaded when this process becomes a worker, as the next is
    from .streams.reading import Stream

To = str | int | WorkerInfo
Args = Sequence[Any] | None  # Any: the user's
Kwargs = Mapping[str, Any] | None  # Any: the user's


class _ThisThread(threading.local):
    """Futures that `wait_all` collects; absent outside of it."""

    future_list: "list[Future[Any]]"  # Any: the user's


thread_local_var = _ThisThread()


def _checked(
    to: To, function: Any, args: Args, kwargs: Kwargs
) -> "tuple[Agent, WorkerInfo, Invocation]":  # Any: the user's
    agent: Agent = process.current()
    if not callable(function):
        raise TypeError(f"function should be callable, got {function!r} of type {type(function).__name__}.")
    if args is not None and type(args) is not tuple:
        _check_args(function, args)
    if kwargs and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, from the names of arguments to their values; got {kwargs!r}.")
    return agent, agent.worker(to), (function, tuple(args or ()), dict(kwargs) if kwargs else {})


def _check_args(function: object, args: object) -> None:
    """A text or a tensor could be taken apart too; but it was meant as the only argument."""
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TypeError(
            f"args must be a tuple or a list with the arguments of {getattr(function, '__qualname__', function)}, "
            f"got one {type(args).__name__}. One argument needs a comma:\n"
            f"  wrong:  args=(x)\n"
            f"  right:  args=(x,)"
        )


def rpc_sync(
    to: To,
    func: Callable[..., Any],  # Any: the user's
    args: Args = None,
    kwargs: Kwargs = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Any:  # Any: what func returns
    """Run `func(*args, **kwargs)` on worker `to`, wait, and return its result.

    Args:
        to: name, rank or `WorkerInfo`.
        func: found there by its module and name; builtin operators such as `torch.add` too.
        args, kwargs: travel by value; tensors with their gradient's history inside `autograd.context()`.
        timeout: seconds; -1 the default, 0 without a limit; any other number below 0 is over at once. The function
            itself is not interrupted.

    Raises:
        What `func` raised, in its own type. DeadlineExceeded (a RuntimeError): not answered in time. WorkerLostError
        (a RuntimeError): `to` died or left. NotSendableError: something cannot be pickled; names it.

    >>> rpc_sync("worker1", torch.add, args=(torch.ones(2), 3))
    tensor([4., 4.])
    """
    agent, info, invocation = _checked(to, func, args, kwargs)
    return agent.call_sync(info, invocation, timeout_s=timeout)


def rpc_async(
    to: To,
    func: Callable[..., Any],  # Any: the user's
    args: Args = None,
    kwargs: Kwargs = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Call[Any]:  # Any: what func returns
    """As `rpc_sync`, but returns at once: a `torch.futures.Future` that can be cancelled, and awaited in a coroutine.

    Arguments may be changed as soon as this returns. Do not wait for the future after `shutdown()`.

    >>> rpc_async("worker1", min, args=(1, 2)).wait()
    1
    """
    agent, info, invocation = _checked(to, func, args, kwargs)
    try:
        future = agent.call(info, invocation, timeout_s=timeout)
    except WorkerLostError as error:
        future = Following.failed(error)
    collect(future)
    return future


def collect(future: "Future[Any]") -> None:  # Any: the user's
    """A call's future: `wait_all` of this thread waits for it."""
    collected = getattr(thread_local_var, "future_list", None)
    if collected is not None:
        collected.append(future)


def remote(
    to: To,
    func: Callable[..., Any],  # Any: the user's
    args: Args = None,
    kwargs: Kwargs = None,
    timeout: float = UNSET_RPC_TIMEOUT,
    *,
    serial: bool = False,
    concurrency: int | None = None,
) -> RRef[Any]:  # Any: what func returns
    """Run `func` on `to` and leave the value there; return a reference to it at once.

    The value lives as long as anybody holds a reference. If `func` raises, or `timeout` passes, the next use of the
    reference raises that.

    Args:
        serial: `func` is a class, and its object an actor: calls of its methods by `rref.rpc_sync()`, `rpc_async()` and
            `remote()` run one at a time, those of one caller in their order. One that waits takes no thread there, and
            does not run when its time is over before its turn.
        concurrency: as `serial`, so many at a time.

    >>> remote("worker1", torch.add, args=(torch.ones(2), 1)).to_here()
    tensor([2., 2.])
    """
    agent, info, invocation = _checked(to, func, args, kwargs)
    if serial is not False or concurrency is not None:
        actor: RRef[Any] = agent.actors.make(
            info, invocation, timeout_s=timeout, concurrency=_concurrency(func, serial, concurrency)
        )
        return actor
    return agent.references.remote(info, invocation, timeout_s=timeout)


def _concurrency(func: object, serial: bool, concurrency: int | None) -> int:
    """Return how many calls of an actor run at a time. Raises TypeError, ValueError."""
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


def _function_of(api: proxy.Api) -> Callable[..., Any]:  # Any: a result, its future, or a reference to it
    """Looked up at each call: a program may have put another function in its place."""
    match api:
        case "rpc_sync":
            return rpc_sync
        case "rpc_async":
            return rpc_async
        case "remote":
            return remote
        case "rpc_stream":
            return stream


proxy.functions.by_name = _function_of


def stream(
    to: To,
    func: Callable[..., Any],  # Any: the user's
    args: Args = None,
    kwargs: Kwargs = None,
    timeout: float = UNSET_RPC_TIMEOUT,
    *,
    window_items: int = 64,
    window_bytes: int = 32 << 20,
) -> "Stream[Any]":  # Any: what func yields
    """Run `func` on `to` and go through what it yields, item by item, while it goes on.

    Args:
        to, args, kwargs: as in `rpc_sync`.
        func: a generator function, an asynchronous one, or one that returns anything that can be gone through.
        timeout: seconds for each item, from when it is asked for; -1 the default, 0 without a limit.
        window_items, window_bytes: so far the function may be ahead of who reads, and one item, however large that is;
            then it waits where it yields. What is ahead lies in the memory of the reader.

    Returns:
        An iterator, for `async for` too, and a context manager. Leaving the loop early ends the function: its generator
        gets `GeneratorExit` where it waits, and runs its `finally`.

    Raises:
        As `rpc_sync`, where the call does not leave. What the function raises later is raised in the place of the item.
        Blocks where a link must be made first, or where `to` has no room for a call.

    A function that yields has a thread of its own on `to`, and takes no place of the `num_worker_threads` there.

    >>> list(stream("worker1", range, args=(3,)))
    [0, 1, 2]
    """
    agent, info, invocation = _checked(to, func, args, kwargs)
    for name, value in (("window_items", window_items), ("window_bytes", window_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return agent.stream(info, invocation, timeout_s=timeout, window=(window_items, window_bytes))


@contextlib.contextmanager
def wait_all() -> Iterator[None]:
    """Collect the futures that `rpc_async` returns on this thread, and wait for all of them at the end."""
    thread_local_var.future_list = []
    try:
        yield
    finally:
        try:
            torch_futures.wait_all(thread_local_var.future_list)
        finally:
            del thread_local_var.future_list


def waiting() -> AbstractContextManager[None]:
    """Around a wait for something that another call does here, inside a function that was called from elsewhere.

    Of these functions `num_worker_threads` run at a time. One that waits for a call or a future gives up its place
    meanwhile; of other waits, as for a lock or a `threading.Event`, nothing can know. If as many wait so as there are
    places, and what they wait for is done by a call, that call never begins. Does nothing on other threads.
    Raises `fanwise.errors.CallCancelled` where the call that runs the function was cancelled.

    >>> done = threading.Event()
    >>> rpc_async("worker0", done.set)  # doctest: +SKIP
    >>> with waiting():
    ...     done.wait()  # doctest: +SKIP
    """
    cancelling.check()
    return process.waiting()


def get_worker_info(worker_name: "str | int | None" = None) -> WorkerInfo:
    """This worker, or the one of this name. RuntimeError for an unknown name, with the known ones."""
    agent: Agent = process.current()
    return agent.info if worker_name is None else agent.worker(worker_name)


def get_rpc_timeout() -> float:
    """Seconds that a call may take when it says nothing else; 0: without a limit."""
    agent: Agent = process.current()
    return agent.timeout_s


def set_rpc_timeout(rpc_timeout: float) -> None:
    """Set the default for calls that begin from now on; in seconds, 0 for no limit."""
    if not rpc_timeout >= 0:
        raise ValueError(f"the timeout must be at least 0 seconds, got {rpc_timeout!r}")
    process.current().timeout_s = float(rpc_timeout)

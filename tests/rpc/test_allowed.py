"""The allow-list: calls of its functions with plain values, and that nothing a peer sends is unpickled."""

import functools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rpc_workers import Worker, Workers

import fanwise.rpc as rpc
from fanwise.base.errors import NotSendableError, RemoteError, WireError
from fanwise.rpc import agent as agents
from fanwise.rpc import allowed, autograd
from fanwise.rpc.allowed import Allowed, decode_call, decode_reply, encode_call, encode_reply
from fanwise.rpc.functions import async_execution
from fanwise.rpc.messages.messages import PLAIN_CALL, compose


def add(*values: Any, scale: int = 1) -> Any:
    return sum(values) * scale


def echo(value: Any) -> Any:
    return value


def fail(kind: str) -> None:
    raise ZeroDivisionError("on purpose") if kind == "builtin" else OwnError("on purpose")


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


@async_execution
def add_later(x: int) -> Any:
    return rpc.rpc_async(rpc.get_worker_info(), add, args=(x, 1))


async def add_in_coroutine(x: int) -> int:
    return x + 2


class OwnError(Exception):
    pass


class Account:
    def total(self) -> int:
        return 3


# -- without workers ---------------------------------------------------------------------------------------------------


def decoded(call: tuple[Any, Any, Any], functions: Allowed | None) -> Any:
    message = encode_call(call, "f")
    assert message.head[0] == PLAIN_CALL
    return decode_call(memoryview(message.head)[1:], message.buffers, functions)


def test_calls_and_replies_are_decoded_as_they_were() -> None:
    value = [1, -2.5, "a", b"b", None, True, {"k": (1, frozenset((2,)))}]
    assert decoded((add, (value,), {"scale": 2}), Allowed([add])) == (add, (value,), {"scale": 2})
    message = encode_reply({"x": torch.arange(5000), "y": np.ones(3)})
    reply = decode_reply(memoryview(message.head)[1:], message.buffers)
    assert torch.equal(reply["x"], torch.arange(5000)) and np.array_equal(reply["y"], np.ones(3))


def test_a_function_that_is_not_on_the_list_is_an_error_that_shows_the_list() -> None:
    with pytest.raises(WireError, match=rf"{__name__}.echo is not on the .*\n.* has {__name__}.add, torch.add;"):
        decoded((echo, (1,), {}), Allowed([torch.add, add]))
    with pytest.raises(WireError, match="The list has no functions"):
        decoded((os.system, ("true",), {}), Allowed([]))


def test_without_a_list_any_function_is_found() -> None:
    assert decoded((os.getpid, (), {}), None) == (os.getpid, (), {})


@pytest.mark.parametrize("value", [Account, Account().total, lambda: 1, functools.partial(add, 1), "shop.step", 3])
def test_only_functions_of_modules_can_be_on_a_list(value: Any) -> None:
    with pytest.raises(TypeError, match="allow= takes functions that are defined at the top of a module"):
        Allowed([value])


@pytest.mark.parametrize("value", [Account(), {1, 2}, add, 1j, torch.eye(2).to_sparse()])
def test_other_values_are_not_plain(value: Any) -> None:
    with pytest.raises(TypeError):
        encode_reply([value])


@pytest.mark.parametrize("value", [None, 3, ("f",), ("f", (), {}, None), ("f", [], {}), ("f", (), {1: 2})])
def test_a_plain_value_that_is_no_call_is_a_wire_error(value: Any) -> None:
    message = encode_reply(value)
    with pytest.raises(WireError, match="is not a function with its arguments"):
        decode_call(memoryview(message.head)[1:], message.buffers, None)


# -- between workers ---------------------------------------------------------------------------------------------------


def call(to: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return rpc.rpc_sync(to, function, args=args, kwargs=kwargs)


def call_later(to: str, function: Callable[..., Any], *args: Any) -> Any:
    return rpc.rpc_async(to, function, args=args).wait()


def items(to: str, count: int) -> list[int]:
    return list(rpc.stream(to, numbers, args=(count,)))


def create_there(to: str) -> None:
    rpc.remote(to, add, args=(1, 2)).to_here()


def call_in_context(to: str) -> None:
    with autograd.context():
        call(to, echo, torch.ones(2, requires_grad=True))


def call_with_lambda(to: str) -> None:
    call(to, lambda: 1)


def restricted(real_workers: Workers) -> list[Worker]:
    """w0, and w1, on which w0 may call some functions."""
    listed = [add, echo, fail, add_later, add_in_coroutine, torch.add]
    workers = [real_workers.begin(0, 2), real_workers.begin(1, 2, allow=listed)]
    for worker in workers:
        worker.result()
    return workers


def test_functions_on_the_list_are_called_in_every_way(real_workers: Workers) -> None:
    w0, w1 = restricted(real_workers)
    assert w0.do(call, "w1", add, 1, 2, scale=2) == 6
    assert w0.do(call_later, "w1", add, 1, 2) == 3
    with pytest.raises(NotSendableError, match="streams cannot be used with it"):
        w0.do(items, "w1", 200)
    assert w0.do(call, "w1", add_later, 4) == 5 and w0.do(call, "w1", add_in_coroutine, 4) == 6
    assert torch.equal(w0.do(call, "w1", torch.add, torch.ones(100_000), 1), torch.full((100_000,), 2.0))
    assert w1.do(call, "w0", os.getpid) == w0.do(os.getpid), "the other way any function may be called"
    assert w1.do(call, "w1", add, 1, 2) == 3


def test_what_is_not_plain_or_not_on_the_list_is_an_error_of_the_caller(real_workers: Workers) -> None:
    w0, w1 = restricted(real_workers)
    with pytest.raises(WireError, match=rf"shutil.rmtree is not on the allow-list .*\n.* has {__name__}.add, "):
        w0.do(call, "w1", shutil.rmtree, "/nowhere")
    for worker, to in ((w0, "w1"), (w1, "w0")):
        with pytest.raises(
            NotSendableError, match=rf"^argument 1 \(a {__name__}.Account\) of the call of add on {to} .*\n.*frozenset"
        ):
            worker.do(call, to, add, 1, Account())
        with pytest.raises(NotSendableError, match="functions that are defined at the top of a module"):
            worker.do(call_with_lambda, to)
        with pytest.raises(NotSendableError, match=r"allow-list, so rpc.remote, actors and streams cannot be used"):
            worker.do(create_there, to)
        with pytest.raises(NotSendableError, match=r"call echo outside of autograd.context"):
            worker.do(call_in_context, to)
    with pytest.raises(NotSendableError, match=r"what set_of returned \(a builtins.set\) cannot be sent"):
        w1.do(call, "w0", set_of, 3)
    assert w0.do(call, "w1", add, 1, 2) == 3


def set_of(value: int) -> set[int]:
    return {value}


def test_errors_of_builtin_types_keep_their_type(real_workers: Workers) -> None:
    w0, w1 = restricted(real_workers)
    for worker, to in ((w0, "w1"), (w1, "w0")):
        with pytest.raises(ZeroDivisionError, match=r"^on purpose"):
            worker.do(call, to, fail, "builtin")
    with pytest.raises(OwnError, match=r"^on purpose"):
        w0.do(call, "w1", fail, "own")
    with pytest.raises(RemoteError, match=rf"{__name__}.OwnError: on purpose"):
        w1.do(call, "w0", fail, "own")


# -- attacks -----------------------------------------------------------------------------------------------------------


class Canary:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (self._path,)


class CanaryError(Exception):
    """Creates a folder when it is unpickled in another process."""

    def __init__(self, pid: int, path: str) -> None:
        super().__init__("canary")
        self._args = pid, path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return canary_error, self._args


def canary_error(pid: int, path: str) -> CanaryError:
    if os.getpid() != pid:
        os.makedirs(path, exist_ok=True)
    return CanaryError(pid, path)


def send_pickle(to: str, path: str, *, with_table: bool) -> None:
    """Send a call that is a pickle, as to a worker without an allow-list."""
    agent = agents.current()
    tensors = [torch.ones(1)] if with_table else []
    message = compose(b"", tensors, pickle.dumps(Canary(path)), [], "f")
    agent.connections.to(agent.worker(to).id).ask_on_credit(message)  # type: ignore[arg-type]  # `dumps` knows it


def reply_with_pickles(path: str) -> None:
    """Reply to plain calls with pickles from now on."""
    allowed.encode_reply = lambda value: compose(b"", [], pickle.dumps(Canary(path)), [], None)


def raise_canary(path: str) -> None:
    raise CanaryError(os.getpid(), path)


@pytest.mark.parametrize("with_table", [False, True])
def test_a_pickle_that_is_sent_to_a_worker_with_a_list_is_not_read(
    real_workers: Workers, tmp_path: Path, with_table: bool
) -> None:
    canary = tmp_path / "canary"
    w0, _w1 = restricted(real_workers)
    with pytest.raises(WireError, match="a call that is not plain"):
        w0.do(send_pickle, "w1", str(canary), with_table=with_table)
    assert not canary.exists() and w0.do(call, "w1", add, 1, 2) == 3
    with pytest.raises(Exception):  # noqa: B017  # the result of mkdir is no call
        w0.do(send_pickle, "w0", str(canary), with_table=with_table)
    assert canary.exists(), "a worker without a list reads it"


def test_a_pickle_in_a_reply_is_not_read(real_workers: Workers, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    w0, w1 = restricted(real_workers)
    w0.do(reply_with_pickles, str(canary))
    with pytest.raises(WireError, match="received a pickle, which was not read"):
        w1.do(call, "w0", add, 1, 2)
    assert not canary.exists()


def test_a_pickle_in_an_error_is_not_read(real_workers: Workers, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    _w0, w1 = restricted(real_workers)
    with pytest.raises(RemoteError, match="canary"):
        w1.do(call, "w0", raise_canary, str(canary))
    assert not canary.exists()


def test_a_pickle_in_an_error_is_read_by_a_worker_without_a_list(real_workers: Workers, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    w0, _w1 = real_workers.group(2)
    with pytest.raises(CanaryError):
        w0.do(call, "w1", raise_canary, str(canary))
    assert canary.exists()

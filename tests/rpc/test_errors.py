"""Errors of called functions: they are raised by the call in their own type, and end neither process."""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from rpc_workers import Worker, Workers, all_do, call, echo, error_of, errors_of_each_way, leave

import fanwise.rpc as rpc
from fanwise.base.errors import RemoteError
from fanwise.rpc.functions import async_execution

# Any throughout: arguments and results of users' functions.


class TwoArguments(Exception):
    """Takes other arguments than it passes on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def fail() -> None:
    raise TwoArguments(3, "foo")


async def fail_in_a_coroutine() -> None:
    fail()


def fail_as_a_stream() -> Iterator[int]:
    yield 1
    fail()


@async_execution
def fail_later() -> Any:
    return rpc.rpc_async(rpc.get_worker_info(), fail)


FAILING: dict[str, Callable[[str], Any]] = {
    "rpc_sync": lambda to: rpc.rpc_sync(to, fail),
    "rpc_async": lambda to: rpc.rpc_async(to, fail).wait(),
    "remote": lambda to: rpc.remote(to, fail).to_here(),
    "coroutine": lambda to: rpc.rpc_sync(to, fail_in_a_coroutine),
    "stream": lambda to: list(rpc.stream(to, fail_as_a_stream)),
    "async_execution": lambda to: rpc.rpc_sync(to, fail_later),
    "through another worker": lambda to: rpc.rpc_sync(to, call, ("w1", fail)),
    "through this worker": lambda to: rpc.rpc_sync(to, call, ("w0", fail)),
}


def fail_by(way: str, to: str) -> tuple[bool, int, str, bool]:
    try:
        FAILING[way](to)
    except TwoArguments as error:
        return type(error) is TwoArguments, error.code, str(error), "in fail" in str(getattr(error, "__notes__", ""))
    raise AssertionError("it has not failed")


def test_error_has_its_type_and_attributes_and_the_remote_traceback(pair: list[Worker]) -> None:
    for way in FAILING:
        for to in ("w1", "w0"):
            has_notes = way != "remote"  # the value keeps no frames
            assert pair[0].do(fail_by, way, to) == (True, 3, "foo", has_notes), (way, to)


def raise_with(value: object) -> None:
    raise ValueError("no place for", value, 7)


def call_raise_with_reference(to: str) -> None:
    rpc.rpc_sync(to, raise_with, (rpc.RRef(5),))


def test_error_that_holds_a_reference_becomes_a_remote_error_with_its_text(pair: list[Worker]) -> None:
    with pytest.raises(RemoteError, match=r"(?s)ValueError.*no place for.*RRef\(") as raised:
        pair[0].do(call_raise_with_reference, "w1")
    assert "raise_with" in "".join(raised.value.__notes__)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_function_that_exits_or_interrupts_ends_only_its_call(pair: list[Worker], to: str) -> None:
    for function, args in ((sys.exit, (3,)), (sys.exit, ("why",)), (interrupt, ())):
        for error in pair[0].do(errors_of_each_way, to, function, *args):
            assert error != "no error" and ("SystemExit" in error or "KeyboardInterrupt" in error)


class Unreadable:
    """Raises an error when it is unpickled."""

    def __reduce__(self) -> Any:
        return _raise_unreadable, ()


def _raise_unreadable() -> None:
    raise ValueError("this cannot be read")


def error_of_value(rref: Any) -> str:
    return error_of(lambda: rref.to_here(timeout=5.0))


def pass_on_an_unreadable_value(owner: str, third: str) -> list[str]:
    rref = rpc.remote(owner, echo, (Unreadable(),))
    return [rpc.rpc_sync(third, error_of_value, (rref,)), error_of(rref.to_here)]


def test_reference_whose_call_the_owner_cannot_unpickle_fails_on_all_its_holders(real_workers: Workers) -> None:
    workers = real_workers.group(3)
    for error in workers[0].do(pass_on_an_unreadable_value, "w1", "w2"):
        assert "this cannot be read" in error
    all_do(workers, leave)


# -- memory --------------------------------------------------------------------------------------------------------


def fail_with(x: torch.Tensor) -> None:
    raise LookupError(float(x.sum()))


def fail_with_two(x: torch.Tensor) -> None:
    raise TwoArguments(int(x.sum()), "foo")


def arguments_kept_by_failed_calls(to: str) -> list[str]:
    """Return the ways to call whose arguments only the garbage collector would free."""
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "rpc_sync": lambda x: rpc.rpc_sync(to, fail_with, (x,)),
        "wait": lambda x: rpc.rpc_async(to, fail_with, (x,)).wait(),
        "wait_all": lambda x: torch.futures.wait_all([rpc.rpc_async(to, fail_with, (x,)) for _ in range(2)]),
        "to_here": lambda x: rpc.remote(to, fail_with, (x,)).to_here(),
        "another constructor": lambda x: rpc.rpc_async(to, fail_with_two, (x,)).wait(),
        "rpc_sync to itself": lambda x: rpc.rpc_sync(rpc.get_worker_info(), fail_with, (x,)),
    }
    retained = []
    for way, make_call in ways.items():
        for size in (10, 1 << 20):
            gc.collect()
            gc.disable()
            x = torch.ones(size)
            tensor = weakref.ref(x)
            try:
                make_call(x)
            except (LookupError, TwoArguments):
                del x
            if tensor() is not None:
                retained.append(f"{way}, {size}")
            gc.enable()
    return retained


def test_failed_call_keeps_no_arguments_alive(pair: list[Worker]) -> None:
    assert pair[0].do(arguments_kept_by_failed_calls, "w1") == []


# -- types that end the process that pickles, unpickles or prints them ---------------------------------------------


class UnreadableError(Exception):
    """Ends the process that unpickles it, also its sender."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class UnwritableError(Exception):
    """Ends the process that pickles it."""

    def __reduce__(self) -> Any:
        sys.exit(4)


class UnprintableError(BaseException):
    def __str__(self) -> str:
        raise ValueError("no text")


class UnreadableElsewhereError(Exception):
    def __reduce__(self) -> Any:
        return _create_only_in, (os.getpid(), UnreadableElsewhereError, SystemExit)


class InterruptingElsewhereError(Exception):
    def __reduce__(self) -> Any:
        return _create_only_in, (os.getpid(), InterruptingElsewhereError, KeyboardInterrupt)


class UnreadableElsewhere:
    def __reduce__(self) -> Any:
        return _create_only_in, (os.getpid(), UnreadableElsewhere, SystemExit)


def _create_only_in(pid: int, kind: Callable[[], Any], otherwise: type[BaseException]) -> Any:
    if os.getpid() != pid:
        raise otherwise
    return kind()


def return_or_raise(kind: Callable[[], Any]) -> Any:
    value = kind()
    if isinstance(value, BaseException):
        raise value
    return value


def name_of_error(function: Callable[[], object]) -> str:
    try:
        function()
    except BaseException as error:
        return type(error).__name__
    return "none"


def errors_by_reader(to: str, kind: Callable[[], Any]) -> tuple[str, str]:
    """Return the error of a call whose reply its caller reads, and of one whose reply a thread of fanwise reads."""

    def by_callback() -> object:
        return rpc.rpc_async(to, return_or_raise, (kind,)).then(lambda done: done.wait()).wait()

    return name_of_error(lambda: rpc.rpc_sync(to, return_or_raise, (kind,))), name_of_error(by_callback)


@pytest.mark.parametrize(
    ("kind", "errors"),
    [
        (UnreadableError, ("UnreadableError", "RuntimeError")),
        (UnwritableError, ("UnwritableError", "RuntimeError")),
        (UnprintableError, ("RemoteError", "RuntimeError")),
        (UnreadableElsewhereError, ("RemoteError", "RuntimeError")),
        (InterruptingElsewhereError, ("KeyboardInterrupt", "RuntimeError")),
        (UnreadableElsewhere, ("SystemExit", "RuntimeError")),
    ],
)
def test_call_is_answered_whatever_its_types_do(pair: list[Worker], kind: Any, errors: tuple[str, str]) -> None:
    assert pair[0].do(errors_by_reader, "w1", kind) == errors

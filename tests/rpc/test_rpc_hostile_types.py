"""Types that end the program when they are pickled, read or printed: every call is answered, no thread of ours ends."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rpc_workers import Workers, all_do, leave

import fanwise.rpc as rpc

# Any throughout: what users' functions take and return.


class UnreadableError(Exception):
    """Ends whoever reads its pickle, its sender too."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class UnwritableError(Exception):
    """Ends whoever pickles it."""

    def __reduce__(self) -> Any:
        sys.exit(4)


class UnprintableError(BaseException):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class UnreadableElsewhereError(Exception):
    """Ends whoever reads its pickle in another process."""

    def __reduce__(self) -> Any:
        return _made_only_in, (os.getpid(), UnreadableElsewhereError, SystemExit)


class InterruptingElsewhereError(Exception):
    """The same, as if Ctrl-C was pressed there."""

    def __reduce__(self) -> Any:
        return _made_only_in, (os.getpid(), InterruptingElsewhereError, KeyboardInterrupt)


class UnreadableValue:
    """Ends whoever reads its pickle in another process."""

    def __reduce__(self) -> Any:
        return _made_only_in, (os.getpid(), UnreadableValue, SystemExit)


def _made_only_in(pid: int, kind: Callable[[], Any], otherwise: type[BaseException]) -> Any:
    if os.getpid() != pid:
        raise otherwise
    return kind()


def give(kind: Callable[[], Any]) -> Any:
    made = kind()
    if isinstance(made, BaseException):
        raise made
    return made


def name_of_error(way: Callable[[], object]) -> str:
    try:
        way()
    except BaseException as error:
        return type(error).__name__
    return "none"


def errors_of_each_way(to: str, kind: Callable[[], Any]) -> tuple[str, str]:
    """What a call raises whose caller reads its answer, and one whose answer a thread of ours reads."""

    def by_callback() -> object:
        return rpc.rpc_async(to, give, (kind,)).then(lambda done: done.wait()).wait()

    return name_of_error(lambda: rpc.rpc_sync(to, give, (kind,))), name_of_error(by_callback)


def double(x: int) -> int:
    return 2 * x


def double_in_each_way(to: str) -> tuple[int, int]:
    return rpc.rpc_sync(to, double, (2,)), rpc.rpc_async(to, double, (2,)).then(lambda done: done.wait()).wait()


@pytest.mark.parametrize(
    ("kind", "errors"),
    [
        (UnreadableError, ("UnreadableError", "RuntimeError")),
        (UnwritableError, ("UnwritableError", "RuntimeError")),
        (UnprintableError, ("RemoteError", "RuntimeError")),
        (UnreadableElsewhereError, ("RemoteError", "RuntimeError")),
        (InterruptingElsewhereError, ("KeyboardInterrupt", "RuntimeError")),
        (UnreadableValue, ("SystemExit", "RuntimeError")),
    ],
)
def test_a_call_is_answered_whatever_its_types_do_and_all_goes_on(
    real_workers: Workers, kind: Any, errors: tuple[str, str]
) -> None:
    two = real_workers.group(2)
    assert two[0].do(errors_of_each_way, "w1", kind) == errors
    for worker, to in ((two[0], "w1"), (two[1], "w0")):
        assert worker.do(double_in_each_way, to) == (4, 4)
    all_do(two, leave)

"""What a signal's handler raises waits for the end of the work, wherever in it the signal comes."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from fanwise.base import uninterrupted
from fanwise.base.uninterrupted import Uninterrupted


class Alarm(Exception):
    """What a handler of SIGALRM raises here."""


def ring(number: int, frame: FrameType | None) -> None:
    raise Alarm


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGALRM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, ring)
    yield
    for number, handler in before:
        signal.signal(number, handler)


def are_back() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler and signal.getsignal(signal.SIGALRM) is ring


def worked(*steps: int | Callable[[], object]) -> list[int]:
    """The numbers among the steps that were come to, in one piece of work; what is called is a signal, or fails."""
    done: list[int] = []
    try:
        with Uninterrupted():
            for step in steps:
                if isinstance(step, int):
                    done.append(step)
                else:
                    step()
    except BaseException as error:
        error.add_note(str(done))
        raise
    return done


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def alarm() -> None:
    signal.raise_signal(signal.SIGALRM)


def fails() -> None:
    raise ValueError("of the work")


@pytest.mark.parametrize(("comes", "error"), [(ctrl_c, KeyboardInterrupt), (alarm, Alarm)])
def test_it_comes_when_the_work_is_done(comes: Callable[[], None], error: type[BaseException]) -> None:
    with pytest.raises(error) as raised:
        worked(1, comes, 2, lambda: worked(0), 3)
    assert raised.value.__notes__ == ["[1, 2, 3]"]
    assert are_back()


def test_of_two_kinds_each_comes() -> None:
    with pytest.raises((Alarm, KeyboardInterrupt)) as raised:
        worked(alarm, ctrl_c)
    assert {type(raised.value), type(raised.value.__context__)} == {Alarm, KeyboardInterrupt}
    assert are_back()


def test_who_presses_twice_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        worked(ctrl_c, 1, ctrl_c, 2)
    assert raised.value.__notes__ == ["[1]"]
    assert are_back()


def test_an_error_of_the_work_stays_with_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        worked(ctrl_c, fails)
    assert str(raised.value.__context__) == "of the work"


def test_what_a_signal_does_by_itself_and_other_threads_are_left_alone() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    with Uninterrupted():
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGALRM)
    found: list[object] = []

    def elsewhere() -> None:
        with Uninterrupted():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@contextmanager
def signal_at_line(at: int, number: int) -> Iterator[Callable[[], bool]]:
    """A signal before the `at`-th line that is run of the file that is tested. Tells whether it has come."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if frame.f_code.co_filename != uninterrupted.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                signal.raise_signal(number)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        yield lambda: lines >= at
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)])
def test_wherever_it_comes_handlers_are_put_back_and_it_is_raised(number: int, error: type[BaseException]) -> None:
    at, has_come = 0, True
    while has_come:
        at += 1
        raised = False
        with signal_at_line(at, number) as came:
            try:
                with Uninterrupted():
                    pass
            except error:
                raised = True
        has_come = came()
        assert raised == has_come, at
        assert are_back(), at
    assert at > 30

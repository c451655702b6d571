"""Delay signal handlers until a block is done, so that an exception such as KeyboardInterrupt cannot split it.

    with Uninterrupted():           first signal:   remembered
        ...                         second signal:  its handler is called at once
                                    end of block:   the handlers of remembered signals are called

Use it for short blocks. It has no effect in other threads, on handlers in C, or on default actions of signals.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, final

# Signals whose handlers usually raise: Ctrl-C, kill, time limits.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_Handler = Callable[[int, FrameType | None], Any]


@final
class Uninterrupted:
    """Context manager, see the module. Use each object once. Blocks can be nested."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._remembered: dict[int, _Handler] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._remember)
        except BaseException:  # a handler was called between two calls of signal()
            self._restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()
        self._call_remembered()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        handler = self._before.get(number)
        if handler is None:
            return  # being restored
        if number in self._remembered:
            del self._remembered[number]
            handler(number, frame)
        else:
            self._remembered[number] = handler

    def _restore(self) -> None:
        before = self._before
        try:
            for number in list(before):
                signal.signal(number, before[number])
                del before[number]
        finally:
            if before:  # a restored handler was called and has raised
                self._restore()

    def _call_remembered(self) -> None:
        try:
            while self._remembered:
                number, handler = self._remembered.popitem()
                handler(number, None)
        finally:
            if self._remembered:
                self._call_remembered()

"""Work that no signal breaks off in the middle: what a handler raises, as Ctrl-C does, comes when the work is done.

    with Uninterrupted():           a signal comes:  it is noted
        ...                         it comes again:  its handler is called at once
                                    at the end:      the handlers of those that were noted are called

Python calls handlers between any two steps of the main thread, and what they raise leaves a state half changed. To wait
a moment is enough where the work is short; whoever presses Ctrl-C twice does not want to wait. In other threads there
is nothing to do. Handlers of C code, and what a signal does by itself, are as always.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, final

# Those whose handlers are known to raise: Ctrl-C, kill, time limits.
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

_Handler = Callable[[int, FrameType | None], Any]  # Any: it is not looked at


@final
class Uninterrupted:
    """See the module. Once; may be nested."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._noted: dict[int, _Handler] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # a handler was called between two of them
            self._put_back()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._put_back()
        self._call_noted()

    def _note(self, number: int, frame: FrameType | None) -> None:
        handler = self._before.get(number)
        if handler is None:
            return  # it was put back at this moment
        if number in self._noted:
            del self._noted[number]
            handler(number, frame)
        else:
            self._noted[number] = handler

    def _put_back(self) -> None:
        before = self._before
        try:
            for number in list(before):
                signal.signal(number, before[number])
                del before[number]
        finally:
            if before:  # one that was put back was called, and has raised
                self._put_back()

    def _call_noted(self) -> None:
        try:
            while self._noted:
                number, handler = self._noted.popitem()
                handler(number, None)
        finally:
            if self._noted:
                self._call_noted()

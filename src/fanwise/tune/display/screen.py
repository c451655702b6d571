"""Output of a running search: a live table in a terminal or notebook, plain lines elsewhere.

The tuner's main thread calls `show` a few times a second with the news since the last call and a snapshot. Nothing here
runs on the hub's thread, so drawing does not delay decisions. A terminal or notebook redraws one table in place. A log
gets one line per event, unless `logging` already writes these lines there, and a table every `print_update_interval`
seconds.

An output error (a closed terminal or pipe) does not end the search: the output stops, and a warning is logged.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from ..record.snapshot import SearchSnapshot
from .table import final_block, live_table, status_block

if TYPE_CHECKING:
    from rich.live import Live

_log = logging.getLogger(__name__)
_events_log = logging.getLogger("fanwise.tune.events")

# Seconds between two redraws of the table.
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 2.0


class Screen(Protocol):
    """Displays a search.

    Attributes:
        pause_s: seconds until the next call of `show`.
        is_blank: True if it shows nothing, so that callers need not take snapshots.
    """

    @property
    def pause_s(self) -> float: ...
    @property
    def is_blank(self) -> bool: ...

    def begin(self, lines: Iterable[str]) -> None: ...
    def show(self, news: list[str], snapshot: SearchSnapshot) -> None: ...
    def say(self, line: str) -> None: ...
    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None: ...


def screen_for(print_update_interval: float, *, quiet: bool) -> Screen:
    """Return the screen for standard output, or for the notebook if this process is its kernel."""
    if quiet or sys.stdout is None:
        return NoScreen()
    if _is_notebook():
        from .with_ipython import NotebookScreen

        return FragileScreen(NotebookScreen())
    return FragileScreen(LiveScreen() if _is_terminal() else LogScreen(print_update_interval))


def _is_notebook() -> bool:
    """Return True if this process is the kernel of a notebook. Imports nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _is_terminal() -> bool:
    """Return True if standard output is a terminal that can redraw lines."""
    return sys.stdout.isatty() and (os.environ.get("TERM") or "dumb") not in ("dumb", "unknown")


class NoScreen:
    """Shows nothing."""

    pause_s = 0.25
    is_blank = True

    def begin(self, lines: Iterable[str]) -> None:
        """Do nothing."""

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        """Do nothing."""


class LogScreen:
    """Prints one line per event, and a table at intervals."""

    pause_s = 0.25
    is_blank = False

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def begin(self, lines: Iterable[str]) -> None:
        _print(lines)

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        self._print_news(news)
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            _print([status_block(snapshot)])

    def say(self, line: str) -> None:
        _print([line])

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        self._print_news(news)
        _print([final_block(snapshot)])
        _print(lines)

    def _print_news(self, news: list[str]) -> None:
        if not _logging_prints_them():
            _print(news)


class LiveScreen:
    """Redraws a table in place, and prints the resource summary at the end.

    The pause grows with the drawing time, so that drawing takes at most 1/200 of a core.
    """

    is_blank = False

    def __init__(self) -> None:
        self.pause_s = _LEAST_PAUSE_S
        self._live: Live | None = None

    def begin(self, lines: Iterable[str]) -> None:
        from rich.live import Live

        _print(lines)
        self._live = Live(auto_refresh=False, transient=True)
        self._live.start()

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        assert self._live is not None, "begin comes first"
        began_s = time.thread_time()
        size = self._live.console.size
        self._live.update(live_table(snapshot, width=size.width, height=size.height), refresh=True)
        self.pause_s = min(max(_LEAST_PAUSE_S, 200 * (time.thread_time() - began_s)), _LONGEST_PAUSE_S)

    def say(self, line: str) -> None:
        from rich.text import Text

        assert self._live is not None, "begin comes first"
        self._live.console.print(Text(line))

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        _print([final_block(snapshot)])
        _print(lines)


class FragileScreen:
    """Wraps a screen and turns it off when its stream is closed or broken. Other errors propagate."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    @property
    def pause_s(self) -> float:
        return self._screen.pause_s

    @property
    def is_blank(self) -> bool:
        return self._screen.is_blank

    def begin(self, lines: Iterable[str]) -> None:
        all_lines = list(lines)
        self._try(lambda: self._screen.begin(all_lines))

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        self._try(lambda: self._screen.show(news, snapshot))

    def say(self, line: str) -> None:
        self._try(lambda: self._screen.say(line))

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        all_lines = list(lines)
        self._try(lambda: self._screen.end(news, snapshot, all_lines))

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, ValueError) as error:
            # A stream raises ValueError if it is closed, and UnicodeEncodeError if it cannot encode the text.
            if type(error) is ValueError and not getattr(sys.stdout, "closed", False):
                raise
            _log.warning("the search goes on, but can no longer be shown: %s", error)
            self._screen = NoScreen()


def _logging_prints_them() -> bool:
    """Return True if `logging` already writes the trial events to standard output or error."""
    logger: logging.Logger | None = _events_log
    if not _events_log.isEnabledFor(logging.INFO):
        return False
    while logger is not None:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.level <= logging.INFO:
                if handler.stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
                    return True
        logger = logger.parent if logger.propagate else None
    return False


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)

"""What a running search shows: a live table in a terminal, plain lines elsewhere. The tuner's only way to print.

The tuner's main thread calls `show` a few times a second with the news since the last call and a snapshot; nothing
here runs on the hub's thread, so drawing costs no decision its time. In a terminal the table is redrawn in place, in a
notebook one display is; in a log every event is a line, unless `logging` writes the same lines there, and every
`print_update_interval` seconds the table of the book follows.

A screen that can no longer be written to (its terminal has gone, its pipe is closed) ends no search: from then on
nothing is shown, and one line goes to the log.
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

# Between two tables that are redrawn in place.
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 2.0


class Screen(Protocol):
    """What the tuner asks of the thing that shows its search.

    `pause_s`: seconds until it wants to show again. `is_blank`: it shows nothing, so nothing need be looked at for it.
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
    """The screen that fits standard output, or the notebook that this process is the kernel of."""
    if quiet or sys.stdout is None:
        return NoScreen()
    if _is_notebook():
        from .with_ipython import NotebookScreen

        return FragileScreen(NotebookScreen())
    return FragileScreen(LiveScreen() if _is_terminal() else LogScreen(print_update_interval))


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows displays. Loads nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _is_terminal() -> bool:
    """Whether lines can be redrawn in place."""
    return sys.stdout.isatty() and (os.environ.get("TERM") or "dumb") not in ("dumb", "unknown")


class NoScreen:
    """Shows nothing."""

    pause_s = 0.25
    is_blank = True

    def begin(self, lines: Iterable[str]) -> None:
        """Nothing is shown."""

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        """Nothing is shown."""

    def say(self, line: str) -> None:
        """Nothing is shown."""

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        """Nothing is shown."""


class LogScreen:
    """Lines for a log file, and the table at intervals."""

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
    """A table that is redrawn in place; at the end the resource summary stays.

    Drawing takes a two-hundredth of a core at most: it is done the less often, the longer it takes.
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
    """Show on another screen until its stream is closed or broken. Errors in what is to be shown are raised."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    @property
    def pause_s(self) -> float:
        return self._screen.pause_s

    @property
    def is_blank(self) -> bool:
        return self._screen.is_blank

    def begin(self, lines: Iterable[str]) -> None:
        made = list(lines)
        self._try(lambda: self._screen.begin(made))

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        self._try(lambda: self._screen.show(news, snapshot))

    def say(self, line: str) -> None:
        self._try(lambda: self._screen.say(line))

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        made = list(lines)
        self._try(lambda: self._screen.end(news, snapshot, made))

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, ValueError) as error:
            # A ValueError is the stream's if it cannot encode the text, or is closed.
            if type(error) is ValueError and not getattr(sys.stdout, "closed", False):
                raise
            _log.warning("the search goes on, but can no longer be shown: %s", error)
            self._screen = NoScreen()


def _logging_prints_them() -> bool:
    """Whether a program has `logging` write what happens to trials to standard output or error: then we need not."""
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

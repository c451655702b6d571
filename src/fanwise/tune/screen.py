"""What a running search shows: a live table in a terminal, plain lines elsewhere. The tuner's only way to print.

The tuner's main thread calls `show` a few times a second with the news since the last call and a snapshot; nothing
here runs on the hub's thread, so drawing costs no decision its time. In a terminal the table is redrawn in place; in
a log every event is a line, and every `print_update_interval` seconds the table of the book follows. When events
come faster than anybody can read, most of them are only counted.
"""

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from .table import SearchSnapshot, final_block, live_table, status_block

if TYPE_CHECKING:
    from rich.live import Live

_LINES_A_SHOW = 20


class Screen(Protocol):
    """What the tuner asks of the thing that shows its search."""

    pause_s: float

    def begin(self, lines: Iterable[str]) -> None: ...
    def show(self, news: list[str], snapshot: SearchSnapshot) -> None: ...
    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None: ...


def screen_for(print_update_interval: float, *, quiet: bool) -> Screen:
    """The screen that fits standard output."""
    if quiet:
        return NoScreen()
    return LiveScreen() if sys.stdout.isatty() else LogScreen(print_update_interval)


class NoScreen:
    """Shows nothing."""

    pause_s = 1.0

    def begin(self, lines: Iterable[str]) -> None:
        """Nothing is shown."""

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        """Nothing is shown."""

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        """Nothing is shown."""


class LogScreen:
    """Lines for a log file, and the table at intervals."""

    pause_s = 0.25

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def begin(self, lines: Iterable[str]) -> None:
        _print(lines)

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        _print(_fewer(news))
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            _print([status_block(snapshot)])

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        _print(_fewer(news))
        _print([final_block(snapshot)])
        _print(lines)


class LiveScreen:
    """A table that is redrawn in place; at the end the resource summary stays."""

    pause_s = 0.25

    def __init__(self) -> None:
        self._live: Live | None = None

    def begin(self, lines: Iterable[str]) -> None:
        from rich.live import Live

        _print(lines)
        self._live = Live(auto_refresh=False, transient=True)
        self._live.start()

    def show(self, news: list[str], snapshot: SearchSnapshot) -> None:
        assert self._live is not None, "begin comes first"
        size = self._live.console.size
        self._live.update(live_table(snapshot, width=size.width, height=size.height), refresh=True)

    def end(self, news: list[str], snapshot: SearchSnapshot, lines: Iterable[str]) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        _print([final_block(snapshot)])
        _print(lines)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _fewer(news: list[str]) -> list[str]:
    if len(news) <= _LINES_A_SHOW:
        return news
    return [*news[:_LINES_A_SHOW], f"(and {len(news) - _LINES_A_SHOW} more events since the last line)"]

"""Output of a running search: a live table in a terminal or notebook, plain lines elsewhere.

The thread that waits for the search (`watch`) calls `show` a few times a second, with the lines of text that are new
since the last call. This is not the hub's thread, which runs the search, so drawing does not delay decisions.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, final

from .table import TakeSnapshot, search_view, summary_view, text_of

_log = logging.getLogger(__name__)
_events_log = logging.getLogger("fanwise.tune.events")

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.5, 2.0  # between two redraws of the live table
_LIVE_OVERHEAD = 9  # lines of a live table that are not trials

_cell_of: dict[Path, int] = {}  # folder of an experiment -> number of the last notebook cell that displayed it


class Output(Protocol):
    """Shows a search in a terminal, notebook or log.

    `news`: lines of text since the last call. `take_snapshot` is slow, so it is called only for a table.
    """

    pause_s: float  # seconds until the next call of `show`

    def show(self, news: list[str], take_snapshot: TakeSnapshot) -> None: ...
    def end(self, news: list[str], take_snapshot: TakeSnapshot) -> None: ...


@final
class Screen:
    """Shows a search on an `Output`, or shows nothing if `output` is None.

    If the output stream is closed or broken, a warning is logged and nothing more is shown. Other errors propagate.
    """

    def __init__(self, output: Output | None) -> None:
        self._output = output

    @property
    def pause_s(self) -> float:
        return 0.25 if self._output is None else self._output.pause_s

    @property
    def is_blank(self) -> bool:
        """True if nothing is shown, so that callers need not collect news."""
        return self._output is None

    def print_lines(self, *lines: str) -> None:
        """Print lines, above the table if it is live."""
        self._write(lambda _: _print(lines))

    def show(self, news: list[str], take_snapshot: TakeSnapshot) -> None:
        self._write(lambda output: output.show(news, take_snapshot))

    def end(self, news: list[str], take_snapshot: TakeSnapshot, lines: Iterable[str]) -> None:
        """Show the search for the last time, then print `lines`."""
        self._write(lambda output: output.end(news, take_snapshot))
        self.print_lines(*lines)

    def _write(self, write: Callable[[Output], None]) -> None:
        if self._output is None:
            return
        try:
            write(self._output)
        except (OSError, ValueError) as error:
            # A closed stream raises ValueError itself, and a stream that cannot encode the text raises its subclass
            # UnicodeEncodeError. Any other ValueError is a bug.
            if type(error) is ValueError and not getattr(sys.stdout, "closed", False):
                raise
            _log.warning("the search continues, but can no longer be shown: %s", error)
            self._output = None


def screen_for(print_update_interval: float, *, quiet: bool) -> Screen:
    """Return the screen for standard output, or for the notebook if this process is its kernel.

    `print_update_interval`: seconds between two tables if standard output is not a terminal. `quiet`: show nothing.
    """
    if quiet or sys.stdout is None:
        return Screen(None)
    if _notebook_cell() is not None:
        from .with_ipython import NotebookOutput

        return Screen(NotebookOutput())
    can_redraw = sys.stdout.isatty() and (os.environ.get("TERM") or "dumb") not in ("dumb", "unknown")
    return Screen(LiveOutput() if can_redraw else LogOutput(print_update_interval))


def mark_shown_in_notebook(path: Path) -> None:
    """Record that the running notebook cell displays this experiment, so that the cell does not display it again."""
    if (cell := _notebook_cell()) is not None:
        _cell_of[path] = cell


def is_shown(path: Path) -> bool:
    """Return True if the running notebook cell has displayed this experiment."""
    cell = _notebook_cell()
    return cell is not None and _cell_of.get(path) == cell


def _notebook_cell() -> int | None:
    """Return the number of the running cell, or None if this process is not the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()  # imports nothing
    return getattr(shell, "execution_count", 0) if hasattr(shell, "kernel") else None


@final
class LogOutput:
    """Prints one line per event, and a table every `interval_s` seconds."""

    pause_s = 0.25

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def show(self, news: list[str], take_snapshot: TakeSnapshot) -> None:
        _print_news(news)
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            _print([text_of(search_view(take_snapshot()))])

    def end(self, news: list[str], take_snapshot: TakeSnapshot) -> None:
        _print_news(news)
        _print([text_of(summary_view(take_snapshot()))])


@final
class LiveOutput:
    """Redraws a table in place every 0.5 s, or up to every 2 s if drawing is slow. Prints a summary at the end."""

    def __init__(self) -> None:
        from rich.live import Live

        self.pause_s = _MIN_PAUSE_S
        self._live = Live(auto_refresh=False, transient=True)

    def show(self, news: list[str], take_snapshot: TakeSnapshot) -> None:
        self._live.start()  # no effect after the first call
        began_s = time.thread_time()
        width, height = self._live.console.size
        max_rows = max(1, height - _LIVE_OVERHEAD)
        snapshot = take_snapshot()
        self._live.update(search_view(snapshot, title=snapshot.name, max_rows=max_rows, width=width), refresh=True)
        self.pause_s = min(max(_MIN_PAUSE_S, 200 * (time.thread_time() - began_s)), _MAX_PAUSE_S)

    def end(self, news: list[str], take_snapshot: TakeSnapshot) -> None:
        self._live.stop()
        self._live.console.print(summary_view(take_snapshot(), width=self._live.console.width))


def _print_news(news: Sequence[str]) -> None:
    """Print lines about trials, unless `logging` already writes them to standard output or error."""
    logger: logging.Logger | None = _events_log if _events_log.isEnabledFor(logging.INFO) else None
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    while logger is not None:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.level <= logging.INFO:
                if handler.stream in streams:
                    return
        logger = logger.parent if logger.propagate else None
    _print(news)


def _print(lines: Sequence[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)  # one call, because notebooks show each write separately

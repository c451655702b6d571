"""The progress of a run in one line: redrawn in place in a terminal, a line now and then in a log.

    steps --stepped--> ProgressLine --a few times a second: RunSnapshot--> Screen --> standard error
          0.5 us each                 reads the loss, asks pace.py            LiveScreen, LogScreen, FarScreen, NoScreen

Between two looks a step costs an addition and a look at the clock; no device is waited for. What the program itself
prints, to standard output or error, is not torn: while the line is shown, `write` of these two streams first wipes
it and then draws it again below, once the text has come to the end of its line. So prompts and bars of others work
too. Only what writes past these objects, as a C library does, can hit the line.

The line goes to standard error, because standard output is the program's. In a fork all of this is inert.
"""

import logging
import math
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, TextIO

from ...pool.current import in_job
from .pace import Pace, RunSnapshot, fitting, line_parts, next_look_s, plain

if TYPE_CHECKING:
    from rich.console import Console

_log = logging.getLogger(__name__)

PRINT_EVERY_S = 10.0
_DRAW_EVERY_S = 0.2
_FIRST_S = 1.0  # a run that is over by then shows nothing
_LOSSES = 16  # the mean of the last ones is shown
_WIPE = "\r\x1b[K"
_GONE = (OSError, ValueError)  # how a terminal that has gone shows; a ValueError is that of a closed file


class Screen(Protocol):
    """Where snapshots are shown. The first one is wanted after `first_s` seconds, the next ones every `every_s`."""

    first_s: float
    every_s: float

    def show(self, snapshot: RunSnapshot) -> None: ...
    def close(self) -> None: ...


class ProgressLine:
    """What the parts of a run tell as it goes. All of it returns at once, except when the line is drawn.

    Args:
        name: of the run, "" for none. devices: their names, asked for at each drawing.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        name: str = "",
        devices: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = screen
        self._name = name
        self._devices = devices
        self._clock = clock
        began_s = clock()
        self._pace = Pace(began_s)
        self._leader: int | None = None
        self._samples = 0  # since the pace was told
        self._stepped_s = began_s
        self._losses: deque[SupportsFloat] = deque(maxlen=_LOSSES)
        self._first_s = began_s + screen.first_s
        self._due_s = -math.inf  # the first step is looked at in any case, but not shown
        self._measured: float | None = None  # of an evaluation that is under way
        self._has_stepped = self._has_shown = False

    def epoch(self, number: int, count: int) -> None:
        """Epoch `number`, from 0, of `count` begins."""
        self._tell()
        self._leader = None
        self._pace.epoch(number, count, self._clock())

    def begin_pass(self, length: int | None, done: int) -> None:
        """A pass over `length` samples begins, of which `done` are done with already."""
        self._tell()
        self._leader = None
        self._pace.begin_pass(length, done, self._clock())

    def stepped(self, number: int, samples: int, loss: SupportsFloat) -> None:
        """The step object `number` of the run used a batch. `loss` is not looked at unless the line is drawn.

        With several step objects on the same batches, those of a GAN, only the first one called in a pass counts.
        """
        if number != self._leader:
            if self._leader is not None:
                return
            self._leader = number
        self._samples += samples
        self._losses.append(loss)
        self._stepped_s = now_s = self._clock()
        if now_s >= self._due_s:
            self._look(is_step=True)

    def measured(self, part: float) -> None:
        """So much of an evaluation is done; with 1 it is over, well or not."""
        self._measured = part if part < 1 else None
        if self._clock() >= self._due_s:
            self._look()

    def close(self) -> None:
        """The run is over, well or not. The last line stays, if there was one."""
        self._tell()
        if self._has_shown:
            try:
                loss = self._loss()
            except RuntimeError:  # of a device that has failed, which the run's own error tells
                loss = None
            self._show(loss, is_over=True)
        self._due_s = math.inf
        self._screen.close()

    def _look(self, *, is_step: bool = False) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            self._tell()
            self._due_s = self._first_s
            return
        loss = self._loss()  # waits for the device, so before the clock is read
        if is_step:
            self._stepped_s = self._clock()
        self._tell()
        began_s = self._clock()
        self._show(loss, is_over=False)
        now_s = self._clock()
        took_s = now_s - began_s if self._has_shown else 0.0  # the first time rich is loaded
        self._has_shown = True
        self._due_s = next_look_s(now_s, self._screen.every_s, took_s)

    def _show(self, loss: float | None, is_over: bool) -> None:
        shown = self._pace.snapshot(
            self._name,
            self._devices(),
            loss,
            self._clock(),
            measured=None if is_over else self._measured,
            is_over=is_over,
        )
        self._screen.show(shown)

    def _loss(self) -> float | None:
        """The mean of the last ones; of several that are not finite NaN or infinity, as it comes."""
        losses = [float(loss) for loss in self._losses]
        return sum(losses) / len(losses) if losses else None

    def _tell(self) -> None:
        """All that was counted, at the time of the last step: what comes after it is no work of this pass."""
        if self._samples:
            self._pace.worked(self._samples, self._stepped_s)
            self._samples = 0


# ---- screens


_taken = threading.Lock()  # by the screen that is shown: one line, also when runs are nested or side by side
_live: "LiveScreen | None" = None
_told: set[str] = set()  # notices


def name_of(train: Callable[..., object]) -> str:
    """What a training function is called; empty where it has no name."""
    return getattr(getattr(train, "func", train), "__name__", "")


def screen_for(wanted: bool, *, print_every_s: float = PRINT_EVERY_S, notice: str = "") -> Screen:
    """The screen that fits standard error; in a job of a pool, or beside a run that shows its line, none. Close it.

    Args:
        notice: a line that is shown before the first one, once in the life of this program.
        print_every_s: seconds between the lines of a log.
    """
    if not wanted or sys.stderr is None or in_job() or not _taken.acquire(blocking=False):
        return NoScreen()
    return OneScreen(LiveScreen(sys.stderr) if _can_redraw() else LogScreen(sys.stderr, print_every_s), notice)


def _can_redraw() -> bool:
    if not _is_terminal(sys.stderr) or (os.environ.get("TERM") or "dumb") in ("dumb", "unknown"):
        return False
    if not all(hasattr(each, "__dict__") for each in (sys.stderr, sys.stdout) if each):
        return False  # `write` cannot be replaced there
    try:
        # What stands behind a pipe, such as `tee`, may print to the same terminal, and not through this process.
        return sys.stdout is None or not stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # no file
        return True


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


class NoScreen:
    """Shows nothing."""

    first_s = every_s = math.inf

    def show(self, snapshot: RunSnapshot) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is shown."""


class FarScreen:
    """Sends the snapshots to the process that has the screen.

    Args:
        say: sends one. first_s, every_s: of the screen there.
    """

    def __init__(self, say: Callable[[RunSnapshot], None], *, first_s: float, every_s: float) -> None:
        self.first_s = first_s
        self.every_s = every_s
        self._say = say

    def show(self, snapshot: RunSnapshot) -> None:
        self._say(snapshot)

    def close(self) -> None:
        """The other process closes its own."""


class LogScreen:
    """Writes plain lines. A run that is shorter than the interval shows nothing."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self.first_s = self.every_s = every_s
        self._stream = stream

    def show(self, snapshot: RunSnapshot) -> None:
        self._stream.write(f"{plain(line_parts(snapshot))}\n")
        self._stream.flush()

    def tell(self, text: str) -> bool:
        self._stream.write(f"{text}\n")
        return True

    def close(self) -> None:
        """Nothing is left to do."""


class LiveScreen:
    """One line at the bottom of a terminal, in place; at the end it stays."""

    first_s = _FIRST_S
    every_s = _DRAW_EVERY_S

    def __init__(self, stream: TextIO) -> None:
        global _live
        self._stream = stream
        self._lock = threading.RLock()  # a signal's handler may print
        self._line = ""  # as it was drawn last
        self._is_drawn = False
        self._at_start = True  # the cursor is at the start of a line of its own
        self._console: Console | None = None
        streams = {id(each): each for each in (stream, sys.stdout) if _is_terminal(each)}
        self._taps = [Tap(each, self) for each in streams.values()]
        _live = self

    def show(self, snapshot: RunSnapshot) -> None:
        line = self._rendered(snapshot)
        with self._lock:
            self._line = line
            if self._at_start:
                self._draw()

    def tell(self, text: str) -> bool:
        """A line that stays, above the one that is redrawn. False: not now, within one that the program has begun."""
        with self._lock:
            if self._at_start:
                self._put(f"{_WIPE if self._is_drawn else ''}{text}\n")
                self._is_drawn = False
            return self._at_start

    def written(self, write: Callable[[str], int], stream: TextIO, text: str) -> int:
        """The program writes: above the line, if that is shown."""
        with self._lock:
            if self._is_drawn:
                self._is_drawn = False
                with suppress(*_GONE):
                    self._put(_WIPE)
            count = write(text)
            if text:
                self._at_start = text.endswith("\n")
                if self._at_start and self._line:
                    with suppress(*_GONE):
                        stream.flush()
                        self._draw()
            return count

    def close(self) -> None:
        global _live
        with self._lock:
            if self._is_drawn:
                with suppress(*_GONE):
                    self._put("\n")
            self._line, self._is_drawn = "", False
        self.abandon()
        _live = None

    def abandon(self) -> None:
        """The streams are as they were before."""
        for tap in self._taps:
            tap.remove()

    def _draw(self) -> None:
        self._is_drawn = True
        self._put(f"\r{self._line}\x1b[K")

    def _put(self, text: str) -> None:
        """Past the tap of our own stream."""
        self._taps[0].write(text)
        self._stream.flush()

    def _rendered(self, snapshot: RunSnapshot) -> str:
        from rich.console import Console
        from rich.text import Text

        if self._console is None:
            self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        width = max(1, self._console.width - 1)  # a full line would wrap
        parts: list[tuple[str, str]] = []
        for part in fitting(line_parts(snapshot), width):
            parts += [("  ", ""), (self._encodable(part.text), part.style)]
        with self._console.capture() as captured:
            self._console.print(Text.assemble(*parts[1:]), end="", no_wrap=True, overflow="crop", width=width)
        return captured.get()

    def _encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)


class Tap:
    """Takes the place of `write` on one stream object, so that also those notice who hold the object, as loggers do."""

    def __init__(self, stream: Any, screen: LiveScreen) -> None:  # Any: a TextIO, one method of which is replaced
        self._stream = stream
        self.write: Callable[[str], int] = stream.write
        self._before = vars(stream).get("write")
        self._screen: LiveScreen | None = screen
        self._stream.write = self._written

    def _written(self, text: str) -> int:
        screen = self._screen
        return self.write(text) if screen is None else screen.written(self.write, self._stream, text)

    def remove(self) -> None:
        self._screen = None  # whoever replaced `write` once more may go on with ours
        if vars(self._stream).get("write") == self._written:
            if self._before is None:
                del self._stream.write
            else:
                self._stream.write = self._before


class OneScreen:
    """Shows on another screen until it is closed, then gives the place to the next run.

    If it cannot be written to any more, the run goes on without, and one line goes to the log.
    """

    def __init__(self, screen: "LiveScreen | LogScreen", notice: str = "") -> None:
        self.first_s = screen.first_s
        self.every_s = screen.every_s
        self._screen: LiveScreen | LogScreen | None = screen
        self._notice = notice
        self._place = _taken
        self._pid = os.getpid()

    def show(self, snapshot: RunSnapshot) -> None:
        if self._screen is not None and os.getpid() == self._pid:
            try:
                if self._notice and self._notice not in _told and self._screen.tell(f"fanwise.run: {self._notice}"):
                    _told.add(self._notice)
                self._screen.show(snapshot)
            except _GONE as error:
                self.close()
                _log.warning("the run goes on, but its progress can no longer be shown: %s", error)

    def close(self) -> None:
        screen, self._screen = self._screen, None
        if screen is not None and os.getpid() == self._pid:
            screen.close()
            self._place.release()


def _after_fork_in_child() -> None:
    global _live, _taken
    if _live is not None:
        _live.abandon()
        _live = None
    _taken = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)

"""The progress of a run on standard error, and in a status file for the board.

A terminal shows one line that rich redraws, a log gets a line every 10 s. The status file (`links.status_files`) can be
read by other programs of the same user. It is written every second while a board is running.
"""

import datetime
import logging
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, final

from ..base.text import printable_line
from ..links.status_files import EVERY_S, StatusFile
from ..pool.current import in_job

if TYPE_CHECKING:
    from rich.live import Live

_log = logging.getLogger(__name__)

_stderr_lock = threading.Lock()  # held by the run whose line is shown; nested runs show none
_shown_notices: set[str] = set()

_MAX_POINTS = 240  # of earlier rates and losses, in the status file


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run. `epoch` counts from 0; `done` and `of` count samples; `measured` is a part. None: unknown."""

    name: str
    devices: tuple[str, ...]
    epoch: int | None
    epochs: int | None
    done: int
    of: int | None
    rate: float | None
    loss: float | None
    left_s: float | None
    elapsed_s: float
    measured: float | None = None  # finished part of the current evaluation
    is_over: bool = False

    def __str__(self) -> str:
        """Return the line. The most important words are first, because a narrow terminal crops it."""
        words = [] if self.epoch is None else [f"epoch {self.epoch + 1}/{self.epochs}"]
        if self.loss is not None:
            words.append(f"loss {self.loss:.4g}")
        if self.is_over:
            words.append(f"in {datetime.timedelta(seconds=math.ceil(self.elapsed_s))}")
        elif self.left_s is not None:
            words.append(f"{datetime.timedelta(seconds=math.ceil(self.left_s))} left")
        if self.measured is not None:
            words.append(f"evaluating: {100 * self.measured:.0f} %")
        elif not self.is_over:
            words.append(f"{self.done:,}{'' if self.of is None else f'/{self.of:,}'} samples")
        if self.rate is not None:
            words.append(f"{self.rate:,.0f} samples/s" if self.rate >= 100 else f"{self.rate:.3g} samples/s")
        devices = [name if count == 1 else f"{count} x {name}" for name, count in Counter(self.devices).items()]
        return printable_line(", ".join([*words, *filter(None, [self.name, " ".join(devices)])]))


class Screen(Protocol):
    """Shows snapshots: the first one after `first_s` seconds, then one every `every_s`."""

    first_s: float
    every_s: float

    def show(self, snapshot: RunSnapshot) -> None: ...
    def close(self) -> None: ...


class ProgressLine:
    """Counts the samples of a run and gives snapshots to the screen. `devices`: returns the names of the devices."""

    def __init__(
        self,
        screen: Screen,
        *,
        name: str = "",
        devices: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen, self._name, self._devices, self._clock = screen, name, devices, clock
        self._began_s = clock()
        self._due_s = self._began_s + screen.first_s
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._done, self._of = 0, 0  # samples of this epoch
        self._loss: SupportsFloat | None = None
        self._measured: float | None = None
        self._counted_step: int | None = None
        self._last_s: float | None = None  # time of the last step, or of the beginning of the pass
        self._rated, self._rated_s = 0, 0.0  # samples and time of all steps but the first
        self._start: tuple[float, float] | None = None  # time and finished part at the first step of the loop
        self._has_shown = False

    def epoch(self, number: int, count: int) -> None:
        """Epoch `number`, from 0, of `count` begins."""
        if (number - 1, count) != (self._epoch, self._epochs):
            self._start = None
        self._epoch, self._epochs, self._done, self._of, self._counted_step = number, count, 0, 0, None

    def begin_pass(self, length: int | None, done: int) -> None:
        """A pass over `length` samples begins, of which `done` are finished."""
        self._counted_step = None
        if self._last_s is not None:
            self._last_s = self._clock()
        if self._epochs is None:
            self._done, self._of, self._start = 0, 0, None
        self._of += length or 0
        self._done += done

    def record_step(self, number: int, samples: int, loss: SupportsFloat) -> None:
        """Step object `number` has used a batch. The loss is read only when the line is shown.

        If several step objects use the same batches, only the one that is called first in a pass counts.
        """
        if self._counted_step is None:
            self._counted_step = number
        if number != self._counted_step:
            return
        self._done += samples
        self._loss = loss
        now_s = self._clock()
        if self._last_s is not None:
            self._rated += samples
            self._rated_s += now_s - self._last_s
        self._last_s = now_s
        if self._start is None:  # the first step loads and compiles, so the time left does not count it
            self._start = now_s, self._finished_part() or 0.0
        elif now_s >= self._due_s:
            self._show()

    def measured(self, part: float) -> None:
        """This part of an evaluation is finished; 1 at its end."""
        self._measured = part if part < 1 else None
        if self._start is not None and self._clock() >= self._due_s:
            self._show()

    def close(self) -> None:
        """The run is over. The last line stays."""
        self._measured = None
        if self._has_shown:
            self._show(is_over=True)
        self._due_s = math.inf
        self._screen.close()

    def _show(self, *, is_over: bool = False) -> None:
        try:
            loss = None if self._loss is None else float(self._loss)  # blocks until the device has computed it
        except RuntimeError:  # the device has failed, which the run reports
            loss = None
        now_s, part, left_s = self._clock(), self._finished_part(), None
        if part is not None and self._start is not None and part > self._start[1] and not is_over:
            left_s = (now_s - self._start[0]) * (1 - part) / (part - self._start[1])
        self._has_shown = True
        self._due_s = now_s + self._screen.every_s
        snapshot = RunSnapshot(
            name=self._name,
            devices=tuple(self._devices()),
            epoch=self._epoch,
            epochs=self._epochs,
            done=self._done,
            of=self._of or None,
            rate=self._rated / self._rated_s if self._rated_s else None,
            loss=loss,
            left_s=left_s,
            elapsed_s=now_s - self._began_s,
            measured=self._measured,
            is_over=is_over,
        )
        self._screen.show(snapshot)

    def _finished_part(self) -> float | None:
        """Return the finished part of the loop over epochs, or of a pass outside of a loop."""
        if not self._of:
            return None
        part = min(1.0, self._done / self._of)
        return part if self._epoch is None or self._epochs is None else (self._epoch + part) / self._epochs


def function_name(train: Callable[..., object]) -> str:
    return getattr(getattr(train, "func", train), "__name__", "")


def open_screen(is_wanted: bool, *, notice: str = "") -> Screen:
    """Return a screen on standard error, or none in a job of a pool and while another run is shown.

    Args:
        notice: a line that a program shows once, before its first progress line.
    """
    if not is_wanted or sys.stderr is None or in_job() or not _stderr_lock.acquire(blocking=False):
        return NoScreen()
    return StderrScreen(notice)


@final
class NoScreen:
    first_s = every_s = math.inf

    def show(self, snapshot: RunSnapshot) -> None: ...
    def close(self) -> None: ...


@final
class RemoteScreen:
    """Sends the snapshots to the process that shows them."""

    def __init__(self, send: Callable[[RunSnapshot], None], *, first_s: float, every_s: float) -> None:
        self.first_s, self.every_s, self.show = first_s, every_s, send

    def close(self) -> None: ...


@final
class StderrScreen:
    """Shows the line on standard error. If that fails, the run continues without it."""

    def __init__(self, notice: str = "") -> None:
        is_terminal = not sys.stderr.closed and sys.stderr.isatty()
        self._is_live = is_terminal and (os.environ.get("TERM") or "dumb") not in ("dumb", "unknown")
        self.first_s, self.every_s = (1.0, 0.2) if self._is_live else (10.0, 10.0)
        self._notice = notice
        self._live: Live | None = None
        self._is_open = True

    def show(self, snapshot: RunSnapshot) -> None:
        if self._is_open:
            try:
                self._show(str(snapshot))
            except (OSError, ValueError) as error:  # a ValueError: the stream is closed
                self.close()
                _log.warning("the run continues, but its progress can no longer be shown: %s", error)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            _stderr_lock.release()
            if self._live is not None:
                with suppress(OSError, ValueError):
                    self._live.stop()

    def _show(self, line: str) -> None:
        if self._notice and self._notice not in _shown_notices:
            _shown_notices.add(self._notice)
            sys.stderr.write(f"fanwise.run: {self._notice}\n")
        if not self._is_live:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(stderr=True, force_jupyter=False)
            is_terminal = sys.stdout is not None and sys.stdout.isatty()  # then rich shows prints above the line
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=is_terminal)
            self._live.start()
        self._live.update(Text(line, no_wrap=True, overflow="crop"), refresh=True)


@dataclass(frozen=True, slots=True)
class RankStatus:
    """A process of a run. `pid` is 0 if it is unknown."""

    number: int
    pid: int
    devices: tuple[str, ...]
    state: str


@final
class StatusScreen:
    """Writes the status file, and shows snapshots on another screen at the intervals of that screen.

    Args:
        ranks: returns the current processes of the run.
    """

    def __init__(self, screen: Screen, ranks: Callable[[], Sequence[RankStatus]]) -> None:
        self._screen = screen
        self._ranks = ranks
        self._file = StatusFile("run")
        self._due_s = screen.first_s  # since the beginning of the run
        self._has_shown = False
        self._past: deque[list[float | None]] = deque(maxlen=_MAX_POINTS)
        self._program = os.path.basename(sys.argv[0]) if sys.argv else ""
        self.first_s = min(screen.first_s, EVERY_S)
        self.every_s = min(screen.every_s, EVERY_S)

    def show(self, snapshot: RunSnapshot) -> None:
        if self._file.is_wanted():
            self._file.write(self._status(snapshot))
        is_due = self._has_shown if snapshot.is_over else snapshot.elapsed_s >= self._due_s
        if is_due:
            self._has_shown = True
            self._due_s = snapshot.elapsed_s + self._screen.every_s
            self._screen.show(snapshot)

    def close(self) -> None:
        """Delete the status file, and close the screen."""
        self._file.close()
        self._screen.close()

    def _status(self, snapshot: RunSnapshot) -> dict[str, Any]:
        self._past.append([time.time(), snapshot.rate, snapshot.loss])
        ranks = [
            {"rank": rank.number, "pid": rank.pid, "devices": list(rank.devices), "state": rank.state}
            for rank in self._ranks()
        ]
        return {
            "name": snapshot.name,
            "program": self._program,
            "devices": list(snapshot.devices),
            "epoch": snapshot.epoch,
            "epochs": snapshot.epochs,
            "done": snapshot.done,
            "of": snapshot.of,
            "samples_per_s": snapshot.rate,
            "loss": snapshot.loss,
            "left_s": snapshot.left_s,
            "elapsed_s": snapshot.elapsed_s,
            "measured": snapshot.measured,
            "ranks": ranks,
            "past": list(self._past),
        }

"""The progress of a run, on standard error and in a status file for the board.

    ProgressLine  counts samples in a process of the run      -->  RunSnapshot, once a second
    Display       in the process that called `fanwise.run`    -->  standard error, status file

A terminal shows one line, which rich redraws. A log gets a line every 10 s. The status file (`links.status_files`) is
written while a board of the same user is running.
"""

import datetime
import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

from ..base.text import printable_line
from ..links.status_files import EVERY_S, StatusFile
from ..pool.current import in_job

if TYPE_CHECKING:
    from rich.live import Live

_log = logging.getLogger(__name__)

_stderr_lock = threading.Lock()  # held by the run that is shown; other runs of the process meanwhile are not

_LOG_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run. None: unknown."""

    name: str  # of the training function
    devices: tuple[str, ...]
    epoch: int | None
    epochs: int | None
    done: int  # samples of this epoch, or pass, that are finished
    of: int | None  # samples of this epoch, or pass
    rate: float | None  # samples per second
    loss: float | None
    left_s: float | None
    elapsed_s: float
    evaluated_fraction: float | None = None  # finished part of the current evaluation. None: no evaluation
    is_over: bool = False

    def __str__(self) -> str:
        """Return the line. The most important words come first, because a narrow terminal crops it."""
        words = [] if self.epoch is None else [f"epoch {self.epoch + 1}/{self.epochs}"]
        if self.loss is not None:
            words.append(f"loss {self.loss:.4g}")
        if self.is_over:
            words.append(f"in {datetime.timedelta(seconds=math.ceil(self.elapsed_s))}")
        elif self.left_s is not None:
            words.append(f"{datetime.timedelta(seconds=math.ceil(self.left_s))} left")
        if self.evaluated_fraction is not None:
            words.append(f"evaluating: {100 * self.evaluated_fraction:.0f} %")
        elif not self.is_over:
            words.append(f"{self.done:,}{'' if self.of is None else f'/{self.of:,}'} samples")
        if self.rate is not None:
            words.append(f"{self.rate:,.0f} samples/s" if self.rate >= 100 else f"{self.rate:.3g} samples/s")
        devices = [name if count == 1 else f"{count} x {name}" for name, count in Counter(self.devices).items()]
        return printable_line(", ".join([*words, *filter(None, [self.name, " ".join(devices)])]))


class ProgressLine:
    """Counts the samples of a run.

    Args:
        show: called with a snapshot once a second, and at the end if it was called before.
        devices: returns the names of the run's devices.
    """

    def __init__(
        self,
        show: Callable[[RunSnapshot], None] | None = None,
        *,
        name: str = "",
        devices: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._name, self._devices, self._clock = show, name, devices, clock
        self._began_s = clock()
        self._due_s = math.inf if show is None else self._began_s + EVERY_S
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._done, self._of = 0, 0  # samples of this epoch
        self._loss: SupportsFloat | None = None
        self._evaluated_fraction: float | None = None
        self._counted_step: int | None = None
        self._last_s: float | None = None  # time of the last step, or of the beginning of the pass
        self._rated, self._rated_s = 0, 0.0  # samples and time of all steps but the first
        self._start: tuple[float, float] | None = None  # time and finished part at the first step of the loop
        self._has_shown = False

    def epoch(self, number: int, count: int) -> None:
        if (number - 1, count) != (self._epoch, self._epochs):
            self._start = None
        self._epoch, self._epochs, self._done, self._of, self._counted_step = number, count, 0, 0, None

    def begin_pass(self, length: int | None, done: int) -> None:
        """A pass over `length` samples begins. `done` of them are finished. `length` is None for a stream."""
        self._counted_step = None
        if self._last_s is not None:
            self._last_s = self._clock()
        if self._epochs is None:
            self._done, self._of, self._start = 0, 0, None
        self._of += length or 0
        self._done += done

    def record_step(self, number: int, samples: int, loss: SupportsFloat) -> None:
        """Step object `number` has used a batch. The loss is read only if a snapshot is due.

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
        if self._start is None:  # the first step loads and compiles, so the estimate leaves it out
            self._start = now_s, self._finished_part() or 0.0
        elif now_s >= self._due_s:
            self._show_snapshot()

    def record_evaluation(self, part: float) -> None:
        """This part of an evaluation is finished; 1 at its end."""
        self._evaluated_fraction = part if part < 1 else None
        if self._start is not None and self._clock() >= self._due_s:
            self._show_snapshot()

    def close(self) -> None:
        self._evaluated_fraction = None
        if self._has_shown:
            self._show_snapshot(is_over=True)
        self._due_s = math.inf

    def _show_snapshot(self, *, is_over: bool = False) -> None:
        assert self._show is not None, "without it, no snapshot is ever due"
        try:
            loss = None if self._loss is None else float(self._loss)  # waits for the device
        except RuntimeError:  # the device has failed; the step raises the error
            loss = None
        now_s, part, left_s = self._clock(), self._finished_part(), None
        if part is not None and self._start is not None and part > self._start[1] and not is_over:
            left_s = (now_s - self._start[0]) * (1 - part) / (part - self._start[1])
        self._has_shown = True
        self._due_s = now_s + EVERY_S
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
            evaluated_fraction=self._evaluated_fraction,
            is_over=is_over,
        )
        self._show(snapshot)

    def _finished_part(self) -> float | None:
        """Return the finished part of the loop over epochs, or of a pass outside of such a loop. None: unknown."""
        if not self._of:
            return None
        part = min(1.0, self._done / self._of)
        return part if self._epoch is None or self._epochs is None else (self._epoch + part) / self._epochs


def function_name(train: Callable[..., object]) -> str:
    return getattr(getattr(train, "func", train), "__name__", "")


class Display:
    """Shows snapshots on standard error if `is_wanted`, and writes them to the status file.

    Nothing is shown in a job of a pool, or while another run of the process is shown.
    """

    def __init__(self, is_wanted: bool) -> None:
        self.rank_states: Callable[[], Sequence[str]] = tuple  # "lost", or another word for a process that lives
        self._is_shown = is_wanted and sys.stderr is not None and not in_job() and _stderr_lock.acquire(blocking=False)
        is_terminal = self._is_shown and not sys.stderr.closed and sys.stderr.isatty()
        self._is_live = is_terminal and (os.environ.get("TERM") or "dumb") not in ("dumb", "unknown")
        self._due_s = 0.0 if self._is_live else _LOG_INTERVAL_S  # since the beginning of the run
        self._has_shown = False
        self._live: Live | None = None
        self._file = StatusFile("run")

    def show(self, snapshot: RunSnapshot) -> None:
        if self._file.is_wanted():
            self._file.write(self._status(snapshot))
        is_due = self._has_shown if snapshot.is_over else snapshot.elapsed_s >= self._due_s
        if not (self._is_shown and is_due):
            return
        self._has_shown = True
        self._due_s = 0.0 if self._is_live else snapshot.elapsed_s + _LOG_INTERVAL_S
        try:
            self._show_line(str(snapshot))
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._close_stderr()
            _log.warning("the run continues, but its progress can no longer be shown: %s", error)

    def close(self) -> None:
        """Delete the status file. The last line stays."""
        self._file.close()
        self._close_stderr()

    def _close_stderr(self) -> None:
        if self._is_shown:
            self._is_shown = False
            _stderr_lock.release()
            if self._live is not None:
                with suppress(OSError, ValueError):
                    self._live.stop()

    def _show_line(self, line: str) -> None:
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

    def _status(self, snapshot: RunSnapshot) -> dict[str, Any]:
        return {
            "name": snapshot.name,
            "program": os.path.basename(sys.argv[0]) if sys.argv else "",
            "epoch": snapshot.epoch,
            "epochs": snapshot.epochs,
            "samples_per_s": snapshot.rate,
            "loss": snapshot.loss,
            "left_s": snapshot.left_s,
            "elapsed_s": snapshot.elapsed_s,
            "ranks": [{"state": state} for state in self.rank_states()],
        }

"""Writes the progress of a run to a status file, which other programs of the same user read, such as the board.

See `links.status_files`. A snapshot is taken every second even if no screen shows the run, because a board may be
started at any time. The file is written only while a board is running.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..links.status_files import EVERY_S, StatusFile
from .progress import RunSnapshot, Screen

_MAX_POINTS = 240  # of earlier rates and losses, in the file


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

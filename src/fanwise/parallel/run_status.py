"""Publishes the progress of a run to other programs of the same user, such as the board. See `links.status_files`.

    RunSnapshot --StatusScreen.show--> the status file, once a second --> the screen of the run, as often as that wants

A snapshot is taken once a second even if nothing shows the run, because a board may start at any time. The file is
written only while a board is running. The result of the training does not depend on it.
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

_MOST_POINTS = 240  # of the past, in the file


@dataclass(frozen=True, slots=True)
class RankStatus:
    """A process of a run. `pid` is 0 if it is unknown."""

    number: int
    pid: int
    devices: tuple[str, ...]
    state: str


@final
class StatusScreen:
    """A screen that also writes the status of the run. It is closed with the screen.

    Args:
        screen: the display of the program that started the run.
        ranks: returns the current processes of the run.
    """

    def __init__(self, screen: Screen, ranks: Callable[[], Sequence[RankStatus]]) -> None:
        self._screen = screen
        self._ranks = ranks
        self._file = StatusFile("run")
        self._due_s = screen.first_s  # of the screen, after the beginning of the run
        self._has_shown = False
        self._past: deque[list[float | None]] = deque(maxlen=_MOST_POINTS)
        self._program = os.path.basename(sys.argv[0]) if sys.argv else ""
        self.first_s = min(screen.first_s, EVERY_S)
        self.every_s = min(screen.every_s, EVERY_S)

    def show(self, snapshot: RunSnapshot) -> None:
        """Write the status, and show the snapshot if the screen is due."""
        if self._file.is_wanted():
            self._file.write(self._said(snapshot))
        if snapshot.is_over:
            if self._has_shown:
                self._screen.show(snapshot)
        elif snapshot.elapsed_s >= self._due_s:
            self._has_shown = True
            self._due_s = snapshot.elapsed_s + self._screen.every_s
            self._screen.show(snapshot)

    def close(self) -> None:
        """The run is over: it is no longer among those that run."""
        self._file.close()
        self._screen.close()

    def _said(self, snapshot: RunSnapshot) -> dict[str, Any]:  # Any: plain values
        self._past.append([time.time(), snapshot.rate, snapshot.loss])
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
            "ranks": [
                {"rank": one.number, "pid": one.pid, "devices": list(one.devices), "state": one.state}
                for one in self._ranks()
            ],
            "past": list(self._past),
        }

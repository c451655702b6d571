"""What every trial of the overhead benchmark leaves behind, and the line every peer program ends with.

    program (run by trial_overhead.py)       trial (any process, any library)
      Run.begin(...)                           mark()  --append one line-->  FOLDER/marks.txt
      ... n trials of the peer ...
      Run.end(...)   reads marks.txt, prints one JSON line

A mark says which process the trial ran in and when its objective began. CLOCK_MONOTONIC is one clock for all processes
of a Linux machine, so the moments of a trial and of its tuner may be subtracted. A pid alone may come twice; pid and
start time of the process together name it.

Only the standard library is used: this file runs in the environments of all peers.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

MARKS_VARIABLE = "FANWISE_BENCH_MARKS"


@dataclass(frozen=True, slots=True)
class Mark:
    """One trial: its process, and when its objective began (seconds of the monotonic clock)."""

    pid: int
    process_started_s: float
    began_s: float


def process_started_s() -> float:
    """When this process began, in seconds since boot, as the kernel counts (hundredths)."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of the line; the name in field 2 may hold blanks


def mark() -> None:
    """Write down that a trial began here. One short write in append mode, so that lines of two trials never mix."""
    line = f"{os.getpid()} {process_started_s()} {time.monotonic()}\n"
    fd = os.open(os.environ[MARKS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def read_marks(path: Path) -> list[Mark]:
    """All marks of a file, in the order in which the objectives began."""
    rows = [line.split() for line in path.read_text().splitlines()]
    found = [Mark(int(pid), float(started), float(began)) for pid, started, began in rows]
    return sorted(found, key=lambda one: one.began_s)


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run of a peer. Make it with `begin` just before the peer's tuner or pool is started."""

    peer: str
    version: str
    folder: Path
    began_s: float

    @staticmethod
    def begin(peer: str, version: str, folder: Path) -> "Run":
        """Start the clock. `folder` must be new: the marks and everything the peer writes go there."""
        os.environ[MARKS_VARIABLE] = str(folder / "marks.txt")
        return Run(peer, version, folder, time.monotonic())

    def end(self) -> list[Mark]:
        """Stop the clock, print the JSON line, and return the marks for checks of the program's own."""
        wall_s = time.monotonic() - self.began_s
        found = read_marks(self.folder / "marks.txt")
        begins_s = [one.began_s - self.began_s for one in found]
        print(
            json.dumps(
                {
                    "peer": self.peer,
                    "version": self.version,
                    "trials": len(found),
                    "wall_s": wall_s,
                    "first_trial_s": begins_s[0],
                    "pids": [one.pid for one in found],
                    "starts": [one.process_started_s for one in found],
                    "begins_s": begins_s,
                }
            ),
            flush=True,
        )
        return found


def arguments(*switches: str) -> argparse.Namespace:
    """The arguments of a peer program: `--trials N --folder DIR`, and yes-or-no switches of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    for switch in switches:
        parser.add_argument(f"--{switch}", action="store_true")
    return parser.parse_args()

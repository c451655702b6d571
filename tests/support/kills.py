"""Kills at any moment for the processes of a run that say when they work.

thread = kill_some(path, over, random.Random(seed), killed)     beside a run whose training calls works_here(path, ...)
"""

import os
import random
import signal
import threading
from pathlib import Path

from fanwise.testing.within import within

_LATELY = 12  # of the last so many steps: those processes live, as a rule


def is_first(path: Path) -> bool:
    """Return True for the first call with this path, in all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def kill(number: int = signal.SIGKILL) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def works_here(path: Path, *seen: object) -> None:
    """Called by each process before each of its steps, with whatever it is called with."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{os.getpid()}\n".encode())
    os.close(fd)


def kill_some(
    path: Path, over: threading.Event, chance: random.Random, killed: list[int], kills: int = 2
) -> threading.Thread:
    """SIGKILL for processes that work, at any moment of a step, as long as others work, too.

    Args:
        over: set when the run is. killed: gets their pids.

    Returns:
        The thread that does it, to be joined.
    """

    def work() -> None:
        for _ in range(kills):
            at = len(_pids(path)) + chance.randrange(1, 20)
            within(60, lambda at=at: over.is_set() or len(_pids(path)) >= at, "they work")  # type: ignore[misc]
            working = sorted(set(_pids(path)[-_LATELY:]) - set(killed))
            if over.is_set() or len(working) < 2:
                return
            killed.append(chance.choice(working))
            os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []

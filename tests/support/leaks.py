"""Leak checks: compare the threads, processes, files and settings of this process before and after some work.

    before = Snapshot.take(marker)  ->  the work  ->  before.leaks()  ->  [Leak("thread", ...), ...]

Found are Python threads; processes below this one, including zombies, and processes elsewhere with the marker in their
environment; open file descriptors; files of fanwise in the folder for temporary files; changes of the environment, the
current folder and the signal handlers. Threads of C libraries (OpenMP, BLAS) are not found: they live as long as the
process. There is no list of permitted leaks: take the snapshot after starting what has to live longer.
"""

import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from process_tree import all_processes, describe_process, end_process, running_processes

# pytest sets the first for each phase of a test. scikit-learn sets the others when it is imported.
_IGNORED_VARIABLES = {"PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}


@dataclass(frozen=True, slots=True)
class Leak:
    """An object that did not exist before. `pid` is 0 unless it is a process."""

    kind: str
    text: str
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of this process at one moment. Create it with `take()`, and compare it with the present by `leaks()`.

    `processes` has all processes of the machine, because to find the owner of each takes milliseconds. Only new ones
    are examined.

    >>> before = Snapshot.take()
    >>> before.leaks()
    []
    """

    marker: str
    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    descriptors: Counter[str]
    files: frozenset[str]
    environment: Mapping[str, str]
    handlers: Mapping[str, object]
    folder: str

    @classmethod
    def take(cls, marker: str = "") -> "Snapshot":
        """Return the present state. `marker`: value of FANWISE_TEST_ID in the environment of processes to find."""
        return cls(
            marker=marker,
            threads=frozenset(threading.enumerate()),
            processes=frozenset(all_processes()),
            descriptors=_descriptors(),
            files=frozenset(_temporary_files()),
            environment={key: value for key, value in os.environ.items() if key not in _IGNORED_VARIABLES},
            handlers={number.name: signal.getsignal(number) for number in signal.Signals},
            folder=os.getcwd(),
        )

    def leaks(self, patience_s: float = 0.0) -> list[Leak]:
        """Return the leaks since this snapshot. Blocks up to `patience_s` until there are none."""
        ends_s = time.monotonic() + patience_s
        pause = threading.Event()  # never set
        pause_s = 0.01
        while leaks := self._leaks_in(Snapshot.take(self.marker)):
            if time.monotonic() >= ends_s:
                return leaks
            gc.collect()  # an object that only a cycle keeps open is no leak
            pause.wait(pause_s)
            pause_s = min(2 * pause_s, 0.1)  # a collection takes as long as the first pause
        return []

    def put_back(self, leaks: list[Leak]) -> None:
        """Kill leaked processes, and restore the environment and the current folder."""
        ended: set[int] = set()
        pids = {leak.pid for leak in leaks if leak.pid}
        while pids:
            for pid in pids:
                end_process(pid)
            ended |= pids
            pids = running_processes(self.marker) - self.processes - ended  # a process may have started another
        for key in set(os.environ) - set(self.environment) - _IGNORED_VARIABLES:
            del os.environ[key]
        os.environ.update(self.environment)
        os.chdir(self.folder)

    def _leaks_in(self, now: "Snapshot") -> list[Leak]:
        leaks = [Leak("thread", _describe_thread(thread)) for thread in now.threads - self.threads]
        started = running_processes(self.marker, now.processes - self.processes)
        leaks += [Leak("process", describe_process(pid), pid) for pid in sorted(started)]
        opened = now.descriptors - self.descriptors
        leaks += [Leak("file descriptor", f"{target} ({count} more)") for target, count in sorted(opened.items())]
        leaks += [Leak("file", path) for path in sorted(now.files - self.files)]
        leaks += [Leak("environment", text) for text in _changes(self.environment, now.environment)]
        leaks += [Leak("signal handler", text) for text in _changes(self.handlers, now.handlers)]
        leaks += [Leak("current folder", f"was {self.folder}, is {now.folder}")] * (now.folder != self.folder)
        return leaks


def _describe_thread(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame else "  (runs no Python)\n"
    return f"thread {thread.name}{' (daemon)' if thread.daemon else ''}:\n{stack}"


def _descriptors() -> Counter[str]:
    """Return the targets of the open descriptors. Their numbers do not matter, because they are reused."""
    targets: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing is closed by now
            targets[os.readlink(f"/proc/self/fd/{name}")] += 1
    return targets


def _temporary_files() -> list[str]:
    with os.scandir(tempfile.gettempdir()) as entries:
        return [entry.path for entry in entries if entry.name.startswith("fanwise-")]


def _changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]

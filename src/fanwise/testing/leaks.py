"""What a piece of work has left behind in this process and below it, by comparing before and after.

    before = Snapshot.take(marker)  ->  the work  ->  before.leaks()  ->  [Leak("thread", ...), ...]

Seen are: Python threads; processes below this one, zombies too, and processes that moved away but carry the marker in
their environment; open file descriptors; our files in the folder of temporary files; environment, current folder and
signal handlers. Threads of C libraries (OpenMP, BLAS) are not seen: those pools live as long as the process.
Knows nothing of pytest.

Invariant: there is no list of permitted leaks. What has to live longer is started before the snapshot is taken.
"""

import gc
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from .processes import all_processes, describe_process, end_process, running_processes
from .threads import describe_threads

# pytest writes the phase of the running test into the first; the others scikit-learn writes when it is loaded, whoever
# happens to be the first to need it.
_NOT_OF_TESTS = {"PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}


@dataclass(frozen=True, slots=True)
class Leak:
    """One thing that was not there before. `pid` is 0 unless it is a process."""

    kind: str
    text: str
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there was at one moment. Make one with `take()`, compare it with now by `leaks()`.

    `processes` are all of the machine. Whose they are is asked only of new ones: to look at each takes milliseconds.

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
        """What there is now. `marker`: the value of FANWISE_TEST_ID that the processes of the work carry, if any."""
        return cls(
            marker=marker,
            threads=frozenset(threading.enumerate()),
            processes=frozenset(all_processes()),
            descriptors=_descriptors(),
            files=frozenset(_files()),
            environment={key: value for key, value in os.environ.items() if key not in _NOT_OF_TESTS},
            handlers={number.name: signal.getsignal(number) for number in signal.Signals},
            folder=os.getcwd(),
        )

    def leaks(self, patience_s: float = 0.0) -> list[Leak]:
        """What is here now and was not then. Blocks up to `patience_s` for it to go, not at all when nothing is."""
        ends_s = time.monotonic() + patience_s
        pause = threading.Event()  # never set: its wait is the pause
        pause_s = 0.01
        while left := self._new(Snapshot.take(self.marker)):
            if time.monotonic() >= ends_s:
                return left
            gc.collect()  # what only a cycle of dead objects holds open is no leak
            pause.wait(pause_s)
            pause_s = min(2 * pause_s, 0.1)  # a collection takes as long as the first pause
        return []

    def put_back(self, leaks: list[Leak]) -> None:
        """Kill the processes among the leaks, restore environment and folder: what follows shall not suffer."""
        ended: set[int] = set()
        left = {leak.pid for leak in leaks if leak.pid}
        while left:
            for pid in left:
                end_process(pid)
            ended |= left
            left = running_processes(self.marker) - self.processes - ended  # one may just have started another
        for key in set(os.environ) - set(self.environment) - _NOT_OF_TESTS:
            del os.environ[key]
        os.environ.update(self.environment)
        os.chdir(self.folder)

    def _new(self, now: "Snapshot") -> list[Leak]:
        left = [Leak("thread", describe_threads([thread])) for thread in now.threads - self.threads]
        started = running_processes(self.marker, now.processes - self.processes)
        left += [Leak("process", describe_process(pid), pid) for pid in sorted(started)]
        opened = now.descriptors - self.descriptors
        left += [Leak("file descriptor", f"{target} ({count} more)") for target, count in sorted(opened.items())]
        left += [Leak("file", path) for path in sorted(now.files - self.files)]
        left += [Leak("environment", text) for text in _changes(self.environment, now.environment)]
        left += [Leak("signal handler", text) for text in _changes(self.handlers, now.handlers)]
        left += [Leak("current folder", f"was {self.folder}, is {now.folder}")] * (now.folder != self.folder)
        return left


def _descriptors() -> Counter[str]:
    """What the open descriptors point at, each with how often. Their numbers do not matter: they are used again."""
    targets: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing is closed by now
            targets[os.readlink(f"/proc/self/fd/{name}")] += 1
    return targets


def _files() -> list[str]:
    with os.scandir(tempfile.gettempdir()) as entries:
        return [entry.path for entry in entries if entry.name.startswith("fanwise-")]


def _changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]

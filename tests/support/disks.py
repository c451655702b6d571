"""A disk that is full from some moment on, for tests: a limit on the size of files stands for it.

    with FullDisk(after_bytes=10_000) as disk:      # no file can grow beyond that, from when it is told
        Tuner(..., callbacks=[disk]).run()          # a tuner tells it by the first report

What is mapped into memory may still be written to.
"""

import resource
import signal
from types import TracebackType


class FullDisk:
    """See the module. For this process, all its threads and libraries alike; put back at the end of the block."""

    def __init__(self, *, after_bytes: int) -> None:
        self._after_bytes = after_bytes

    def on_report(self, event: object) -> None:
        """A tuner's trial has reported."""
        self.fill()

    def fill(self) -> None:
        """Full from now on."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._after_bytes, self._before[1]))

    def __enter__(self) -> "FullDisk":
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # who is not told by a signal gets EFBIG
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
        signal.signal(signal.SIGXFSZ, self._ignored)

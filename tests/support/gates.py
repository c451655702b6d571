"""A gate at which processes wait until a test lets them go on.

    with Gate(tmp_path / "gate") as gate:
        job = pool.submit(gate.wait)    # or gate.wait() somewhere in a function
        ...
        gate.open()

It travels to other processes as its path. Waiting is a blocking read of a pipe, so it costs nothing and is
interrupted by signals, as real work is.
"""

import os
from pathlib import Path
from types import TracebackType


class Gate:
    """See the module. Made and opened in one process; any process may wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def wait(self) -> None:
        """Block until the gate is opened for one more."""
        with open(self.path, "rb", buffering=0) as pipe:
            pipe.read(1)

    def open(self, times: int = 1) -> None:
        """Let `times` of those who wait go on, or of those who will."""
        os.write(self._fd, b"." * times)

    def __enter__(self) -> "Gate":
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def __reduce__(self) -> tuple[type["Gate"], tuple[Path]]:
        return Gate, (self.path,)

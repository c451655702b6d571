"""Programs that a test runs to their end: examples, code blocks, the command line.

    run_program(["train.py"], folder=tmp_path) --> Finished(status, out, err)

Each runs in a fresh interpreter and a session of its own, without standard input, with its experiments below the folder
it runs in. Whatever it started ends with it when it takes too long, and the test is told that it did.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .within import within

LIMIT_S = 100.0


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program left: its exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Both outputs, one after the other."""
        return self.out + self.err


def run_program(
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    interrupt_after: str | None = None,
) -> Finished:
    """Run `python *arguments` in `folder`. Blocks until it has ended.

    Args:
        environment: variables besides those of this process; `FANWISE_HOME` is `folder/home` unless it is among them.
        limit_s: after so many seconds it is killed with its whole session, and `err` says so.
        interrupt_after: press Ctrl-C, once, when this text was printed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "FANWISE_HOME": str(folder / "home"), "MPLBACKEND": "Agg", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        note = ""
        try:
            if interrupt_after is not None:
                _wait_for(interrupt_after, out, process, limit_s)
                process.send_signal(signal.SIGINT)  # does nothing to one that has ended
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            note = f"\nstill running after {limit_s} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Finished(process.returncode, _text_of(out), _text_of(err) + note)


def _wait_for(text: str, out: IO[bytes], process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    """Block until the program has printed the text, or ended without."""
    within(limit_s, lambda: text in _text_of(out) or process.poll() is not None, f"it prints {text!r}")


def _text_of(file: IO[bytes]) -> str:
    """All that was written so far. The program shares the position in the file, so it is not moved."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()

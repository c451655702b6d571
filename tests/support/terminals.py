"""A program in a terminal: what it writes there, with all that steers it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

_SOURCES = Path(__file__).parents[2] / "src"


def output_in_a_terminal(program: str, *arguments: str, **variables: str) -> str:
    """Run Python source in a terminal of 24 lines, and return all that it writes. Blocks until it has ended.

    Args:
        variables: of its environment, as COLUMNS.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(_SOURCES), "TERM": "xterm", "LINES": "24", **variables}
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        text = b""
        try:
            while block := os.read(ours, 65536):
                text += block
        except OSError:  # Linux says so when the last writer has closed a terminal
            pass
    os.close(ours)
    return text.decode()

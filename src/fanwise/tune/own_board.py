"""The board of a tuner: a process beside it that shows its experiments as long as it runs.

A process of its own, so that the pages take nothing from the thread that answers reports. The socket is opened here:
the address is known at once, and whoever opens it waits until the pages are there. The process ends when the pipe to
it closes, however the tuner ended.
"""

import logging
import os
import socket
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from ..base.extras import check_installed
from ..base.text import printable

_log = logging.getLogger(__name__)

_END_S = 10.0
_MOST_SAID = 2_000


def check_board_is_there() -> None:
    """Raise NotInstalled where a library of the board is missing. Loads none of them."""
    check_installed("the board needs", "starlette", "uvicorn", "plotly", extra="board")


@contextmanager
def own_board(folder: Path) -> Iterator[str]:
    """The address of an experiment's page, as long as the block lasts. It is opened where there is a screen.

    Only this machine can reach it. A board that cannot start, or ends, is a warning: the search goes on.
    """
    with socket.socket() as listening, tempfile.TemporaryFile() as said:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/experiments/{quote(folder.name)}"
        process = _start(listening, folder.parent, said.fileno())
        listening.close()  # or browsers would wait for a board that has ended
        try:
            if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
                webbrowser.open(address)
            yield address
        finally:
            ended_itself = process.poll()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if ended_itself is not None:
                said.seek(0)
                text = said.read()[-_MOST_SAID:].decode("utf-8", "replace")
                _log.warning("the board ended with status %d: %s", ended_itself, printable(text))


def _start(listening: socket.socket, home: Path, said: int) -> "subprocess.Popen[bytes]":
    package = str(Path(__file__).resolve().parents[2])
    found = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        # -P: a json.py in the folder where the user works is not the json that the board means.
        [sys.executable, "-P", "-m", "fanwise.board", str(listening.fileno()), str(home)],
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=said,
        pass_fds=[listening.fileno()],
        env={**os.environ, "PYTHONPATH": found},
        start_new_session=True,  # Ctrl-C ends the search, and then the search ends its board
    )

"""The board of a tuner: a process that shows the tuner's experiments in a browser while the tuner runs.

The board has its own process, so that serving pages does not delay the answers to reports. The socket is opened here,
so the address is known at once and browsers wait until the board is ready. The process reads its token from standard
input, and ends when standard input closes, even if the tuner is killed.
"""

import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from ...base.extras import check_installed
from ...base.text import printable

_log = logging.getLogger(__name__)

_END_TIMEOUT_S = 10.0
_MAX_OUTPUT_BYTES = 2_000


def check_board_is_installed() -> None:
    """Raise NotInstalled if a library of the board is missing. Imports none of them."""
    check_installed("the board needs", "starlette", "uvicorn", "plotly", extra="board")


@contextmanager
def serving_board(folder: Path) -> Iterator[str | None]:
    """Run a board during the block. Yield the address of the experiment's page, or None if the board cannot start.

    The page is opened in a browser if there is a display. If the board cannot start or ends early, a warning is logged
    and the search continues.
    """
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket())
            output = stack.enter_context(tempfile.TemporaryFile())
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            token = secrets.token_urlsafe()
            port, path = listener.getsockname()[1], f"experiments/{quote(folder.name)}"
            address = f"http://127.0.0.1:{port}/{path}?token={token}"
            process = _start(listener, folder.parent, output.fileno(), token)
        except OSError as error:
            _log.warning("the board cannot be started: %s", error)
            yield None
            return
        listener.close()  # otherwise browsers would wait after the board has ended
        is_closing = threading.Event()

        def warn_at_end() -> None:
            status = process.wait()
            if not is_closing.is_set():
                output.seek(0)
                text = printable(output.read()[-_MAX_OUTPUT_BYTES:].decode("utf-8", "replace"))
                _log.warning("the board ended with status %d; the search continues without it: %s", status, text)

        watcher = threading.Thread(target=warn_at_end, name="fanwise-board", daemon=True)
        watcher.start()
        try:
            if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
                webbrowser.open(address)
            yield address
        finally:
            is_closing.set()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            watcher.join(_END_TIMEOUT_S)
            process.kill()  # does nothing if the process has ended
            watcher.join()


def _start(listener: socket.socket, home: Path, output_fd: int, token: str) -> "subprocess.Popen[bytes]":
    package = str(Path(__file__).resolve().parents[2])
    module_path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        # -P: do not import modules from the working folder, such as a json.py of the user.
        [sys.executable, "-P", "-m", "fanwise.board", str(listener.fileno()), str(home)],
        stdin=subprocess.PIPE,
        stdout=output_fd,
        stderr=output_fd,
        pass_fds=[listener.fileno()],
        env={**os.environ, "PYTHONPATH": module_path},
        start_new_session=True,  # so that Ctrl-C reaches only the search, which ends the board
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has already ended, which the caller reports
        process.stdin.write(f"{token}\n".encode())
        process.stdin.flush()
    return process

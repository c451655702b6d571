"""The board of a tuner: `python -m fanwise.board FD HOME`, started by it on a socket that listens already.

It ends when its standard input does, that is when the tuner has closed it, or is gone in whatever way.
"""

import socket
import sys
import threading
from pathlib import Path

from fanwise.board.callers import callers_at
from fanwise.board.guard import Guard
from fanwise.board.watching import Home
from fanwise.board.with_uvicorn import Server


def main(descriptor: str, home: str) -> None:
    """Serve until standard input ends."""
    listening = socket.socket(fileno=int(descriptor))
    server = Server(Home(Path(home)), Guard(), callers_at(listening))

    def wait() -> None:
        sys.stdin.buffer.read()
        server.end()

    threading.Thread(target=wait, name="board stdin", daemon=True).start()
    with listening:
        server.serve(listening)


if __name__ == "__main__":
    main(*sys.argv[1:])

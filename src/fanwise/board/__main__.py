"""The board of a tuner, which starts it with `python -m fanwise.board FD HOME`. FD is a listening socket.

The first line of standard input is the token. The board ends when its standard input closes, which happens when the
tuner ends for any reason.
"""

import secrets
import socket
import sys
import threading
from pathlib import Path

from fanwise.board.experiments import Home
from fanwise.board.guard import Guard
from fanwise.board.with_uvicorn import Server


def main(descriptor: str, home: str) -> None:
    """Serve until standard input closes."""
    token = sys.stdin.readline().strip()
    listener = socket.socket(fileno=int(descriptor))
    server = Server(Home(Path(home)), Guard(token, secrets.token_urlsafe()))

    def end_with_stdin() -> None:
        sys.stdin.read()
        server.end()

    threading.Thread(target=end_with_stdin, name="board stdin", daemon=True).start()
    with listener:
        server.serve(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Where a board listens, and who may reach it.

    open_board(home, host=, port=) -> OpenBoard: a listening socket, the address to print, the guard
    OpenBoard.serve()                 blocks

A port is taken before anything slow is loaded, so its address can be printed and opened at once.
"""

import errno
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .callers import Callers, callers_at
from .guard import Guard, host_name, is_loopback, known_names

DEFAULT_PORT = 8321

_TOKEN_BYTES = 24


@final
@dataclass(frozen=True, slots=True)
class OpenBoard:
    """A board that listens. `address`: to be opened in a browser; holds the token if there is one."""

    home: Path
    listening: socket.socket
    guard: Guard
    callers: Callers | None
    address: str

    def serve(self) -> None:
        """Answer until Ctrl-C. Blocks. Raises NotInstalled."""
        from .watching import Home
        from .with_uvicorn import Server

        with self.listening:
            Server(Home(self.home), self.guard, self.callers).serve(self.listening)


def open_board(home: Path, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> OpenBoard:
    """Listen for the board's pages; nobody is answered before `serve`.

    Args:
        home: the folder of the experiments.
        host: where to listen. What is not this machine's loopback gets a token, without which nothing is shown.
        port: 0: any that is free.

    Raises:
        OSError: it cannot listen there; says what to do about a port that is taken.
    """
    listening = _listen(host, port)
    taken = listening.getsockname()[1]
    name = host
    if host_name(host) in ("0.0.0.0", None):  # everywhere; None: an IPv6 address without brackets
        name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]"
    place = f"http://{name}:{taken}/"
    if is_loopback(host):
        return OpenBoard(home, listening, Guard(), callers_at(listening), place)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    names = known_names([host, socket.gethostname(), socket.getfqdn()])
    guard = Guard(names, token, secrets.token_urlsafe(_TOKEN_BYTES))
    return OpenBoard(home, listening, guard, None, f"{place}?token={token}")


def _advice(number: int | None) -> str:
    if number == errno.EACCES:
        return "Ports below 1024 are the system's: take another one, or any that is free with --port 0."
    if number == errno.EADDRNOTAVAIL:
        return "That is no address of this machine: take 127.0.0.1, for this machine alone, or 0.0.0.0."
    return "Another board may be there: open it, or take any free port with --port 0."


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind)
    except OSError as error:
        raise OSError(f"the board cannot listen at {host!r}: {error}. Without --host it is at 127.0.0.1.") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(128)
    except OSError as error:
        listening.close()
        what = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"the board cannot listen at {host}, port {port}: {what}. {_advice(error.errno)}") from error
    return listening

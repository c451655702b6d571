"""Opens the socket of a board, and makes its token and its address.

The port is opened before any slow import, so that the address can be printed and opened at once.
"""

import errno
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .guard import Guard, host_name, is_loopback


@final
@dataclass(frozen=True, slots=True)
class OpenBoard:
    """A board that listens. `address` contains the token; open it in a browser."""

    home: Path
    listener: socket.socket
    guard: Guard
    address: str

    def serve(self) -> None:
        """Serve until Ctrl-C. Raises NotInstalled."""
        from .experiments import Home
        from .with_uvicorn import Server

        with self.listener:
            Server(Home(self.home), self.guard).serve(self.listener)


def open_board(home: Path, *, host: str = "127.0.0.1", port: int = 8321) -> OpenBoard:
    """Open the socket of a board. Requests are answered by `OpenBoard.serve`.

    Args:
        home: the folder of the experiments.
        host: name or address to listen at.
        port: 0 for any free port.

    Raises:
        OSError: the board cannot listen there. The message says what to do.
    """
    listener = _listen(host, port)
    name = host
    if host_name(host) in ("0.0.0.0", None):  # all interfaces, or an IPv6 address without brackets
        name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]"
    names = (host,) if is_loopback(host) else (host, socket.gethostname(), socket.getfqdn())
    guard = Guard(secrets.token_urlsafe(), secrets.token_urlsafe(), frozenset(name.lower() for name in names if name))
    address = f"http://{name}:{listener.getsockname()[1]}/?token={guard.token}"
    return OpenBoard(home, listener, guard, address)


def _listen(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = addresses[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise OSError(f"the board cannot listen at {host!r}: {error}. Without --host it is at 127.0.0.1.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"the board cannot listen at {host}, port {port}: {reason}. {_advice(error.errno)}") from error
    return listener


def _advice(error_number: int | None) -> str:
    if error_number == errno.EACCES:
        return "Ports below 1024 are reserved: use a higher one, or any free port with --port 0."
    if error_number == errno.EADDRNOTAVAIL:
        return "This machine does not have that address: use 127.0.0.1 for this machine only, or 0.0.0.0."
    return "Another board may be running there: open it, or use any free port with --port 0."

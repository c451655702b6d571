"""Whose program is at the other end of a connection within this machine: the kernel's table of connections says.

    client address, server address --Callers.may--> whether it is the user's of this process, or root's

Any user of a machine may connect to its loopback addresses. The folder of an experiment lets in its owner alone, and a
board without a token must not let in more. A tunnel of ssh is a connection of who is logged in.

A connection that is being closed counts as nobody's: the kernel forgets then whose it was.
"""

import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import final

_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_ESTABLISHED = "01"

Place = tuple[str, int]  # address, port


@final
class Callers:
    """Asks the kernel. Made by `callers_at`."""

    def __init__(self, family: socket.AddressFamily, users: frozenset[int]) -> None:
        self._table = _TABLES[family]
        self._family = family
        self._users = users

    def may(self, client: Place, server: Place) -> bool:
        """Whether the connection from `client` to `server` is of one of the users."""
        local, remote = _shown(self._family, client), _shown(self._family, server)
        with self._table.open() as lines:
            return user_of(lines, local, remote) in self._users


def callers_at(listening: socket.socket) -> Callers | None:
    """Who may call at a listening socket of a loopback address: this process's user, and root.

    None where the kernel does not tell; that is tried with a connection to the socket, which takes it at the next
    `accept` and finds it closed.
    """
    here = listening.getsockname()[:2]
    callers = Callers(listening.family, frozenset({os.geteuid()}))
    with socket.socket(listening.family) as own:
        try:
            own.connect(listening.getsockname())
            can_tell = callers.may(own.getsockname()[:2], here)
        except (OSError, KeyError):
            return None
    return Callers(listening.family, frozenset({os.geteuid(), 0})) if can_tell else None


def user_of(lines: Iterable[str], local: str, remote: str) -> int | None:
    """The user of the established connection between two places, in the form of /proc/net/tcp. None: there is none."""
    for line in lines:
        parts = line.split()
        if len(parts) > 7 and parts[1:4] == [local, remote, _ESTABLISHED]:
            return int(parts[7])
    return None


def _shown(family: socket.AddressFamily, place: Place) -> str:
    """As /proc/net/tcp writes it: words of four bytes in the machine's own order."""
    packed = socket.inet_pton(family, place[0])
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{place[1]:04X}"

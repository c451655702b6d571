"""Where a group is entered from several hosts: TLS on MASTER_PORT of rank 0's host, with the shared secret.

The holder of the entrance is whoever listens on that port, so only a worker of that host can hold it; when its process
has ended, another of that host takes the port. A process that is frozen keeps it, and a host that is gone takes it
along: then nobody new can come in, unless more addresses than one were given: the coordinator holds the one of its
host, and newcomers try all. The members find each other without it (`peer_probing`).

Each member listens on a port of its own, on the address by which its host reaches rank 0's; and, for those of the same
host, network and user, at a Unix socket in the user's folder, where big buffers go through shared memory:

    address of a member:  host port [path]

Who is told such a path dials it only when the member says that it is of this host (`this_host`: the same boot, the same
network namespace), and both must prove there that they hold the secret, as everywhere. Where the socket cannot be
reached, as in another container, it is TLS all the same.
Loads `ssl` and `cryptography`; imported only when there is a secret.
"""

import contextlib
import dataclasses
import errno
import hmac
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from ...base.errors import AuthenticationError, DeadlineExceeded, FanwiseError, WorkerLostError
from ...links.hub import Hub
from ...links.link import Link
from ...links.process_state import this_host
from ...links.runtime_folder import runtime_folder
from ...links.security.certificates import Identity
from ...links.transports.tcp import TcpListener, dial_tcp
from ...links.transports.unix import UnixListener, dial
from ..membership.members import Member
from .addresses import Rendezvous
from .entrance import OnLink, is_open, refused_text
from .stale_files import sweep

_UNIX_KEY = b"fanwise: key of Unix sockets within one host, 1"


class TlsMeeting:
    """Between hosts. See `entrance.Meeting`.

    Nobody can tell a host that is off from one that is cut off, so whoever holds the entrance is not the only
    coordinator that there may be.

    Args:
        secret: the same for all workers; see `links.shared_secret`.
        ports: for the members' own listeners: 0 for any, a number, or a range like "29600-29700".
        on_open: is told address and port of the entrance when this process has opened it; for a place of port 0.
    """

    is_exclusive = False

    def __init__(
        self,
        where: Rendezvous,
        secret: str,
        *,
        ports: int | str = 0,
        on_open: Callable[[str, int], None] | None = None,
    ) -> None:
        self.where = where
        self._on_open = on_open
        self._identity = Identity(secret)
        # Not the secret itself: what is shown under one key must not help against another.
        self._key = hmac.digest(secret.encode(), _UNIX_KEY, "sha256")
        self._ports = ports
        self._listening_at = ""

    def try_open(
        self, hub: Hub, incarnation: int, on_link: OnLink, *, instead_of: int | None = None
    ) -> "TlsEntrance | None":
        here = next((place for place in self.where.places if place.is_here), None)
        if here is None:
            return None
        try:
            listener = TcpListener(hub, here.host, here.port, self._identity, on_link=on_link)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        if self._on_open is not None:
            self.where = dataclasses.replace(self.where, port=listener.port)
            self._on_open(listener.host, listener.port)
        return TlsEntrance(listener)

    def dial(self, hub: Hub, *, within_s: float, but_not: int | None = None) -> Link | None:
        if but_not is not None:
            return None
        until_s = hub.clock.now_s() + within_s
        silent: DeadlineExceeded | None = None
        for number, place in enumerate(self.where.places):
            left_s = max(0.001, until_s - hub.clock.now_s()) / (len(self.where.places) - number)
            try:
                return self._dial(hub, place.host, place.port, left_s)
            except WorkerLostError:  # nobody listens, or it is just closing
                continue
            except DeadlineExceeded as error:
                silent = error
        if silent is not None:
            raise silent
        return None

    def listen(self, hub: Hub, on_link: OnLink) -> str:
        listener = TcpListener(hub, _own_address(self.where), self._ports, self._identity, on_link=on_link)
        address = self._listening_at = f"{listener.host} {listener.port}"
        try:
            folder = runtime_folder()
            sweep(folder)
            near = UnixListener(hub, folder / f"w-{secrets.token_hex(8)}", self._key, on_link=on_link)
        except (FanwiseError, OSError):  # no such folder is to be had here: then it is TLS for all
            return address
        return f"{address} {near.path}"

    def dial_member(self, hub: Hub, member: Member, *, within_s: float) -> Link:
        host, port, path = _parts(member.address)
        until_s = hub.clock.now_s() + within_s
        if path and member.host == this_host():
            with contextlib.suppress(WorkerLostError, AuthenticationError):
                return dial(hub, Path(path), self._key, within_s=within_s)
        return self._dial(hub, host, int(port), max(0.001, until_s - hub.clock.now_s()))

    def _dial(self, hub: Hub, host: str, port: int, within_s: float) -> Link:
        return dial_tcp(hub, host, port, self._identity, within_s=within_s, listening_at=self._listening_at)

    def is_listening(self, address: str) -> bool:
        """Where there is no path it is not known without waiting."""
        path = _parts(address)[2]
        return not path or is_open(path)

    def has_survivors(self) -> bool:
        """Not known: whoever comes opens the port, and survivors find it there."""
        return False


def _parts(address: str) -> tuple[str, str, str]:
    """Host, port, and the path or ""."""
    host, port, *path = address.split(" ", 2)
    return host, port, path[0] if path else ""


class TlsEntrance:
    """The listener on MASTER_PORT."""

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener

    def is_ours(self) -> bool:
        return True  # a port cannot be taken from who listens on it

    def note(self, members: Sequence[Member]) -> None:
        """Nobody would read it."""

    def refused(self) -> str:
        return refused_text(self._listener.refused.items())

    def close(self) -> None:
        self._listener.close()


def _own_address(where: Rendezvous) -> str:
    """This host's address on the way to rank 0's, or to the first that is known. Sends nothing."""
    failed: OSError | None = None
    for place in where.places:
        try:
            return address_towards(place.host, place.port)
        except OSError as error:  # that host has no name any more, or no way leads there
            failed = failed or error
    assert failed is not None, "there is a place"
    raise failed


def address_towards(host: str, port: int = 0) -> str:
    """Of this host, on the way to that one. Sends nothing."""
    family, kind, protocol, _name, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])

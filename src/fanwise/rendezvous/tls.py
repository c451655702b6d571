"""Rendezvous between hosts: TLS at MASTER_PORT of the host of rank 0, with the shared secret.

Rank 0 listens at that port, and every worker at a port of its own, on the address of its host on the route to rank 0.
Workers of one host, network and user also listen at a Unix socket, where large buffers go through shared memory:

    address of a member:  host port [path]

A worker dials the path only of members of its own host (`this_host`: the same boot and network namespace). Both sides
prove the secret there too. If the socket cannot be reached, as in another container, they use TLS. Loads `ssl` and
`cryptography`, so it is imported only if there is a secret.
"""

import contextlib
import dataclasses
import errno
import hmac
from collections.abc import Callable
from pathlib import Path

from ..base.errors import AuthenticationError, FanwiseError, WorkerLostError
from ..links.hub import Hub
from ..links.link import Link
from ..links.process_state import this_host
from ..links.runtime_folder import runtime_folder
from ..links.security.certificates import Identity
from ..links.transports.tcp import TcpListener, dial_tcp
from ..links.transports.unix import dial
from .addresses import Address, address_towards
from .unix import OnLink, folder_lock, listen_in, remove_stale_sockets

_UNIX_KEY = b"fanwise: key of Unix sockets within one host, 1"


class TlsRendezvous:
    """See `rendezvous.Rendezvous`.

    Args:
        secret: equal for all workers; see `links.shared_secret`.
        ports: for the listeners of workers: 0 for any, a number, or a range like "29600-29700".
        on_open: called with the address and port where this process coordinates a group, for an address with port 0.
    """

    def __init__(
        self,
        address: Address,
        secret: str,
        *,
        ports: int | str = 0,
        on_open: Callable[[str, int], None] | None = None,
    ) -> None:
        self.address = address
        self._on_open = on_open
        self._identity = Identity(secret)
        # Derived from the secret, so that proofs of one key do not help against the other.
        self._key = hmac.digest(secret.encode(), _UNIX_KEY, "sha256")
        self._ports = ports
        self._listening_at = ""

    def open(self, hub: Hub, on_link: OnLink) -> TcpListener | None:
        if not self.address.is_here:
            return None
        try:
            listener = TcpListener(hub, self.address.host, self.address.port, self._identity, on_link=on_link)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        with contextlib.suppress(FanwiseError, OSError), folder_lock(runtime_folder()):
            remove_stale_sockets(runtime_folder())
        if self._on_open is not None:
            self.address = dataclasses.replace(self.address, port=listener.port)
            self._on_open(listener.host, listener.port)
        return listener

    def dial(self, hub: Hub, *, within_s: float) -> Link | None:
        try:
            return self._dial(hub, self.address.host, self.address.port, within_s)
        except WorkerLostError:
            return None

    def listen(self, hub: Hub, on_link: OnLink) -> str:
        own_host = address_towards(self.address.host, self.address.port)
        listener = TcpListener(hub, own_host, self._ports, self._identity, on_link=on_link)
        address = self._listening_at = f"{listener.host} {listener.port}"
        with contextlib.suppress(FanwiseError, OSError):  # without a runtime folder, TLS for all
            return f"{address} {listen_in(runtime_folder(), hub, self._key, on_link)}"
        return address

    def dial_member(self, hub: Hub, address: str, host: str, *, within_s: float) -> Link:
        name, port, *path = address.split(" ", 2)
        deadline_s = hub.clock.now_s() + within_s
        if path and host == this_host():
            with contextlib.suppress(WorkerLostError, AuthenticationError):
                return dial(hub, Path(path[0]), self._key, within_s=within_s)
        return self._dial(hub, name, int(port), max(0.001, deadline_s - hub.clock.now_s()))

    def _dial(self, hub: Hub, host: str, port: int, within_s: float) -> Link:
        return dial_tcp(hub, host, port, self._identity, within_s=within_s, listening_at=self._listening_at)

"""The rendezvous of a group: Unix sockets within one host, TLS between hosts."""

import os
from collections.abc import Mapping
from typing import Any, Protocol

from ..base.errors import SecretError
from ..links.hub import Hub
from ..links.link import Link
from ..links.shared_secret import read_secret
from .addresses import Address, is_known
from .unix import OnLink, UnixRendezvous


class Listener(Protocol):
    """The listener of the process that opened a group.

    Attributes:
        refused: number of refused connections, by reason.
    """

    @property
    def refused(self) -> Mapping[Any, int]: ...
    def close(self) -> None:
        """Accept no more connections. On the hub's thread. A second call has no effect."""


class Rendezvous(Protocol):
    """Connections between the members of a group: within one host, or between hosts."""

    address: Address

    def open(self, hub: Hub, on_link: OnLink) -> Listener | None:
        """Listen at the address of the group. Return None if another process does."""

    def dial(self, hub: Hub, *, within_s: float) -> Link | None:
        """Return a link to the process that opened the group, or None if nobody listens. Blocks."""

    def listen(self, hub: Hub, on_link: OnLink) -> str:
        """Listen as a member until the hub closes. Return the address for `dial_member`."""

    def dial_member(self, hub: Hub, address: str, host: str, *, within_s: float) -> Link:
        """Return a link to the member at `address`, on a host named as by `this_host`. Blocks; raises like `dial`."""


def open_rendezvous(address: Address, *, environment: Mapping[str, str] = os.environ) -> Rendezvous:
    """Return the rendezvous at an address: TLS if the environment has a secret, otherwise Unix sockets.

    TLS workers listen at any free port, or at the first free one of FANWISE_PORTS, a number or a range
    like "29600-29700". Raises `SecretError` for an address of another host without a secret, and for a weak secret.
    """
    secret = read_secret(environment) if address.port else None
    if secret is not None:
        from .tls import TlsRendezvous

        return TlsRendezvous(address, secret, ports=environment.get("FANWISE_PORTS", 0))
    if address.is_here:
        return UnixRendezvous(address)
    if not is_known(address.host):
        raise SecretError(
            f"{address.url} is taken for an address of another host, which needs a secret: no host of the name "
            f"{address.host} is known here. Is it spelled as it should be?"
        )
    raise SecretError(
        f"{address.url} is an address of another host, and there is no secret. Without one anybody who reaches that "
        f"port could run code here.\nMake one with `fanwise secret`, and give it to all workers in FANWISE_SECRET, or "
        f"in a file named by FANWISE_SECRET_FILE; or, when all workers run on this host, use 127.0.0.1."
    )

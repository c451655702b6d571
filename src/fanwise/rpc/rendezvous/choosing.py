"""Which way the members of a group meet: by TLS where there is a secret, else by Unix sockets of this host."""

import os
from collections.abc import Mapping

from ...base.errors import SecretError
from ...links.shared_secret import read_secret
from .addresses import Rendezvous, is_known
from .entrance import LocalMeeting, Meeting


def meeting_at(where: Rendezvous, *, environment: Mapping[str, str] = os.environ) -> Meeting:
    """How to meet at `where`: by TLS when the environment has a secret, else by Unix sockets.

    With TLS each member listens on one port more: any, or the first free one of FANWISE_PORTS, a number or a range like
    "29600-29700". Raises `SecretError` for another host's address without a secret, and for a secret that is too weak.
    """
    secret = read_secret(environment) if where.port else None
    if secret is not None:
        from .entrance_tls import TlsMeeting

        return TlsMeeting(where, secret, ports=environment.get("FANWISE_PORTS", 0))
    if where.are_all_here:
        return LocalMeeting(where)
    unknown = [place.host for place in where.places if not is_known(place.host)]
    if unknown:
        raise SecretError(
            f"{where.url} is taken for an address of another host, which needs a secret: no host of the name "
            f"{', '.join(unknown)} is known here. Is it spelled as it should be?"
        )
    has = "has" if where.others else "is"
    raise SecretError(
        f"{where.url} {has} an address of another host, and there is no secret. Without one anybody who reaches that "
        f"port could run code here.\nMake one with `fanwise secret`, and give it to all workers in FANWISE_SECRET, or "
        f"in a file named by FANWISE_SECRET_FILE; or, when all workers run on this host, use 127.0.0.1."
    )

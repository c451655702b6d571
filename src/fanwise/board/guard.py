"""Access control of the board: decides from the address and the headers of a request whether it is answered.

    RequestInfo --Guard.refusal--> None, or the HTTP status and the text of the refusal

| threat | defense |
| --- | --- |
| other users and machines | every request needs the token or the session cookie (else 401) |
| other sites in the user's browser | no CORS headers; commands must be JSON and come from this origin (else 415, 403) |
| DNS rebinding | `Host` must be an address or a known name of the board (else 421) |

The token is part of the printed address. The answer to the first request sets a session cookie, which scripts cannot
read and other sites do not send, so that the token does not remain in the address bar.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, final

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", re.ASCII)


@final
@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Method, headers, session cookie and token of a request. Missing ones are None."""

    method: str
    host: str | None
    origin: str | None = None
    fetch_site: str | None = None
    content_type: str | None = None
    cookie: str | None = None
    token: str | None = None


class Refusal(NamedTuple):
    """The HTTP status and the text of an answer."""

    status: int
    text: str


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """The access rules of one board.

    Args:
        token: the secret in the printed address.
        session: the secret in the cookie of browsers that have presented the token.
        names: host names of the board in lower case, in addition to localhost and IP addresses.
    """

    token: str
    session: str
    names: frozenset[str] = frozenset()

    def refusal(self, request: RequestInfo) -> Refusal | None:
        """Return None if the request may be answered."""
        name = host_name(request.host)
        is_address = name is not None and (":" in name or _IPV4.fullmatch(name))  # safe from DNS rebinding
        if not (is_address or name in LOOPBACK or name in self.names):
            return Refusal(
                421, "The board does not answer to this name. Open it by its address, or start it with --host NAME."
            )
        if not (self.has_token(request) or _matches(request.cookie, self.session)):
            return Refusal(401, "The board needs its token: open the address that was printed when it started.")
        if request.method in ("GET", "HEAD"):
            return None
        if request.method != "POST":
            return Refusal(405, "The board answers GET, and POST for commands.")
        if (request.content_type or "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "A command must be sent as application/json.")
        origin_host = None if request.origin is None else request.origin.partition("://")[2].lower()
        is_same_origin = origin_host in (None, (request.host or "").lower())
        if not is_same_origin or request.fetch_site not in (None, "same-origin"):
            return Refusal(403, "Commands are accepted only from the board's own pages.")
        return None

    def has_token(self, request: RequestInfo) -> bool:
        """Return True if the address of the request contains the token."""
        return _matches(request.token, self.token)


def host_name(host: str | None) -> str | None:
    """Return the name in a `Host` header in lower case, or None if the header is malformed."""
    match = _HOST.fullmatch(host or "")
    return None if match is None else match["name"].strip("[]").lower().removesuffix(".")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to the host."""
    return host in LOOPBACK or (_IPV4.fullmatch(host) is not None and host.startswith("127."))


def _matches(text: str | None, secret: str) -> bool:
    return text is not None and secret != "" and hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())

"""Who may see the board and who may act on it: decided from what a request says of itself. Quiet.

    Asked(method, host, origin, ...) --Guard.refusal--> None, or the status and the sentence that the answer is

Three dangers, and what is held against each:

    another machine, another user    a board that others can reach asks for a token; without it the answer is 401
    a page of another site, in the   reading: no header lets other origins read; acting: only as JSON, and only when
    browser of somebody who may      `Origin` and `Sec-Fetch-Site` are of this site
    a foreign name that suddenly     `Host` must be a name of this board or an address: a browser that was lured by
    means this machine (rebinding)   rebinding says the foreign name there

A token travels once, in the address that is printed. Then the browser holds a cookie, which no script can read and
which is not sent along by other sites.
"""

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, final

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", re.ASCII)


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of itself. A header that it lacks is None. `token`: the one in its address."""

    method: str
    host: str | None
    origin: str | None = None
    fetch_site: str | None = None
    content_type: str | None = None
    cookie: str | None = None
    token: str | None = None


class Refusal(NamedTuple):
    """HTTP status, and the sentence that is all of the answer."""

    status: int
    text: str


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """See the module.

    Args:
        names: by which the board is known beside localhost and addresses; in small letters.
        token: None: whoever reaches the board may see it and act.
        session: what the cookie of a browser says that has shown the token. As secret as that.
    """

    names: frozenset[str] = frozenset()
    token: str | None = None
    session: str = ""

    def refusal(self, asked: Asked) -> Refusal | None:
        """None: the request may be answered."""
        name = host_name(asked.host)
        if name is None or not (name in LOOPBACK or name in self.names or _is_address(name)):
            return Refusal(
                421,
                "This board does not answer to that name. Open it by its address, or start it with --host NAME.",
            )
        if self.token is not None and not (self.brings_token(asked) or _same(asked.cookie, self.session)):
            return Refusal(401, "This board needs its token: open the address that was printed when it was started.")
        if asked.method in _SAFE_METHODS:
            return None
        if asked.method != "POST":
            return Refusal(405, "This board is read with GET and steered with POST.")
        if (asked.content_type or "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "A command is sent as application/json.")
        is_own = asked.origin is None or asked.origin.partition("://")[2].lower() == (asked.host or "").lower()
        if not is_own or asked.fetch_site not in (None, "same-origin"):
            return Refusal(403, "A command must come from a page of this board.")
        return None

    def brings_token(self, asked: Asked) -> bool:
        """Whether the token stands in the request's address: then its browser is given the cookie."""
        return self.token is not None and _same(asked.token, self.token)


def host_name(host: str | None) -> str | None:
    """The name or address in a Host header, in small letters, without port and brackets; None for anything else."""
    found = None if host is None else _HOST.fullmatch(host)
    return None if found is None else found["name"].strip("[]").lower().removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    return host in LOOPBACK or (_IPV4.fullmatch(host) is not None and host.startswith("127."))


def headers(*, styles: str = "") -> Mapping[str, str]:
    """What every answer says to the browser: nothing from elsewhere, in no frame, nothing guessed, nothing told on."""
    return {
        "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'{styles}",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def known_names(names: Iterable[str]) -> frozenset[str]:
    """As `Guard` wants them."""
    return frozenset(name.lower() for name in names if name)


def _is_address(name: str) -> bool:
    """An address is what it says: only names can be made to mean another machine."""
    return ":" in name or _IPV4.fullmatch(name) is not None


def _same(said: str | None, secret: str) -> bool:
    return said is not None and secret != "" and hmac.compare_digest(said.encode("utf-8", "replace"), secret.encode())

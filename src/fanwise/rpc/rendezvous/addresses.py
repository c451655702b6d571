"""Where the workers of a group meet: what `env://`, `tcp://host:port` and `file:///path` mean here.

    env://                             MASTER_ADDR, MASTER_PORT, and where not given: RANK, WORLD_SIZE
    tcp://host:port?rank=&world_size=
    tcp://host:port,other:port         several: newcomers find the group while a worker on one of these hosts lives
                                       (MASTER_ADDR=host,other does the same, with one port for all)
    file:///path?rank=&world_size=     this host only; nothing is written to the path

An address of this host without a secret is a Unix socket that only this user can reach (`entrance.py`), named after the
address: no port is opened. With a secret it is TLS on that port. An address of another host needs a secret.
Parses and names; opens nothing.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Place:
    """An address, and whether it is one of this host."""

    host: str
    port: int
    is_here: bool


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A place to meet, or several.

    Attributes:
        url: as the user wrote it, with the address where that came from the environment; for messages.
        name: the same text for all who mean the same place on this host.
        host, port: where rank 0 listens between hosts; "" and 0 for `file://`.
        is_here: whether the address is one of this host.
        others: where the group may be found too, in this order.
    """

    url: str
    name: str
    host: str = ""
    port: int = 0
    is_here: bool = True
    others: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All addresses, in their order."""
        return (Place(self.host, self.port, self.is_here), *self.others)

    @property
    def is_any_here(self) -> bool:
        """Whether a worker of this host may let others in."""
        return any(place.is_here for place in self.places)

    @property
    def are_all_here(self) -> bool:
        """Whether no other host is named."""
        return all(place.is_here for place in self.places)


def parse(
    url: str = "env://",
    *,
    rank: int = -1,
    world_size: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Rendezvous, int, int | None]:
    """The place, this worker's rank, and the world size or None for a dynamic group.

    `rank` -1 and `world_size` None stand for what the address or the environment says. Raises ValueError when the rank
    is nowhere, when the same thing is said twice in different ways, or for an address that is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("env", "tcp", "file"):
        raise ValueError(f"init_method must begin with env://, tcp:// or file://, got {url!r}")
    said = _said(parts.scheme, parts.query, environment)
    rank = _one(parts.scheme, "rank", None if rank == -1 else rank, said)
    size = None if world_size is None and "world_size" not in said else _one(
        parts.scheme, "world_size", world_size, said
    )  # fmt: skip
    if parts.scheme == "file":
        return _file(url, parts.netloc + parts.path), rank, size
    if parts.scheme == "tcp":
        return _tcp(url, [_split(url, address) for address in parts.netloc.split(",")]), rank, size
    host, port = (_variable(name, environment) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not port.isdecimal():
        raise _wrong("env", f"environment variable MASTER_PORT must be a port number, got {port!r}")
    where = f"env:// (MASTER_ADDR={host}, MASTER_PORT={port})"
    return _tcp(where, [(one.strip(), int(port)) for one in host.split(",")]), rank, size


def _said(scheme: str, query: str, environment: Mapping[str, str]) -> dict[str, int]:
    """Rank and world size as the address has them, or the environment where that is asked."""
    texts = {key: value for key, value in parse_qsl(query) if key in ("rank", "world_size")}
    if scheme == "env":
        texts = {
            key: environment[key.upper()] for key in ("rank", "world_size") if environment.get(key.upper())
        } | texts
    said = {}
    for key, text in texts.items():
        try:
            said[key] = int(text)
        except ValueError:
            raise _wrong(scheme, f"{key} must be a whole number, got {text!r}") from None
    return {key: number for key, number in said.items() if number != -1}


def _one(scheme: str, key: str, given: int | None, said: Mapping[str, int]) -> int:
    """What the caller gave, else what was said. What the environment says may differ: the caller knows better."""
    if given is not None:
        if scheme != "env" and said.get(key, given) != given:
            raise _wrong(scheme, f"{key}={given} was given, but the address says {key}={said[key]}")
        return given
    if key in said:
        return said[key]
    if scheme == "env":
        raise _wrong(scheme, f"environment variable {key.upper()} expected, but not set; or give {key}= to init_rpc")
    raise _wrong(scheme, f"{key} parameter missing; give {key}= to init_rpc, or ?{key}= in the address")


def _variable(name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name)
    if not value:
        raise _wrong("env", f"environment variable {name} expected, but not set; rank 0's host and a free port of it")
    return value


def _wrong(scheme: str, text: str) -> ValueError:
    return ValueError(f"{scheme}:// rendezvous: {text}.")


def _file(url: str, path: str) -> Rendezvous:
    if not path:
        raise _wrong("file", "path missing")
    return Rendezvous(url, f"file:{Path(path).resolve()}")


def _split(url: str, address: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(f"//{address}")
        return parts.hostname, parts.port
    except ValueError as error:
        raise _wrong("tcp", f"{address!r} in {url!r} is no host:port: {error}") from None


def _tcp(url: str, addresses: Sequence[tuple[str | None, int | None]]) -> Rendezvous:
    scheme = url.partition(":")[0]
    places = []
    for host, port in addresses:
        if not host:
            raise _wrong(scheme, f"host name missing in {url!r}")
        if port is None or not 0 <= port <= _PORT_MAX:
            raise _wrong(scheme, f"port number missing in {url!r}")
        places.append(Place(host, port, is_address_of_this_host(host)))
    first, *others = places
    name = f"port:{first.port}" if first.is_here else f"{first.host}:{first.port}"
    return Rendezvous(url, name, first.host, first.port, first.is_here, tuple(others))


def is_known(host: str) -> bool:
    """Whether the name `host` has an address at all. May ask a name server."""
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM))
    except OSError:
        return False


def is_address_of_this_host(host: str) -> bool:
    """Whether all addresses of the name `host` belong to this host. May ask a name server."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return all(_can_bind(family, address) for family, _type, _protocol, _name, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    """The kernel binds a socket only to addresses of its own."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True

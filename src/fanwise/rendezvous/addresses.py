"""Addresses at which a group meets: the meaning of `env://`, `tcp://host:port` and `file:///path`.

    env://                             MASTER_ADDR, MASTER_PORT; RANK and WORLD_SIZE unless they are given
    tcp://host:port?rank=&world_size=
    file:///path?rank=&world_size=     this host only; nothing is written to the path

An address of this host without a secret is a Unix socket of this user (`unix.py`), named after the address: no port is
opened. With a secret it is TLS at that port. An address of another host needs a secret.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """An address at which a group meets.

    Attributes:
        url: as the user wrote it, with the values of the environment, for messages.
        name: equal for all spellings of the same address on this host.
        host, port: where rank 0 listens; "" and 0 for `file://`.
        is_here: True for an address of this host.
    """

    url: str
    name: str
    host: str = ""
    port: int = 0
    is_here: bool = True


def parse(
    url: str = "env://",
    *,
    rank: int = -1,
    world_size: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[Address, int, int | None]:
    """Return the address, the rank of this worker, and the world size or None for a dynamic group.

    `rank` -1 and `world_size` None are replaced by the values of the address or the environment. Raises ValueError for
    a missing rank, for two different values, and for an invalid address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("env", "tcp", "file"):
        raise ValueError(f"init_method must begin with env://, tcp:// or file://, got {url!r}")
    defaults = _defaults(parts.scheme, parts.query, environment)
    rank = _setting(parts.scheme, "rank", None if rank == -1 else rank, defaults)
    if world_size is not None or "world_size" in defaults:
        world_size = _setting(parts.scheme, "world_size", world_size, defaults)
    if parts.scheme == "file":
        path = parts.netloc + parts.path
        if not path:
            raise _invalid("file", "path missing")
        return Address(url, f"file:{Path(path).resolve()}"), rank, world_size
    if parts.scheme == "tcp":
        return _tcp_address(url, *_split(url, parts.netloc)), rank, world_size
    host, port = (_variable(name, environment) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not port.isdecimal():
        raise _invalid("env", f"environment variable MASTER_PORT must be a port number, got {port!r}")
    return _tcp_address(f"env:// (MASTER_ADDR={host}, MASTER_PORT={port})", host.strip(), int(port)), rank, world_size


def _defaults(scheme: str, query: str, environment: Mapping[str, str]) -> dict[str, int]:
    """Return rank and world size of the address, and for env:// of the environment."""
    texts = {key: value for key, value in parse_qsl(query) if key in ("rank", "world_size")}
    if scheme == "env":
        variables = {key: environment.get(key.upper(), "") for key in ("rank", "world_size")}
        texts = {key: text for key, text in variables.items() if text} | texts
    numbers = {}
    for key, text in texts.items():
        try:
            numbers[key] = int(text)
        except ValueError:
            raise _invalid(scheme, f"{key} must be a whole number, got {text!r}") from None
    return {key: number for key, number in numbers.items() if number != -1}


def _setting(scheme: str, key: str, value: int | None, defaults: Mapping[str, int]) -> int:
    """Return the argument of the caller, or else the default. An argument may differ from the environment."""
    if value is not None:
        if scheme != "env" and defaults.get(key, value) != value:
            raise _invalid(scheme, f"{key}={value} was given, but the address says {key}={defaults[key]}")
        return value
    if key in defaults:
        return defaults[key]
    if scheme == "env":
        raise _invalid(scheme, f"environment variable {key.upper()} expected, but not set; or give {key}= to init_rpc")
    raise _invalid(scheme, f"{key} parameter missing; give {key}= to init_rpc, or ?{key}= in the address")


def _variable(name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name)
    if not value:
        raise _invalid("env", f"environment variable {name} expected, but not set; rank 0's host and a free port of it")
    return value


def _invalid(scheme: str, text: str) -> ValueError:
    return ValueError(f"{scheme}:// rendezvous: {text}.")


def _split(url: str, location: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(f"//{location}")
        return parts.hostname, parts.port
    except ValueError as error:
        raise _invalid("tcp", f"{location!r} in {url!r} is no host:port: {error}") from None


def _tcp_address(url: str, host: str | None, port: int | None) -> Address:
    scheme = url.partition(":")[0]
    if not host:
        raise _invalid(scheme, f"host name missing in {url!r}")
    if "," in host:
        raise _invalid(scheme, f"one host expected, that of rank 0, got {host!r}")
    if port is None or not 0 <= port <= _PORT_MAX:
        raise _invalid(scheme, f"port number missing in {url!r}")
    is_here = is_address_of_this_host(host)
    return Address(url, f"port:{port}" if is_here else f"{host}:{port}", host, port, is_here)


def is_known(host: str) -> bool:
    """Return True if the name `host` has an address. May query a name server."""
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM))
    except OSError:
        return False


def is_address_of_this_host(host: str) -> bool:
    """Return True if all addresses of the name `host` belong to this host. May query a name server."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return all(_can_bind(family, address) for family, _type, _protocol, _name, address in addresses)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    """The kernel binds sockets to addresses of its own host only."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def address_towards(host: str, port: int = 0) -> str:
    """Return the address of this host on the route to `host`. Sends nothing."""
    family, kind, protocol, _name, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])

"""Addresses, ports and options of TCP sockets. Nothing here authenticates.

A listener is bound to one address of this machine, never to all interfaces. Options that the operating system does not
have are skipped. Looking up a name blocks as long as the system takes.
"""

import errno
import ipaddress
import os
import socket

_PROBE_EVERY_S = 1

Address = tuple[str, int]


def ports_of(spec: int | str) -> range:
    """Parse `29600`, `"29600"`, `"29600-29700"` (both ends included) or `0` (any free port)."""
    first, dash, last = str(spec).partition("-")
    try:
        ports = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < (1 if dash else 0) or ports[-1] > 65535:
        raise ValueError(f"not a port: {spec!r}. Write a number below 65536, 0 for any, or a range like '29600-29700'.")
    return ports


def open_listener(host: str, ports: range) -> socket.socket:
    """Return a non-blocking listening socket. Raises as `TcpListener`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, ports[0], type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OSError(error.errno, f"{host!r} is no address of this machine: {error.strerror}") from error
    if not host or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_unspecified:
        raise ValueError(
            f"{host!r} means all interfaces of this machine. Name the one that the other hosts reach, by its address; "
            f"'127.0.0.1' is for this host alone."
        )
    for port in ports:
        listener = socket.socket(family, kind, protocol)
        try:
            _bind(listener, (address[0], port, *address[2:]))
            return listener
        except BaseException as error:
            listener.close()
            if not (isinstance(error, OSError) and error.errno == errno.EADDRINUSE):
                raise
    raise OSError(errno.EADDRINUSE, f"no port of {ports[0]}-{ports[-1]} is free at {host}")


def _bind(listener: socket.socket, address: tuple[object, ...]) -> None:
    if os.name == "posix":  # on other systems it would allow two listeners at one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    listener.listen(socket.SOMAXCONN)
    listener.setblocking(False)


def address_of(address: tuple[object, ...]) -> Address:
    host, port = address[:2]
    assert isinstance(host, str) and isinstance(port, int), "as in every address of TCP"
    return host, port


def text_of(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def set_options(connection: socket.socket, silence_s: float) -> None:
    """Send small packets at once, and let the kernel probe an idle peer every second, for `tcp_watch`.

    Without `tcp_watch`, the kernel ends the connection of an idle peer a little later than `silence_s`.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": _PROBE_EVERY_S,
        "TCP_KEEPALIVE": _PROBE_EVERY_S,  # the name on macOS
        "TCP_KEEPINTVL": _PROBE_EVERY_S,
        "TCP_KEEPCNT": max(1, round(silence_s / _PROBE_EVERY_S) + 1),
    }
    for name, value in wanted.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

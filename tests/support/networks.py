"""Two hosts on one machine: network namespaces with a cable between them, which can be cut.

    with two_hosts() as (a, b):      # or two_hosts(Cable(delay_s=0.005, loss=0.01))
        with a.entered():            # sockets that this thread opens now are the host's
            listener = TcpListener(hub, a.address, 0, ...)
        b.cut()                      # nothing comes through; without a `Cable`, both see that it was pulled out at b
        b.mend()

Linux, with iproute2 and the right to make namespaces (root). `why_not()` says what is missing. All that is made has a
name of its own, and is removed at the end, or by the next who comes when this process was killed. Processes enter with
`enter`, before they open sockets or start threads.
"""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from typing import IO

from cables import CUT, MENDED, Cable
from network_namespaces import set_namespace

_OWN = "/proc/thread-self/ns/net"
_numbers = itertools.count()


def _ip(*args: str) -> str:
    return _run("ip", *args)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _remove_stale() -> None:
    """What a killed process left: the names tell whose they are."""
    for line in _ip("netns", "list").splitlines():
        owner, *rest = line.split()[0].removeprefix("fanwise-").split("-")
        if line.startswith("fanwise-") and rest and owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):  # another has just done so
                _ip("netns", "delete", line.split()[0])


def why_not(*, with_cable: bool = False) -> str:
    """Why this machine cannot play two hosts; empty when it can. `with_cable`: of their own making, as `Cable`."""
    if with_cable and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no TUN devices here: /dev/net/tun is not to be had"
    name = f"fanwise-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
    except OSError as error:  # no right to, or no `ip`
        return f"no network namespaces here: {error}"
    try:
        _ip("-n", name, "link", "add", "c0", "type", "veth", "peer", "name", "c1")
    except OSError as error:
        return f"no virtual cables here: {error}"
    finally:
        _ip("netns", "delete", name)
    return ""


class PlayedHost:
    """One of the two. `address` is its own, `name` that of its namespace.

    `orders`: to the process that plays its cable, if one does.
    """

    def __init__(self, name: str, address: str, orders: IO[bytes] | None = None) -> None:
        self.name = name
        self.address = address
        self._orders = orders

    def enter(self) -> None:
        """The calling thread, and what it starts, is on this host from now on."""
        set_namespace(f"/run/netns/{self.name}")

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be on this host for a while; this thread only."""
        before = os.open(_OWN, os.O_RDONLY)
        try:
            self.enter()
            try:
                yield
            finally:
                set_namespace(f"/proc/self/fd/{before}")
        finally:
            os.close(before)

    def ip(self, *args: str) -> None:
        """Run `ip` with these arguments on this host. Raises OSError with what it said."""
        _ip("-n", self.name, *args)

    def tc(self, *args: str) -> None:
        """Run `tc` with these arguments on this host: delay, loss, a slower cable. Raises OSError with what it said."""
        _run("tc", "-n", self.name, *args)

    def cut(self) -> None:
        """Nothing comes through the cable from now on."""
        if self._orders is None:
            self.ip("link", "set", "cable", "down")
        else:
            self._orders.write(CUT)

    def mend(self) -> None:
        """It does again."""
        if self._orders is None:
            self.ip("link", "set", "cable", "up")
        else:
            self._orders.write(MENDED)


@contextlib.contextmanager
def hosts_and_others(size: int) -> Iterator[list[tuple[PlayedHost, PlayedHost]]]:
    """Hosts without a way to each other, each with a second one in the place of all others.

    Of each pair the first is the host; the second is at the other end of its cable, and has the addresses of all other
    hosts. Whoever listens there gets the connections that the host makes to them, and may hand them on, or not.
    """
    number = f"fanwise-{os.getpid()}-{next(_numbers)}"
    addresses = [f"10.91.0.{place + 1}" for place in range(size)]
    pairs = [
        (PlayedHost(f"{number}-h{place}", address), PlayedHost(f"{number}-o{place}", ""))
        for place, address in enumerate(addresses)
    ]
    _remove_stale()
    try:
        for host, others in pairs:
            for one in (host, others):
                _ip("netns", "add", one.name)
                one.ip("link", "set", "lo", "up")
            host.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", others.name)
            for one, its in ((host, [host.address]), (others, [a for a in addresses if a != host.address])):
                for address in its:
                    one.ip("address", "add", f"{address}/24", "dev", "cable")
                one.mend()
        yield pairs
    finally:
        for one in itertools.chain(*pairs):
            with contextlib.suppress(OSError):  # those after one that could not be made
                _ip("netns", "delete", one.name)


@contextlib.contextmanager
def two_hosts(cable: Cable | None = None) -> Iterator[tuple[PlayedHost, PlayedHost]]:
    """Two hosts with a cable between them; by default one of the kernel's, which loses and delays nothing.

    Raises OSError where `why_not` has an answer.
    """
    number = f"fanwise-{os.getpid()}-{next(_numbers)}"
    names = f"{number}-a", f"{number}-b"
    _remove_stale()
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        orders = None if cable is None else stack.enter_context(_played(cable, names))
        a, b = PlayedHost(names[0], "10.91.0.1", orders), PlayedHost(names[1], "10.91.0.2", orders)
        if cable is None:
            a.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b.name)
        for host in (a, b):
            host.ip("link", "set", "lo", "up")
            if cable is not None:
                host.ip("link", "set", "cable", "mtu", str(cable.mtu))
            host.ip("address", "add", f"{host.address}/24", "dev", "cable")
            host.ip("link", "set", "cable", "up")
        yield a, b


@contextlib.contextmanager
def _played(cable: Cable, namespaces: tuple[str, str]) -> Iterator[IO[bytes]]:
    """By a process, which has made both ends; what it is told."""
    command, pipe = cable.command(namespaces), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        try:
            if not process.stdout.readline():
                raise OSError(f"no cable between {' and '.join(namespaces)}: its process ended with {process.wait()}")
            yield process.stdin
        finally:
            process.stdin.close()

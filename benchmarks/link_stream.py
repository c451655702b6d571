"""Big arrays over one link between hosts, encrypted, on the loopback, beside `ssl` and plain TCP.

    this process --array of 64 MiB--> another process, which reads every page of it and answers

    link between hosts  fanwise.links.transports.tcp: frames over TLS 1.3
    ssl alone           Python's ssl on a blocking socket, the same certificates, memory that is used again; no frames
    TCP alone           the same without encryption
    link, one host      fanwise.links.transports.unix: through shared memory, for comparison

The ways take turns in each round, so that all meet the same load. CPU seconds for each GB are printed for both sides:
where both have a core of their own, the greater of the two bounds the rate; on a busy machine they say more than it.

    python benchmarks/link_stream.py [--rounds 5] [--quick]
"""

import argparse
import multiprocessing
import os
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from measuring import finish, machine, say, spread, table

from fanwise.links.frames import Limits
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Request
from fanwise.links.security.certificates import Identity
from fanwise.links.shared_secret import new_secret
from fanwise.links.transports.tcp import TcpListener, dial_tcp
from fanwise.links.transports.unix import UnixListener, dial, new_key

ARRAY_BYTES = 64 << 20
LIMITS = Limits(frame_bytes=1 << 30)
HOST = "127.0.0.1"
SECRET, KEY = new_secret(), new_key()
_CPU = struct.Struct("d")

Send = Callable[[np.ndarray], float]  # until it was read; the receiver's CPU seconds so far


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one way."""

    gb_per_s: float
    sender_cpu_s_per_gb: float
    receiver_cpu_s_per_gb: float


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    times = os.times()
    return times.user + times.system


def read_pages(array: np.ndarray) -> None:
    """Touch all of it, at the cost of next to nothing."""
    array[::512].sum()


# -- links -------------------------------------------------------------------------------------------------------------


def answer(request: Request) -> None:
    """The receiver's handler."""
    read_pages(request.args[0])
    request.answer(cpu_s())


def arrive(link: Link) -> None:
    """The receiver's new link."""
    link.handler = answer


def serve_tls_link(pipe: Connection, _folder: Path) -> None:
    hub = Hub(name="receiver")
    pipe.send(TcpListener(hub, HOST, 0, Identity(SECRET), on_link=arrive, limits=LIMITS).port)
    hub.run(lambda: False)


def serve_unix_link(pipe: Connection, folder: Path) -> None:
    hub = Hub(name="receiver")
    UnixListener(hub, folder / "s", KEY, on_link=arrive, limits=LIMITS)
    pipe.send(0)
    hub.run(lambda: False)


def through_link(link: Link) -> Send:
    link.open()
    return lambda array: float(link.ask("take", array))


def dial_tls_link(hub: Hub, port: int, _folder: Path) -> Send:
    return through_link(dial_tcp(hub, HOST, port, Identity(SECRET), limits=LIMITS))


def dial_unix_link(hub: Hub, _port: int, folder: Path) -> Send:
    return through_link(dial(hub, folder / "s", KEY, limits=LIMITS))


# -- bare sockets ------------------------------------------------------------------------------------------------------


def serve_socket(pipe: Connection, context: ssl.SSLContext | None) -> None:
    with socket.create_server((HOST, 0)) as listener:
        pipe.send(listener.getsockname()[1])
        connection = listener.accept()[0]
    if context is not None:
        connection = context.wrap_socket(connection)
    array = np.ones(ARRAY_BYTES // 8)
    view = array.view(np.uint8).data
    while True:
        size = 0
        while size < len(view):
            more = connection.recv_into(view[size:])
            if more == 0:
                return
            size += more
        read_pages(array)
        connection.sendall(_CPU.pack(cpu_s()))


def dial_socket(port: int, context: ssl.SSLContext | None) -> Send:
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)

    def send(array: np.ndarray) -> float:
        view = array.view(np.uint8).data
        for at in range(0, len(view), 1 << 17):
            connection.sendall(view[at : at + (1 << 17)])
        return float(_CPU.unpack(connection.recv(_CPU.size))[0])

    return send


# -- all of them -------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Callable[[Connection, Path], None], Callable[[Hub, int, Path], Send]]] = {
    "link between hosts": (serve_tls_link, dial_tls_link),
    "ssl alone": (
        lambda pipe, folder: serve_socket(pipe, Identity(SECRET).context("listener")),
        lambda hub, port, folder: dial_socket(port, Identity(SECRET).context("dialer")),
    ),
    "TCP alone": (
        lambda pipe, folder: serve_socket(pipe, None),
        lambda hub, port, folder: dial_socket(port, None),
    ),
    "link, one host": (serve_unix_link, dial_unix_link),
}


def measure(send: Send, arrays: int) -> Round:
    """Send so many new arrays, one after the other."""
    array = np.random.default_rng(0).random(ARRAY_BYTES // 8)
    receiver_s = send(array)  # warm
    sender_s, began_s = cpu_s(), time.perf_counter()
    for _ in range(arrays):
        received_s = send(array)
    took_s, gb = time.perf_counter() - began_s, arrays * ARRAY_BYTES / 1e9
    return Round(gb / took_s, (cpu_s() - sender_s) / gb, (received_s - receiver_s) / gb)


def main() -> None:
    parser = argparse.ArgumentParser(description="The rate of big arrays over a link between hosts.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few arrays")
    options = parser.parse_args()
    rounds, arrays = (1, 4) if options.quick else (options.rounds, 16)
    facts = machine()
    processes = multiprocessing.get_context("fork")
    measured: dict[str, list[Round]] = {way: [] for way in WAYS}
    children, sends = [], {}
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        for way, (serve, _dial) in WAYS.items():
            mine, theirs = processes.Pipe()
            child = processes.Process(target=serve, args=(theirs, Path(folder)), daemon=True)
            child.start()
            children.append((way, child, int(mine.recv())))
        hub = Hub(name="sender")
        for way, _child, port in children:
            sends[way] = WAYS[way][1](hub, port, Path(folder))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for way, send in sends.items():
                measured[way].append(measure(send, arrays))
        hub.close()
        for _way, child, _port in children:
            child.terminate()
            child.join()
    rows = [
        [
            way,
            spread([one.gb_per_s for one in done]).shown(2),
            spread([one.sender_cpu_s_per_gb for one in done]).shown(2),
            spread([one.receiver_cpu_s_per_gb for one in done]).shown(2),
        ]
        for way, done in measured.items()
    ]
    header = ["64 MiB arrays, one at a time", "GB/s", "sender, CPU s/GB", "receiver, CPU s/GB"]
    payload = {way: [asdict(one) for one in done] for way, done in measured.items()}
    finish("link_stream", [table(header, rows)], payload, facts=facts)


if __name__ == "__main__":
    main()

"""A TCP proxy on the loopback that resets its connections now and then, in the middle of what they carry.

    with cutting_proxy(port, seed=1, bytes_between=(2_000, 40_000)) as proxy:
        ...   # connect to proxy.port
        proxy.num_cuts

A connection is reset after a random number of forwarded bytes. A part of the last piece is still forwarded, and both
sides get a RST, which drops what lies in the sockets.
"""

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator

_PIECE_BYTES = 1 << 14
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: closing sends a RST


class CuttingProxy:
    """See the module.

    Attributes:
        num_cuts: connections that were reset so far.
        num_cuts_max: after so many the proxy only forwards.
    """

    def __init__(self, target_port: int, *, seed: int, bytes_between: tuple[int, int], num_cuts_max: int) -> None:
        self.num_cuts = 0
        self.num_cuts_max = num_cuts_max
        self._target_port = target_port
        self._chance = random.Random(f"{seed}/cuts")
        self._between = bytes_between
        self._left = self._chance.randint(*bytes_between)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                dialer, _ = self._listener.accept()
            except OSError:
                return
            try:
                target = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                dialer.close()
                continue
            self._sockets |= {dialer, target}
            for pair in ((dialer, target), (target, dialer)):
                self._threads.append(threading.Thread(target=self._forward, args=pair))
                self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                if self._is_cut_due(len(data)):
                    sink.sendall(data[: self._chance.randrange(len(data))])
                    for one in (source, sink):
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RD)  # wakes the other thread
        with self._lock:
            is_last = not {source, sink} <= self._sockets
            self._sockets.discard(source)
        if is_last:  # neither thread uses them any more
            source.close()
            sink.close()

    def _is_cut_due(self, size: int) -> bool:
        with self._lock:
            self._left -= size
            if self._left > 0 or self.num_cuts >= self.num_cuts_max:
                return False
            self.num_cuts += 1
            self._left = self._chance.randint(*self._between)
            return True


@contextlib.contextmanager
def cutting_proxy(
    target_port: int, *, seed: int, bytes_between: tuple[int, int], num_cuts_max: int = 1 << 30
) -> Iterator[CuttingProxy]:
    """A proxy to `target_port` of the loopback. See the module."""
    proxy = CuttingProxy(target_port, seed=seed, bytes_between=bytes_between, num_cuts_max=num_cuts_max)
    try:
        yield proxy
    finally:
        proxy.close()

"""A device between hosts that resets connections now and then, in the middle of whatever they carry.

    with hosts_behind_resets(3, [29500, 29600], seed=1, bytes_between=(2_000, 40_000)) as (hosts, device):
        ...                              # processes that `enter` the hosts, and connect to each other's addresses
        device.num_resets

Each host sees the others' addresses at the end of its own cable; there the device listens, and hands on what comes to
the host that is meant. After so many bytes, drawn from the seed, the connection that carries the last of them is reset:
a part of what was just read is still handed on, and both sides get a RST at once, which drops what lies in the sockets.
Both sides live, and neither has done anything.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator, Sequence

from networks import PlayedHost, hosts_and_others

_CHUNK_BYTES = 1 << 14
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER, 0 s: closing sends a RST


class ResettingDevice:
    """See the module.

    Args:
        bytes_between: between two resets; drawn anew each time.
        num_resets_max: after so many it only hands on.

    Attributes:
        num_resets: how many connections were reset so far.
    """

    def __init__(self, *, seed: int, bytes_between: tuple[int, int], num_resets_max: int) -> None:
        self.num_resets = 0
        self._chance = random.Random(f"{seed}/resets")
        self._between = bytes_between
        self._left = self._chance.randint(*bytes_between)
        self._num_resets_max = num_resets_max
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="resetting-device")
        self._thread.start()

    def listen(self, others: PlayedHost, host: PlayedHost, port: int) -> None:
        """What the neighbour of `others` sends to `port` of `host` comes here, and goes on to there."""
        with others.entered():
            listener = socket.create_server((host.address, port))

        def pass_on(one: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._pass_on(host, port, one, back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: back.close())  # also of one that is cancelled before it has begun

        async def start() -> None:
            self._servers.append(await asyncio.start_server(pass_on, sock=listener))

        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def close(self) -> None:
        """End all connections, and the thread."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_forever()

    async def _pass_on(
        self, host: PlayedHost, port: int, one: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        try:
            with host.entered():
                connection = socket.create_connection((host.address, port))  # within one host: does not block
        except OSError:
            _reset(back)
            return
        try:
            other, there = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        ways = [asyncio.create_task(self._pump(one, there, back)), asyncio.create_task(self._pump(other, back, there))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            there.close()  # first: this task may be canceled while it waits
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        """One direction, to its end."""
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                self._left -= len(data)
                if self._left <= 0 and self.num_resets < self._num_resets_max:
                    self.num_resets += 1
                    self._left = self._chance.randint(*self._between)
                    sink.write(data[: self._chance.randrange(len(data))])
                    _reset(sink)
                    _reset(back)
                    return
                sink.write(data)
                await sink.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@contextlib.contextmanager
def hosts_behind_resets(
    size: int, ports: Sequence[int], *, seed: int, bytes_between: tuple[int, int], num_resets_max: int = 1 << 30
) -> Iterator[tuple[list[PlayedHost], ResettingDevice]]:
    """So many hosts, whose connections to each other's `ports` go through such a device. See the module.

    Raises OSError where `networks.why_not` has an answer.
    """
    with hosts_and_others(size) as pairs:
        device = ResettingDevice(seed=seed, bytes_between=bytes_between, num_resets_max=num_resets_max)
        try:
            hosts = [host for host, _ in pairs]
            for host, others in pairs:
                for other in hosts:
                    for port in ports if other is not host else ():
                        device.listen(others, other, port)
            yield hosts, device
        finally:
            device.close()

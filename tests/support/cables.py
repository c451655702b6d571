"""A cable between two played hosts with delay, loss and a rate of its own, where the kernel cannot make one (netem).

    host a: its packets --TUN device--> this process: lost, or held back for so long --TUN device--> host b

Started by `networks.two_hosts` as a process: `python tests/support/cables.py`. Both devices are in the namespaces of
their hosts; it ends when its standard input does. A packet is lost, or waits for those before it at `gbits` and then
`delay_s`; the way back has a queue of its own. What waits longer than `_QUEUE_S` for its turn is lost, as in a switch.
Every packet is lost from a CUT on standard input to a MENDED; the devices stay up, as behind a switch that fails.
"""

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

from network_namespaces import set_namespace

_TUNSETIFF = 0x400454CA
_TUN, _NO_INFO = 0x0001, 0x1000
_REQUEST = struct.Struct("16sH22x")
_PACKET_BYTES = 1 << 16
_QUEUE_S = 0.05
_PACKETS_A_TURN = 64
CUT, MENDED = b"c", b"m"


@dataclass(frozen=True, slots=True)
class Cable:
    """What is between two hosts, each way.

    Attributes:
        delay_s: that a packet takes. loss: the part of packets that are lost. gbits: a second, at most; 0: any.
        mtu: bytes of a packet at most. One of 1500 bytes costs as much processor time here as one of 65,000.
        seed: which packets are lost.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    gbits: float = 0.0
    mtu: int = 1500
    seed: int = 0

    def command(self, namespaces: tuple[str, str]) -> list[str]:
        """The process that plays it."""
        return [sys.executable, __file__, json.dumps([asdict(self), namespaces])]


class Direction:
    """The packets of one way (quiet). Times are those of one clock, in seconds."""

    def __init__(self, cable: Cable, seed: int) -> None:
        self._cable = cable
        self._chance = random.Random(seed)
        self.is_cut = False
        self._free_s = 0.0  # when the last packet has been sent
        self._under_way: deque[tuple[float, bytes]] = deque()

    def sent(self, packet: bytes, now_s: float) -> None:
        """A packet came from the host."""
        cable = self._cable
        begins_s = max(now_s, self._free_s)
        if self.is_cut or begins_s - now_s > _QUEUE_S or self._chance.random() < cable.loss:
            return
        self._free_s = begins_s + (len(packet) * 8e-9 / cable.gbits if cable.gbits else 0.0)
        self._under_way.append((self._free_s + cable.delay_s, packet))

    def due(self, now_s: float) -> bytes | None:
        """The next packet that has arrived by now."""
        return self._under_way.popleft()[1] if self._under_way and self._under_way[0][0] <= now_s else None

    @property
    def next_s(self) -> float | None:
        """When the next one arrives."""
        return self._under_way[0][0] if self._under_way else None


def device(namespace: str) -> int:
    """The end of the cable in this namespace: the descriptor of a device named `cable`."""
    set_namespace(f"/run/netns/{namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, _REQUEST.pack(b"cable", _TUN | _NO_INFO))
    return fd


def carry(cable: Cable, ends: tuple[int, int], orders: int) -> None:
    """Until `orders` is at its end."""
    ways = [(end, ends[1 - place], Direction(cable, cable.seed + place)) for place, end in enumerate(ends)]
    poll = select.poll()
    for fd in (*ends, orders):
        poll.register(fd, select.POLLIN)
    while True:
        arrivals = [way.next_s for _, _, way in ways if way.next_s is not None]
        wait_s = min(arrivals) - time.monotonic() if arrivals else 10.0
        readable = {fd for fd, _ in poll.poll(max(0.0, wait_s) * 1000)}
        if orders in readable:
            if not (order := os.read(orders, 1)):
                return
            for _, _, way in ways:
                way.is_cut = order == CUT
        for end, other, way in ways:
            if end in readable:
                _take(end, way)
            while (packet := way.due(time.monotonic())) is not None:
                _put(other, packet)


def _take(end: int, way: Direction) -> None:
    for _ in range(_PACKETS_A_TURN):
        try:
            packet = os.read(end, _PACKET_BYTES)
        except (BlockingIOError, OSError):  # no more; or the cable was pulled out
            return
        way.sent(packet, time.monotonic())


def _put(end: int, packet: bytes) -> None:
    try:
        os.write(end, packet)
    except OSError:
        pass  # the cable was pulled out there


def main() -> None:
    what, namespaces = json.loads(sys.argv[1])
    ends = device(namespaces[0]), device(namespaces[1])
    os.write(sys.stdout.fileno(), b"both ends are there\n")
    carry(Cable(**what), ends, sys.stdin.fileno())


if __name__ == "__main__":
    main()

"""A simulated network: many peers in one thread, virtual time, and all that goes wrong, from one seed.

    sim = Sim(seed, loss=0.2, doubles=0.3)
    sim.join("a", receive)                 receive(sender, message) is called when a message arrives
    sim.send("b", "a", "hello")            may be lost, come twice, come late, come before an earlier one
    sim.after(1.0, call)                   a timer
    sim.crash("a")                         it hears nothing more; what it has sent may still arrive
    sim.run(until_s=3600.0)                an hour, in milliseconds

An address is any hashable value; give each life of a worker its own. The same seed gives the same run. Knows nothing of
what is sent.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Hashable

from virtual_clock import VirtualClock

Address = Hashable
Receive = Callable[[Address, object], None]


class Sim:
    """See the module.

    Args:
        seed: of all chance in it.
        loss: share of messages that never arrive, 0 to 1.
        doubles: share of messages that arrive twice.
        delay_s: shortest and longest time a message takes. Each draws its own, so they overtake each other.
    """

    def __init__(
        self, seed: int, *, loss: float = 0.0, doubles: float = 0.0, delay_s: tuple[float, float] = (0.001, 0.1)
    ) -> None:
        self.clock = VirtualClock()
        self.chance = random.Random(f"{seed}/network")
        self.loss = loss
        self.doubles = doubles
        self.delay_s = delay_s
        self.happened: Counter[str] = Counter()
        self._peers: dict[Address, Receive] = {}
        self._cuts: set[frozenset[Address]] = set()
        self._ahead: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    # -- peers -----------------------------------------------------------------------------------------------------

    def join(self, address: Address, receive: Receive) -> None:
        """From now on messages to `address` arrive there."""
        if address in self._peers:
            raise ValueError(f"there is a peer at {address!r} already; crash it first, or take another address")
        self._peers[address] = receive

    def crash(self, address: Address) -> None:
        """Whoever is there hears nothing more. Its timers are its own affair; its messages go on."""
        self._peers.pop(address, None)
        self.happened["crash"] += 1

    def is_there(self, address: Address) -> bool:
        return address in self._peers

    def cut(self, one: Address, other: Address) -> None:
        """Nothing that would arrive from now on passes between these two, until `mend`. Reliable messages wait."""
        self._cuts.add(frozenset((one, other)))
        self.happened["cut"] += 1

    def mend(self, one: Address, other: Address) -> None:
        """Undo `cut`."""
        self._cuts.discard(frozenset((one, other)))

    # -- messages and timers ---------------------------------------------------------------------------------------

    def send(self, sender: Address, to: Address, message: object, *, reliably: bool = False) -> None:
        """Send once. `reliably`: never lost and never doubled while `to` is there, but as late as any other."""
        copies = 1
        if not reliably and self.chance.random() < self.loss:
            self.happened["lost"] += 1
            return
        if not reliably and self.chance.random() < self.doubles:
            self.happened["doubled"] += 1
            copies = 2
        for _ in range(copies):
            self._fly(sender, to, message, reliably)

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call()` when `delay_s` seconds have gone by."""
        heapq.heappush(self._ahead, (self.clock.now_s() + delay_s, next(self._numbers), call))

    def run(self, until_s: float) -> None:
        """Let everything happen that is due until the clock shows `until_s`."""
        while self._ahead and self._ahead[0][0] <= until_s:
            self.step()
        self.clock.advance(max(0.0, until_s - self.clock.now_s()))

    def step(self) -> bool:
        """Let the next thing happen; False when there is none."""
        if not self._ahead:
            return False
        when_s, _, call = heapq.heappop(self._ahead)
        self.clock.advance(max(0.0, when_s - self.clock.now_s()))
        call()
        return True

    def _fly(self, sender: Address, to: Address, message: object, reliably: bool) -> None:
        self.after(self.chance.uniform(*self.delay_s), lambda: self._arrive(sender, to, message, reliably))

    def _arrive(self, sender: Address, to: Address, message: object, reliably: bool) -> None:
        receive = self._peers.get(to)
        if receive is None:
            self.happened["to nobody"] += 1
        elif frozenset((sender, to)) in self._cuts:
            self.happened["cut off"] += 1
            if reliably:
                self._fly(sender, to, message, reliably)
        else:
            self.happened["arrived"] += 1
            receive(sender, message)

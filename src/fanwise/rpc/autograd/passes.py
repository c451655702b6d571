"""One backward pass on one worker, as decisions: what may run, whom to tell what, when it is over.

    in:   begin, heard (who has begun this worker, and what that one knows), resolved (what we sent has its gradients,
          or never will), ran (a class of nodes), below (a worker that we told to begin is through)
    out:  Begin, Zero, Run, Finish

A pass begins where `backward` is called and spreads: each worker tells all it knows but the one it has it from, at its
own first touch and before anything else, and says what it sent there and received from there. A worker is through
when all its classes have run and all that it told are through; so the one that began is through last.

A message counts as resolved when its gradients came, or when its receiver says that none will: because nothing of the
graph there reaches it, because it never arrived, or because what does reach it got no gradient itself.

Facts may come late or twice; those change nothing. Knows no tensor, graph, link or time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Begin:
    """Order: tell `peer` that the pass has begun, which messages went there, and which came from there."""

    peer: int
    messages: tuple[int, ...]
    received: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Zero:
    """Order: tell `peer` that these of its messages get no gradient in this pass."""

    peer: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Order: run this class; all that can reach it is known. At the same time as others that were ordered before."""

    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Order: this worker and all below it are through."""


Order = Begin | Zero | Run | Finish


@dataclass(frozen=True, slots=True)
class ClassOfNodes:
    """Nodes that the same messages reach: they run together, when all of these are resolved.

    Args:
        waits: the sent messages whose gradients flow in here. Empty: only the roots reach it.
        receives: the received messages whose gradients come out here.
    """

    waits: frozenset[int]
    receives: tuple[int, ...] = ()


@dataclass(slots=True)
class Pass:
    """See the module.

    Args:
        me: the id of this worker.
        sent: for each message sent in the context, to whom.
        received: for each message received, from whom.
        classes: in an order in which they may run: a class comes after those from which gradients flow into it.
        peers: the workers to tell: all that the context knows, without this one and the one that has begun it.
    """

    me: int
    sent: Mapping[int, int]
    received: Mapping[int, int]
    classes: Sequence[ClassOfNodes]
    peers: Iterable[int]
    open: set[int] = field(init=False)  # sent, and not resolved
    _to_run: list[int] = field(init=False)
    _running: set[int] = field(init=False, default_factory=set)
    _below: set[int] = field(init=False, default_factory=set)
    _finished: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.open = set(self.sent)
        self._to_run = list(range(len(self.classes)))

    def begin(self) -> list[Order]:
        """The first touch."""
        orders: list[Order] = []
        for peer in sorted(self.peers):
            self._below.add(peer)
            there = tuple(message for message, to in self.sent.items() if to == peer)
            here = tuple(message for message, sender in self.received.items() if sender == peer)
            orders.append(Begin(peer, there, here))
        reached = {message for one in self.classes for message in one.receives}
        orders += self._zeros(message for message in self.received if message not in reached)
        # To oneself nothing is lost on the way, but it may not have been opened yet.
        for message, to in self.sent.items():
            if to == self.me and (message not in self.received or message not in reached):
                self.open.discard(message)
        return orders + self._next()

    def heard(self, peer: int, messages: Iterable[int], received: Iterable[int]) -> list[Order]:
        """`peer`, by which this worker was begun, sent these messages here and has received those."""
        lost = tuple(message for message in messages if message not in self.received)
        zeros: list[Order] = [Zero(peer, lost)] if lost else []
        there = set(received)
        return zeros + self.resolved(
            message for message, to in self.sent.items() if to == peer and message not in there
        )

    def resolved(self, messages: Iterable[int]) -> list[Order]:
        """These messages have their gradients, or get none."""
        self.open.difference_update(messages)
        return self._next()

    def ran(self, number: int) -> list[Order]:
        """A class has run, and what came out of it is on its way."""
        self._running.discard(number)
        return self._next()

    def below(self, peer: int) -> list[Order]:
        """`peer`, which this worker told to begin, is through, or had begun before."""
        self._below.discard(peer)
        return self._next()

    def _next(self) -> list[Order]:
        ready = [number for number in self._to_run if self._may_run(number)]
        self._to_run = [number for number in self._to_run if number not in self._running]
        orders: list[Order] = [Run(number) for number in ready]
        over = not (self.open or self._to_run or self._running or self._below)
        if over and not self._finished:
            self._finished = True
            orders.append(Finish())
        return orders

    def _may_run(self, number: int) -> bool:
        """Whether all that flows into the class is there; if so, it is among those that run."""
        waits = self.classes[number].waits
        if not self.open.isdisjoint(waits):
            return False
        # Gradients flow into a class only from those that fewer messages reach.
        if any(self.classes[other].waits <= waits for other in self._running):
            return False
        self._running.add(number)
        return True

    def _zeros(self, messages: Iterable[int]) -> list[Order]:
        by_peer: dict[int, list[int]] = {}
        for message in messages:
            by_peer.setdefault(self.received[message], []).append(message)
        by_peer.pop(self.me, None)
        return [Zero(peer, tuple(lost)) for peer, lost in sorted(by_peer.items())]

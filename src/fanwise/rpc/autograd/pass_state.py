"""The state of a backward pass on one worker. A pure state machine: events come in, actions are returned.

    events    start, on_begin (another worker told this one to begin), on_resolved, on_group_done, on_peer_done
    actions   SendBegin, SendZeros, RunGroup, Finish

A pass starts where `backward` is called and spreads. On its first event a worker tells all workers it knows to begin,
except the one that told it, and which messages the two have exchanged. A worker is done when all its groups of nodes
have run and all workers that it told are done, so the worker that called `backward` is done last.

A message that this worker sent is resolved when its gradients have arrived, or when its receiver reports that there
are none: the message never arrived, nothing in the receiver's graph depends on it, or what does got no gradient.

Late and repeated events change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SendBegin:
    """Tell `peer` to begin, and which messages this worker sent to it and received from it."""

    peer: int
    sent: tuple[int, ...]
    received: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SendZeros:
    """Tell `peer` that these of its messages get no gradient."""

    peer: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Run this group, concurrently with groups that were started before."""

    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """This worker and all that it told to begin are done."""


Action = SendBegin | SendZeros | RunGroup | Finish


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that run together, because gradients reach them from the same messages.

    Args:
        waits_for: the sent messages whose gradients flow in here. Empty: only the roots reach it.
        receives: the received messages whose gradients are computed here.
    """

    waits_for: frozenset[int]
    receives: tuple[int, ...] = ()


@dataclass(slots=True)
class PassState:
    """See the module.

    Args:
        me: id of this worker.
        sent: receiver of each message sent in the context.
        received: sender of each message received.
        groups: in topological order; gradients flow from earlier groups into later ones.
        peers: the workers to tell.

    Attributes:
        unresolved: the sent messages that are not resolved.
    """

    me: int
    sent: Mapping[int, int]
    received: Mapping[int, int]
    groups: Sequence[NodeGroup]
    peers: Iterable[int]
    unresolved: set[int] = field(init=False)
    _pending: list[int] = field(init=False)
    _running: set[int] = field(init=False, default_factory=set)
    _busy_peers: set[int] = field(init=False, default_factory=set)
    _finished: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.unresolved = set(self.sent)
        self._pending = list(range(len(self.groups)))

    def start(self) -> list[Action]:
        actions: list[Action] = []
        for peer in sorted(self.peers):
            self._busy_peers.add(peer)
            sent = tuple(message for message, to in self.sent.items() if to == peer)
            received = tuple(message for message, sender in self.received.items() if sender == peer)
            actions.append(SendBegin(peer, sent, received))
        reached = {message for group in self.groups for message in group.receives}
        unreached: dict[int, list[int]] = {}
        for message, sender in self.received.items():
            if message not in reached and sender != self.me:
                unreached.setdefault(sender, []).append(message)
        actions += [SendZeros(peer, tuple(messages)) for peer, messages in sorted(unreached.items())]
        # A message to this worker itself cannot be lost, but may not have been deserialized yet.
        for message, to in self.sent.items():
            if to == self.me and (message not in self.received or message not in reached):
                self.unresolved.discard(message)
        return actions + self._next()

    def on_begin(self, peer: int, sent: Iterable[int], received: Iterable[int]) -> list[Action]:
        """Handle the `SendBegin` of the worker that told this one to begin."""
        not_received = tuple(message for message in sent if message not in self.received)
        zeros: list[Action] = [SendZeros(peer, not_received)] if not_received else []
        arrived = set(received)
        return zeros + self.on_resolved(
            message for message, to in self.sent.items() if to == peer and message not in arrived
        )

    def on_resolved(self, messages: Iterable[int]) -> list[Action]:
        """Handle gradients for these messages, or the report that there are none."""
        self.unresolved.difference_update(messages)
        return self._next()

    def on_group_done(self, number: int) -> list[Action]:
        """Handle the end of a group, after its gradients were sent."""
        self._running.discard(number)
        return self._next()

    def on_peer_done(self, peer: int) -> list[Action]:
        """Handle the reply of a worker that this one told to begin: it is done, or another one had told it before."""
        self._busy_peers.discard(peer)
        return self._next()

    def _next(self) -> list[Action]:
        actions: list[Action] = []
        for number in list(self._pending):
            if self._can_run(number):
                self._pending.remove(number)
                self._running.add(number)
                actions.append(RunGroup(number))
        if not (self._finished or self.unresolved or self._pending or self._running or self._busy_peers):
            self._finished = True
            actions.append(Finish())
        return actions

    def _can_run(self, number: int) -> bool:
        waits_for = self.groups[number].waits_for
        # Gradients flow into a group only from groups that wait for fewer messages.
        return self.unresolved.isdisjoint(waits_for) and not any(
            self.groups[other].waits_for <= waits_for for other in self._running
        )

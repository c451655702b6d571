"""The state of a resumable stream: every byte arrives once and in order, however often its connection is cut."""

import random
from collections import deque

import pytest

from fanwise.base.errors import WireError
from fanwise.links.session import Session


class Side:
    """One end of a simulated stream. `incoming`: bytes and acknowledgments on their way, in order."""

    def __init__(self, name: str) -> None:
        self.session = Session(kept_bytes_max=5_000, acknowledge_every_bytes=700)
        self.chance = random.Random(name)
        self.to_send = b""
        self.delivered = bytearray()
        self.incoming: deque[bytes | int] = deque()

    def write(self, other: "Side") -> None:
        """Accept some bytes, and send some of the unsent ones."""
        num_accepted = self.session.accept([self.to_send[: self.chance.randint(0, 400)]])
        self.to_send = self.to_send[num_accepted:]
        while self.session.has_unsent and self.chance.random() < 0.8:
            data = self.session.next()
            size = self.chance.randint(1, len(data))
            other.incoming += [bytes(data[:size]), bytes(data[size:])]

    def read(self, other: "Side") -> None:
        """Receive the next message."""
        if not self.incoming:
            return
        message = self.incoming.popleft()
        if isinstance(message, int):
            self.session.acknowledge(message)
            return
        self.delivered += message
        self.session.received(len(message))
        if self.session.is_acknowledgment_due:
            other.incoming.append(self.session.acknowledgment())


def reconnect(a: Side, b: Side) -> None:
    """Lose everything on its way, and resume on both sides."""
    a.incoming.clear()
    b.incoming.clear()
    a.session.resume(b.session.num_received)
    b.session.resume(a.session.num_received)


@pytest.mark.parametrize("seed", range(3))
def test_every_byte_arrives_once_and_in_order_over_a_thousand_cuts(seed: int) -> None:
    chance = random.Random(seed)
    a, b = Side(f"{seed}/a"), Side(f"{seed}/b")
    streams = {side: random.Random(f"{seed}/{name}").randbytes(400_000) for side, name in ((a, "a"), (b, "b"))}
    a.to_send, b.to_send = streams[a], streams[b]
    num_cuts = 0
    while num_cuts < 1_000 or a.delivered != streams[b] or b.delivered != streams[a]:
        side, other = chance.choice([(a, b), (b, a)])
        if chance.random() < 0.7:
            side.write(other)
        side.read(other)
        assert streams[other].startswith(side.delivered)
        assert sum(len(chunk.data) for chunk in side.session._kept) <= 5_000 + 400
        if chance.random() < 0.05:
            reconnect(a, b)
            num_cuts += 1
    reconnect(a, b)
    assert not a.session._kept and not b.session._kept, "everything was acknowledged"


def test_a_sender_waits_when_too_much_is_unacknowledged() -> None:
    session = Session(kept_bytes_max=100)
    assert session.accept([b"x" * 60, b"y" * 60]) == 100
    session.next()
    assert session.accept([b"z"]) == 0
    session.acknowledge(30)
    assert session.accept([b"z" * 40]) == 30
    session.acknowledge(100)
    assert session.accept([b"z" * 10]) == 10


def test_large_parts_are_accepted_piece_by_piece() -> None:
    parts, session = [b"ab", bytes(range(256)) * 1000, b"cd"], Session()
    copied, num_accepted = bytearray(), 0
    while size := session.accept(parts, num_accepted):
        num_accepted += size
    while session.has_unsent:
        copied += session.next()
    assert bytes(copied) == b"".join(parts)


def test_accepted_bytes_may_be_changed_by_their_owner() -> None:
    session, data = Session(), bytearray(b"before")
    session.accept([data])
    data[:] = b"after!"
    assert session.next() == b"before"


@pytest.mark.parametrize("num_received", [4, 6])
def test_a_peer_cannot_resume_at_bytes_that_are_not_kept(num_received: int) -> None:
    session = Session()
    session.accept([b"12345"])
    session.next()
    session.acknowledge(5)
    session.accept([b"67890"])
    with pytest.raises(WireError, match="resumes at byte"):
        session.resume(num_received)


def test_a_late_acknowledgment_changes_nothing() -> None:
    session = Session()
    session.accept([b"12345"])
    session.next()
    session.acknowledge(5)
    session.acknowledge(2)
    assert session.num_acknowledged == 5

"""Who is turned away when too many are being greeted: compared with a list of all, at every step."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanwise.links.transports.acceptor import PendingConnections

LIMIT, LIMIT_PER_ADDRESS = 6, 3


class PendingConnectionsMachine(RuleBasedStateMachine):
    """The model is a list of (connection, address), the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: PendingConnections[int] = PendingConnections(limit=LIMIT, limit_per_address=LIMIT_PER_ADDRESS)
        self.there: list[tuple[int, str | None]] = []
        self.number = 0

    @rule(address=st.sampled_from(["a", "b", "c", "d", "e", "f", "g", None]))
    def somebody_comes(self, address: str | None) -> None:
        self.number += 1
        expected = self._who_goes(address)
        assert self.pending.add(self.number, address) == expected
        self.there = [one for one in self.there if one[0] != expected] + [(self.number, address)]

    def _who_goes(self, address: str | None) -> int | None:
        counts = {other: sum(one[1] == other for one in self.there) for _, other in self.there}
        if address is not None and counts.get(address, 0) >= LIMIT_PER_ADDRESS:
            return next(connection for connection, other in self.there if other == address)
        if len(self.there) < LIMIT:
            return None
        return next(connection for connection, other in self.there if counts[other] == max(counts.values()))

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def somebody_is_done(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.there))
        self.there.remove(one)
        assert self.pending.remove(one[0]) and not self.pending.remove(one[0])

    @invariant()
    def it_knows_who_is_there(self) -> None:
        assert list(self.pending) == [connection for connection, _ in self.there] and len(self.pending) == len(
            self.there
        )
        assert set(self.pending._by_address) == {address for _, address in self.there}, (
            "nothing is kept of who has gone"
        )


TestPendingConnections = PendingConnectionsMachine.TestCase


def test_one_address_cannot_keep_out_another() -> None:
    pending: PendingConnections[str] = PendingConnections(limit=4, limit_per_address=4)
    for number in range(50):
        pending.add(f"greedy {number}", "x")
    assert pending.add("alone", "y") == "greedy 46"
    for number in range(50, 100):
        pending.add(f"greedy {number}", "x")
    assert "alone" in list(pending)

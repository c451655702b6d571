"""Who is being greeted, and who has to go when too many are: one address cannot keep out the others. Quiet.

    arrive(connection, address) --> a connection to turn away, or None      gone(connection)

In all there may be so many, and of one address a part of them. Where an address has its part, its own oldest connection
goes; where all places are taken, the oldest of the address that has most, so that who comes alone always finds a place.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class PendingConnections(Generic[Connection]):
    """See the module.

    Args:
        in_all: how many there may be. of_one: how many of one address.
    """

    def __init__(self, *, in_all: int, of_one: int) -> None:
        self._in_all = in_all
        self._of_one = of_one
        self._addresses: dict[Connection, Hashable] = {}
        self._by_address: dict[Hashable, dict[Connection, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[Connection]:
        """All, the oldest first."""
        return iter(list(self._addresses))

    def arrive(self, connection: Connection, address: Hashable) -> Connection | None:
        """One comes. Returns who has to go for it, and is forgotten. `address`: None has no limit of its own."""
        goes: Connection | None = None
        if address is not None and len(self._by_address.get(address, ())) >= self._of_one:
            goes = next(iter(self._by_address[address]))
        elif len(self._addresses) >= self._in_all:
            most = max(map(len, self._by_address.values()))
            # Of those that have most, the one whose oldest connection is the oldest: connections stand in their order.
            goes = next(one for one, where in self._addresses.items() if len(self._by_address[where]) == most)
        if goes is not None:
            self.gone(goes)
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return goes

    def gone(self, connection: Connection) -> bool:
        """It has proved itself, or was turned away. False: it was forgotten already."""
        if connection not in self._addresses:
            return False
        address = self._addresses.pop(connection)
        theirs = self._by_address[address]
        del theirs[connection]
        if not theirs:
            del self._by_address[address]
        return True

"""Connections whose handshake is not complete, and which of them to drop when there are too many. Pure.

    add(connection, address) --> a connection to drop, or None      remove(connection)

There is a limit in total and one per address. If an address has reached its limit, its own oldest connection is
dropped; if the total is reached, the oldest of the address that has most. So one address cannot keep out the others.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class PendingConnections(Generic[Connection]):
    """See the module.

    Args:
        limit: of all connections.
        limit_per_address: of the connections of one address.
    """

    def __init__(self, *, limit: int, limit_per_address: int) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._addresses: dict[Connection, Hashable] = {}
        self._by_address: dict[Hashable, dict[Connection, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over a copy of all connections, the oldest first."""
        return iter(list(self._addresses))

    def add(self, connection: Connection, address: Hashable) -> Connection | None:
        """Return a connection that must be dropped for the new one and was removed. An address of None has no limit."""
        dropped: Connection | None = None
        if address is not None and len(self._by_address.get(address, ())) >= self._limit_per_address:
            dropped = next(iter(self._by_address[address]))
        elif len(self._addresses) >= self._limit:
            most = max(map(len, self._by_address.values()))
            # If several addresses have most, the one with the oldest connection.
            dropped = next(one for one, other in self._addresses.items() if len(self._by_address[other]) == most)
        if dropped is not None:
            self.remove(dropped)
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return dropped

    def remove(self, connection: Connection) -> bool:
        """Return False if it was removed before."""
        if connection not in self._addresses:
            return False
        address = self._addresses.pop(connection)
        connections = self._by_address[address]
        del connections[connection]
        if not connections:
            del self._by_address[address]
        return True

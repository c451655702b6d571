"""What is out with others, by id, and who has it. A quiet file.

An id is never used again, so a return that comes twice, late, or from somebody else changes nothing but a counter.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


@dataclass(slots=True)
class Outstanding(Generic[Thing]):
    """See the module. The things are opaque."""

    unknown_returns: int = 0
    _by_id: dict[int, tuple[Hashable, Thing]] = field(default_factory=dict)
    _last_id: int = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: int) -> bool:
        return id in self._by_id

    @property
    def next_id(self) -> int:
        """Of what is given next."""
        return self._last_id + 1

    def give(self, thing: Thing, holder: Hashable) -> int:
        """`holder` has it from now on; its id."""
        self._last_id += 1
        self._by_id[self._last_id] = holder, thing
        return self._last_id

    def take_back(self, id: int, holder: Hashable) -> Thing | None:
        """`holder` has it no more. None: it had no such thing."""
        held_by, thing = self._by_id.get(id, (None, None))
        if thing is None or held_by != holder:
            self.unknown_returns += 1
            return None
        del self._by_id[id]
        return thing

    def lose(self, holder: Hashable) -> dict[int, Thing]:
        """`holder` is gone: what it had, by id."""
        lost = {id: thing for id, (held_by, thing) in self._by_id.items() if held_by == holder}
        for id in lost:
            del self._by_id[id]
        return lost

    def end(self) -> list[Thing]:
        """Nobody has anything any more: what all had."""
        things = [thing for _, thing in self._by_id.values()]
        self._by_id.clear()
        return things

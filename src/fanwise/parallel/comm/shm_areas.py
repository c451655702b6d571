"""Where the parameters of a step lie in the shared memory: one layout, in several areas of the same size.

    sum          the gradients of all shards            new params   what the owners have updated
    state        of a sharded optimizer, each key in two versions
    nodes        what the shards of each rank brought, a few for each rank, if asked for in several versions

Areas are mapped when they are first used; a part that nobody writes takes no memory.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from ...base.huge_pages import HUGE_PAGE_BYTES, FileMap
from .flat_layout import Bucket, Layout
from .shared_memory import SharedMemory, bytes_of, pages

# Of the shared memory; what is below are numbers and boxes.
_FIRST = 1 << 40
# Of the tree over the shards, for a range of them: two for each level.
_MOST_NODES = 22
_MOST_KEYS = 3
_SUM, _NEW, _STATE, _NODES = 0, 1, 2, 2 + 2 * _MOST_KEYS


class MemoryTeam(Protocol):
    """What sums in this memory need of a team.

    `rank`, `ranks`: the number of this process for the whole run, and how many numbers there are. `members`: the ranks
    that take part now, by place.
    """

    rank: int
    ranks: int
    memory: SharedMemory

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def place(self) -> int: ...

    @property
    def next_turn(self) -> int:
        """Of the next exchange: what was written for the last but one is read by nobody any more."""
        ...

    def barrier(self) -> None:
        """Block until all members have come here. What each wrote before can be read after."""
        ...


class Areas:
    """See the module. `area_bytes`: of one area, in whole pages. `size_bytes`: of all, mostly untouched.

    Args:
        offset: bytes that the areas of other steps take. versions: of each node.
    """

    def __init__(self, team: MemoryTeam, layout: Layout, offset: int, versions: int = 1) -> None:
        self.layout = layout
        self.team = team
        self.area_bytes = pages(max(layout.size_bytes, 1))
        self._offset = _FIRST + offset
        self._areas_a_rank = versions * _MOST_NODES
        self.size_bytes = pages(max(HUGE_PAGE_BYTES, self.area_bytes * (_NODES + self._areas_a_rank * team.ranks)))
        self._areas: dict[int, tuple[FileMap, Tensor]] = {}
        self._views: dict[tuple[int, Bucket], Tensor] = {}

    # -- slices of the members ---------------------------------------------------------------------------------------

    def owned(self) -> list[Bucket]:
        """The slice of this process, among those that take part now."""
        return self.layout.owned(self.team.place, len(self.team.members))

    def others(self) -> Iterator[list[Bucket]]:
        """The slices of the others."""
        size = len(self.team.members)
        return (self.layout.owned(place, size) for place in range(size) if place != self.team.place)

    # -- buckets of areas ------------------------------------------------------------------------------------------

    def sum(self, bucket: Bucket) -> Tensor:
        return self._view(_SUM, bucket)

    def new_params(self, bucket: Bucket) -> Tensor:
        return self._view(_NEW, bucket)

    def state(self, key: int, version: int, bucket: Bucket) -> Tensor:
        return self._view(_STATE + 2 * key + version, bucket)

    def node(self, rank: int, number: int, bucket: Bucket) -> Tensor:
        return self._view(_NODES + rank * self._areas_a_rank + number, bucket)

    def _view(self, area: int, bucket: Bucket) -> Tensor:
        view = self._views.get((area, bucket))
        if view is None:
            mapping, memory = self._area(area)
            mapping.gather(bucket.first, bucket.last - bucket.first)
            view = self._views[area, bucket] = bucket.of(memory)
        return view

    def _area(self, area: int) -> tuple[FileMap, Tensor]:
        if area not in self._areas:
            mapping = self.team.memory.map(self._offset + area * self.area_bytes, self.area_bytes)
            self._areas[area] = mapping, bytes_of(mapping)
        return self._areas[area]

    # -- whole areas -----------------------------------------------------------------------------------------------

    def whole_sum(self) -> Tensor:
        return self._area(_SUM)[1]

    def whole_node(self, rank: int, number: int, version: int = 0) -> Tensor:
        return self._area(_NODES + rank * self._areas_a_rank + version * _MOST_NODES + number)[1]

    def whole_state(self, key: int, version: int, place: int) -> Tensor:
        return self.layout.whole(self._area(_STATE + 2 * key + version)[1], place)

    def whole_param(self, place: int) -> Tensor:
        return self.layout.whole(self._area(_NEW)[1], place)

    def private_sum(self) -> FileMap:
        """What is written into it stays in this process."""
        return self.team.memory.map(self._offset + _SUM, self.area_bytes, private=True)

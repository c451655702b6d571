"""Areas of the shared memory for the gradients, parameters and optimizer state of one step. All have the same layout.

    sum          the sum of the gradients
    new params   parameters that the owners of the slices have updated
    state        of a sharded optimizer: each key in two versions
    nodes        a few nodes of each rank, in one or two versions

An area is mapped when it is first used. Pages that no process writes take no memory.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from ...base.huge_pages import HUGE_PAGE_BYTES, FileMap
from .flat_layout import Bucket, Layout
from .shared_memory import SharedMemory, bytes_of, pages

_FIRST = 1 << 40  # offset of the first area in the shared memory
_MAX_NODES = 22  # a range of shards is at most two nodes for each level of the tree
_MAX_KEYS = 3
_SUM, _NEW, _STATE, _NODES = 0, 1, 2, 2 + 2 * _MAX_KEYS


class MemoryTeam(Protocol):
    """The parts of `SharedMemoryTeam` that the areas need. A Protocol, because shm_team.py imports this file."""

    rank: int
    ranks: int
    memory: SharedMemory

    @property
    def members(self) -> tuple[int, ...]: ...
    @property
    def index(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    def barrier(self) -> None: ...


class Areas:
    """See the module.

    Args:
        offset: size of the areas of earlier steps.
        versions: number of versions of each node.

    Attributes:
        area_bytes: size of one area, in whole pages.
        size_bytes: size of all areas.
    """

    def __init__(self, team: MemoryTeam, layout: Layout, offset: int, versions: int = 1) -> None:
        self.layout = layout
        self.team = team
        self.area_bytes = pages(max(layout.size_bytes, 1))
        self._offset = _FIRST + offset
        self._areas_per_rank = versions * _MAX_NODES
        self.size_bytes = pages(max(HUGE_PAGE_BYTES, self.area_bytes * (_NODES + self._areas_per_rank * team.ranks)))
        self._areas: dict[int, tuple[FileMap, Tensor]] = {}
        self._views: dict[tuple[int, Bucket], Tensor] = {}

    def own_slice(self) -> list[Bucket]:
        return self.layout.owned(self.team.index, len(self.team.members))

    def slices_of_others(self) -> Iterator[Bucket]:
        size = len(self.team.members)
        for index in range(size):
            if index != self.team.index:
                yield from self.layout.owned(index, size)

    # -- buckets of areas ------------------------------------------------------------------------------------------

    def sum(self, bucket: Bucket) -> Tensor:
        return self._view(_SUM, bucket)

    def new_params(self, bucket: Bucket) -> Tensor:
        return self._view(_NEW, bucket)

    def state(self, key: int, version: int, bucket: Bucket) -> Tensor:
        return self._view(_STATE + 2 * key + version, bucket)

    def node(self, rank: int, node_index: int, bucket: Bucket, version: int = 0) -> Tensor:
        return self._view(self._node_area(rank, node_index, version), bucket)

    def _node_area(self, rank: int, node_index: int, version: int) -> int:
        return _NODES + rank * self._areas_per_rank + version * _MAX_NODES + node_index

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

    def whole_node(self, rank: int, node_index: int, version: int) -> Tensor:
        return self._area(self._node_area(rank, node_index, version))[1]

    def whole_state(self, key: int, version: int, index: int) -> Tensor:
        return self.layout.whole(self._area(_STATE + 2 * key + version)[1], index)

    def whole_param(self, index: int) -> Tensor:
        return self.layout.whole(self._area(_NEW)[1], index)

    def private_sum(self) -> FileMap:
        """Map the sum such that writes of this process are not seen by the others."""
        return self.team.memory.map(self._offset + _SUM, self.area_bytes, private=True)

"""Areas of the shared memory for the gradients, parameters and optimizer state of one step. All have the same layout.

    sum          the sum of the gradients
    new params   parameters that the owners of the slices have updated
    state        per-element state of a sharded optimizer (exp_avg, ...): two copies of each key, one read while the
                 other is written
    nodes        partial sums (tree nodes) of each rank; two alternating copies for the one-shot transport

An area is mapped when it is first used. Pages that no process writes take no memory.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from ...base.huge_pages import HUGE_PAGE_BYTES, FileMap
from .flat_layout import Bucket, Layout
from .shared_memory import SharedMemory, bytes_of, pages

_AREAS_OFFSET_BYTES = 1 << 40
_MAX_NODES = 62  # a range of shards is covered by at most two nodes per level: enough for 2**32 shards
_MAX_STATE_KEYS = 3  # Adam with amsgrad
_SUM_AREA, _NEW_PARAMS_AREA, _FIRST_STATE_AREA = 0, 1, 2
_FIRST_NODE_AREA = _FIRST_STATE_AREA + 2 * _MAX_STATE_KEYS


class MemoryTeam(Protocol):
    """The parts of `SharedMemoryTeam` that the areas need. A Protocol, because shm_team.py imports this file."""

    rank: int  # never changes; `index` is the position among the current members
    initial_size: int
    memory: SharedMemory

    @property
    def members(self) -> tuple[int, ...]: ...
    @property
    def index(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    def barrier(self) -> None: ...


class Areas:
    """See the module. `offset`: bytes used by earlier steps. `versions`: copies of each node, 2 for one-shot."""

    def __init__(self, team: MemoryTeam, layout: Layout, offset: int, versions: int = 1) -> None:
        self.layout = layout
        self.team = team
        self.area_bytes = pages(max(layout.size_bytes, 1))
        self._offset = _AREAS_OFFSET_BYTES + offset
        self._areas_per_rank = versions * _MAX_NODES
        num_areas = _FIRST_NODE_AREA + self._areas_per_rank * team.initial_size
        self.size_bytes = pages(max(HUGE_PAGE_BYTES, self.area_bytes * num_areas))
        self._areas: dict[int, tuple[FileMap, Tensor]] = {}
        self._views: dict[tuple[int, Bucket], Tensor] = {}

    def own_buckets(self) -> list[Bucket]:
        return self.layout.buckets_of(self.team.index, len(self.team.members))

    def other_buckets(self) -> Iterator[Bucket]:
        size = len(self.team.members)
        for index in range(size):
            if index != self.team.index:
                yield from self.layout.buckets_of(index, size)

    def sum_view(self, bucket: Bucket) -> Tensor:
        return self._view(_SUM_AREA, bucket)

    def new_params_view(self, bucket: Bucket) -> Tensor:
        return self._view(_NEW_PARAMS_AREA, bucket)

    def state_view(self, key: int, version: int, bucket: Bucket) -> Tensor:
        return self._view(_FIRST_STATE_AREA + 2 * key + version, bucket)

    def node_view(self, rank: int, node_index: int, bucket: Bucket, version: int = 0) -> Tensor:
        return self._view(self._node_area(rank, node_index, version), bucket)

    def _node_area(self, rank: int, node_index: int, version: int) -> int:
        assert node_index < _MAX_NODES
        return _FIRST_NODE_AREA + rank * self._areas_per_rank + version * _MAX_NODES + node_index

    def _view(self, area: int, bucket: Bucket) -> Tensor:
        view = self._views.get((area, bucket))
        if view is None:
            mapping, memory = self._area(area)
            mapping.collapse_pages(bucket.begin_byte, bucket.end_byte - bucket.begin_byte)
            view = self._views[area, bucket] = bucket.view(memory)
        return view

    def _area(self, area: int) -> tuple[FileMap, Tensor]:
        if area not in self._areas:
            mapping = self.team.memory.map(self._offset + area * self.area_bytes, self.area_bytes)
            self._areas[area] = mapping, bytes_of(mapping)
        return self._areas[area]

    def node_bytes(self, rank: int, node_index: int, version: int) -> Tensor:
        return self._area(self._node_area(rank, node_index, version))[1]

    def state_of_param(self, key: int, version: int, index: int) -> Tensor:
        return self.layout.param_view(self._area(_FIRST_STATE_AREA + 2 * key + version)[1], index)

    def new_param(self, index: int) -> Tensor:
        return self.layout.param_view(self._area(_NEW_PARAMS_AREA)[1], index)

    def private_sum(self) -> FileMap:
        """Map the sum copy-on-write: this process reads the shared sum, and its own writes stay private."""
        return self.team.memory.map(self._offset + _SUM_AREA * self.area_bytes, self.area_bytes, private=True)

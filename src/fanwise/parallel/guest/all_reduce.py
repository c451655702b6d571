"""`reduce="fast"` for a guest: each process adds its own shards, the back end's allreduce adds the processes.

One flat bucket for each type of parameter. In which order the back end adds is its own matter and depends on the number
of processes, so the last bits of the result do, too. A process without a gradient of a parameter brings zeros.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..brought import brought
from ..fast import one_node
from ..gradients import Partial, add
from ..processes.areas import flat_gradient
from ..shards import Node, total
from ..team import check_count, divide
from .layout import Layout

if TYPE_CHECKING:
    from .guest_team import GuestTeam


class AllReducedSums:
    """The sums of one step."""

    updates = False

    def __init__(self, team: "GuestTeam", params: Sequence[nn.Parameter]) -> None:
        self._team = team
        self._params = list(params)
        self._buckets: list[Tensor] = []
        self._flats: dict[int, Tensor] = {}
        self._grads: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(param.dtype for param in params):
            self._add_bucket([place for place, param in enumerate(params) if param.dtype == dtype], dtype)

    def _add_bucket(self, places: Sequence[int], dtype: torch.dtype) -> None:
        layout = Layout([self._params[place] for place in places], owners=1)
        memory = torch.zeros(layout.part_bytes, dtype=torch.uint8, device=self._team.device)
        self._buckets.append(memory.view(dtype))
        for piece in layout.pieces[0]:
            self._flats[places[piece.param]] = memory[piece.first : piece.last].view(dtype)
        for number, place in enumerate(places):
            self._grads[place] = layout.whole(memory, number)

    def total(self, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        team = self._team
        own = one_node(nodes, team.place)
        flats = self._flats_of(own)
        said = team.gather("makes a step", brought(own))
        done = total([each.node() for each in said], team.size, add)
        check_count(done.count, done.samples)
        for place, bucket in self._flats.items():
            flat = flats[place]
            if flat is None:
                bucket.zero_()
            else:
                bucket.copy_(flat)
        team.all_reduce(self._buckets)
        if mean:
            divide(self._buckets, done.count)
        is_reached = [any(flags) for flags in zip(*(each.reached for each in said if each.reached), strict=True)]
        done.grads = [
            (self._grads[place] if mean else self._grads[place].clone()) if is_here else None
            for place, is_here in enumerate(is_reached)
        ]
        return team.to_device(done)

    def settle(self) -> None:
        pass

    def _flats_of(self, own: Node[Partial]) -> list[Tensor | None]:
        if own.value is None:
            return [None] * len(self._params)
        return [flat_gradient(param, grad) for param, grad in zip(self._params, own.value.grads, strict=True)]

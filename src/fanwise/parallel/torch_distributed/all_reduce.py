"""`reduce="fast"` for a guest: each process adds its own shards, the back end's allreduce adds the processes.

One flat bucket for each type of parameter. In which order the back end adds is its own matter and depends on the number
of processes, so the last bits of the result do, too. A process without a gradient of a parameter brings zeros;
parameters that no process reached, such as frozen ones, do not travel.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..replica.gradients import Partial, add
from ..shards import Node, total
from ..teams.fast import one_node
from ..teams.node_info import hear, tell, to_device
from ..teams.team import check_done, divide
from .exact_sums import flat_gradients, reached_places
from .layout import Layout

if TYPE_CHECKING:
    from .team import TorchDistributedTeam


class AllReducedSums:
    """The sums of one step."""

    updates = False

    def __init__(self, team: "TorchDistributedTeam", params: Sequence[nn.Parameter]) -> None:
        self._team = team
        self._params = list(params)
        self._buckets: list[Bucket] = []
        self._places: tuple[int, ...] = ()

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        team = self._team
        own = one_node(nodes, team.place)
        flats = flat_gradients(self._params, own.value) if own.value is not None else [None] * len(self._params)
        said = [each for told in team.gather(what, tell([own])) for each in hear(told)]
        done = total([each.node() for each in said], team.size, add)
        check_done(done)
        self._make_buckets(reached_places(said))
        for bucket in self._buckets:
            bucket.fill(flats)
        team.all_reduce([bucket.values for bucket in self._buckets])
        if mean:
            divide([bucket.values for bucket in self._buckets], done.count)
        done.grads = [None] * len(self._params)
        for bucket in self._buckets:
            for place, grad in bucket.grads.items():
                done.grads[place] = grad if mean else grad.clone()
        return to_device(done, team.device)

    def settle(self) -> None:
        pass

    def update_whole(self) -> None:
        pass

    def _make_buckets(self, places: tuple[int, ...]) -> None:
        if places == self._places:
            return
        by_dtype: dict[torch.dtype, list[int]] = {}
        for place in places:
            by_dtype.setdefault(self._params[place].dtype, []).append(place)
        self._buckets = [Bucket(self._params, each, self._team.device) for each in by_dtype.values()]
        self._places = places


class Bucket:
    """The gradients of parameters of one type, one after another.

    Attributes:
        values: all of them, and gaps of zeros. grads: each in the shape of its parameter, by place.
    """

    def __init__(self, params: Sequence[nn.Parameter], places: Sequence[int], device: torch.device) -> None:
        layout = Layout([params[place] for place in places], owners=1)
        memory = torch.zeros(layout.part_bytes, dtype=torch.uint8, device=device)
        self.values = memory.view(params[places[0]].dtype)
        self.grads = {place: layout.whole(memory, number) for number, place in enumerate(places)}
        self._flats = {
            places[piece.param]: memory[piece.first : piece.last].view(self.values.dtype) for piece in layout.pieces(0)
        }

    def fill(self, flats: Sequence[Tensor | None]) -> None:
        """With the gradients of this process, zeros where there are none."""
        for place, own in self._flats.items():
            flat = flats[place]
            if flat is None:
                own.zero_()
            else:
                own.copy_(flat)

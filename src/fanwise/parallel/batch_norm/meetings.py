"""Where the shards meet: what each brings, what they get, and whether they are all at the same place.

    shards of this process --tree--> nodes --gather--> nodes of all processes --tree--> one value for all

The tree is that over the shards, as for gradients, so the value has the same bits whoever executed which of them. It is
added on the device of the shards; what is pickled for other processes is in main memory. A process without shards of
its own follows the others: it gathers as often as they do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..replica.replicas import ShardWork
from ..shards import Node, TreeSum
from .moments import Moments


class Gatherer(Protocol):
    """The processes of a run: what a meeting needs of a `Team`."""

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: can be pickled
        """What every process has given. Blocks until all have. `what`: this process does."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a step a shard is.

    Attributes:
        phase: what it is about to do there.
        call: of batch normalisation, from 0.
        channels: of the layer. has_gradient: whether one will flow back to its input.
    """

    phase: Literal["forward", "backward", "end"]
    call: int = 0
    channels: int = 0
    has_gradient: bool = False

    def __str__(self) -> str:
        if self.phase == "end":
            return "at its end"
        gradient = " and a gradient to its input" if self.has_gradient else ""
        return f"{self.phase} in call {self.call} of batch normalisation, of {self.channels} channels{gradient}"


_END = Place("end")


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a shard brings to a meeting; `value` is None where it has no part in the sum.

    `finish`: called once in a process, with the sum, unless nobody brought a value; all its shards get the result.
    """

    place: Place
    value: Any  # Any: moments or sums
    add: Callable[[Any, Any], Any]  # Any: two of these
    finish: Callable[[Any], Any]  # Any: one of these; what is made of it


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a process brings: the place of its shards, None if it has none; their nodes; who they are, for errors."""

    place: Place | None
    nodes: list[Node[Any]]  # Any: as brought
    who: str

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle has it
        cpu = torch.device("cpu")
        return Meeting, (self.place, [_placed(node, cpu) for node in self.nodes], self.who)


class Meetings:
    """The meetings of one step.

    Args:
        works: the shards of this process in their order, those without samples too. shards: of the whole batch.
        device: where they are executed.
    """

    def __init__(self, works: Sequence[ShardWork], shards: int, gatherer: Gatherer, device: torch.device) -> None:
        self._works = works
        self._full = [work for work in works if work.samples]
        self._shards = shards
        self._gatherer = gatherer
        self._device = device

    def meet(
        self, brought: Sequence[Contribution | None]
    ) -> Any:  # Any: what `finish` makes; None if nothing was brought
        """One for each shard that has samples; None for a shard that has ended.

        Raises:
            ValueError: they are not at the same place. What gathering raises.
        """
        both = list(zip(self._full, brought, strict=True))
        _check_places([(f"shard {work.index}", each.place if each else _END) for work, each in both])
        first = brought[0]
        assert first is not None, "a meeting of shards that have all ended"
        values = {work.index: each.value for work, each in both if each is not None}
        whole = self._sum(first.place, values, first.add)
        return None if whole is None else first.finish(whole)

    def end(self) -> None:
        """The shards of this process are done."""
        self._gather(_END, [])

    def follow(self) -> None:
        """Take part in the meetings of the others until they are done. For a process whose shards have no samples."""
        empty: list[Node[Any]] = [  # Any: as brought
            Node(work.index, work.index + 1, None) for work in self._works
        ]
        while True:
            places = [content.place for content in self._gather(None, empty) if content.place is not None]
            if not places or places[0] == _END:
                return

    def _sum(self, place: Place, values: dict[int, Any], add: Callable[[Any, Any], Any]) -> Any:  # Any: as brought
        tree = TreeSum(self._shards, add)
        for work in self._works:
            tree.put(Node(work.index, work.index + 1, values.get(work.index)))
        whole = TreeSum(self._shards, add)
        nodes = [node for content in self._gather(place, tree.nodes) for node in content.nodes]
        for node in sorted(nodes, key=lambda node: node.start):
            whole.put(_placed(node, self._device))
        assert [node.stop for node in whole.nodes] == [self._shards], f"a shard is missing: {whole.nodes}"
        return whole.nodes[0].value

    def _gather(self, place: Place | None, nodes: list[Node[Any]]) -> list[Meeting]:  # Any: as brought
        who = f"shard {self._full[0].index}" if self._full else "nobody"
        contents: list[Meeting] = self._gatherer.gather("normalises a batch", Meeting(place, nodes, who))
        _check_places([(content.who, content.place) for content in contents if content.place is not None])
        return contents


def _placed(node: Node[Any], device: torch.device) -> Node[Any]:  # Any: as brought
    """The node with its value on this device, itself where it is there already."""
    value = node.value
    if isinstance(value, Moments) and value.mean_C.device != device:
        value = Moments(value.count, value.mean_C.to(device), value.squares_C.to(device))
    elif isinstance(value, Tensor) and value.device != device:
        value = value.to(device)
    return node if value is node.value else Node(node.start, node.stop, value)


def _check_places(found: Sequence[tuple[str, Place]]) -> None:
    """Raises ValueError unless all are at the same place."""
    for who, place in found[1:]:
        if place != found[0][1]:
            raise ValueError(
                f"batch_norm='global': {found[0][0]} is {found[0][1]}, and {who} is {place}.\n"
                f"Every shard must call the same layers in the same order, for they are normalised together. "
                f"batch_norm='shard' has no such condition."
            )

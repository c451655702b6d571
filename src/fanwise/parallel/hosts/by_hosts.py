"""Gradients over hosts: added within each host first, then between one process of each, the leaders.

    1  each process gives the nodes of the tree that it has to the leader of its host        (shared memory)
    2  leaders add those that are siblings in the tree, and give each other leader its slices (the network)
    3  each adds its slices of what all hosts have, along the tree, divides, and gives them to the other leaders
    4  leaders give the whole sum to the processes of their host                              (shared memory)

So a host sends and receives 2 (h-1)/h of the gradients for h hosts, whatever the number of its processes. A leader has
several slices, and sends the sum of one while it receives the next: the network waits for no addition.

What may be added within a host is decided by the tree over the shards (shards.py): the same additions in the same order
as on one device, and the same bits. A sum counts when all have come to the turn after it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..all_reduce.contract import AllReducePlan, Found
from ..comm.flat_layout import Bucket, Layout, flat_gradient
from ..comm.team import divide
from ..replica.gradients import add_grads, total_into
from ..shards import Node, TreeSum

T = TypeVar("T")

# A leader's part of the gradients goes in slices of about so many bytes: few messages, and little to wait for.
_SLICE_BYTES = 512 << 10


class Sending(Protocol):
    """What it needs of a team. Places are those of the processes that take part now."""

    @property
    def place(self) -> int: ...

    @property
    def hosts(self) -> Sequence[str]:
        """Of each process, by place."""
        ...

    def send(self, place: int, what: str, rows: Any) -> None:  # Any: bytes, or tensors in what can be pickled
        """For another process. Its memory may be changed afterwards."""
        ...

    def receive(self, place: int, what: str) -> Any:  # Any: as sent
        """What another one has sent. Blocks."""
        ...

    def exchange(self, content: bytes) -> Sequence[bytes]:
        """Block until all have come."""
        ...


class ByHosts:
    """The `AllReduce` between hosts."""

    def __init__(self, team: Sending, params: Sequence[nn.Parameter]) -> None:
        self._team = team
        self._params = list(params)
        self._own: dict[tuple[int, int], Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._lay_out([])

    def _lay_out(self, reached: Sequence[bool]) -> None:
        self._reached = reached
        self._layout = Layout(self._params, [place for place, is_reached in enumerate(reached) if is_reached])
        self._make_room(self._layout.size_bytes)

    def _make_room(self, size_bytes: int) -> None:
        """For the sum, in slices of one length."""
        self._room = self._memory("sum", size_bytes)
        self._grads = self._layout.shaped(self._room)

    def _memory(self, name: str, size_bytes: int) -> Tensor:
        """Flat memory for one purpose, kept for the next step: new pages cost as much as sending them."""
        if name not in self._kept or len(self._kept[name]) < size_bytes:
            self._kept[name] = torch.zeros(size_bytes, dtype=torch.uint8)
        return self._kept[name][:size_bytes]

    def begin(self) -> None:
        self._own.clear()

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        for place, grad in enumerate(grads, first):
            if grad is not None:
                self._own[number, place] = flat_gradient(self._params[place], grad)

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        met = meet()
        if met.reached != self._reached:
            self._lay_out(met.reached)
        team, places = self._team, places_by_host(self._team.hosts)
        own = next(places_ for places_ in places if team.place in places_)
        if team.place == own[0]:
            self._lead(met, places, own)
            for place in own[1:]:
                team.send(place, "sum", self._room[: self._layout.size_bytes])
        else:
            team.send(own[0], "nodes", self._rows(met))
            self._room[: self._layout.size_bytes].copy_(team.receive(own[0], "sum"))
        team.exchange(b"")
        return [grad if is_reached else None for grad, is_reached in zip(self._grads, met.reached, strict=True)]

    def _rows(self, met: AllReducePlan) -> Tensor:
        """The nodes of this process, one after another."""
        layout = self._layout
        numbers = [each.number for each in met.found if each.place == self._team.place and each.node.reached]
        rows = self._memory("rows", len(numbers) * layout.size_bytes).view(len(numbers), layout.size_bytes)
        for row, number in zip(rows, numbers, strict=True):
            of = [(place, flat) for (its, place), flat in self._own.items() if its == number]
            _copy([layout.flat(row, place) for place, _ in of], [flat for _, flat in of])
        return rows

    def settle(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()

    # -- leaders ---------------------------------------------------------------------------------------------------

    def _lead(self, met: AllReducePlan, places: Sequence[Sequence[int]], own: Sequence[int]) -> None:
        """Write the sum over all hosts into `_room`."""
        team = self._team
        rows: dict[tuple[int, int], Tensor] = {}
        for place in own[1:]:
            numbers = [found.number for found in met.found if found.place == place and found.node.reached]
            rows.update(
                ((place, number), row) for number, row in zip(numbers, team.receive(place, "nodes"), strict=True)
            )
        self._add_slices(met, places, own, rows)

    def _add_slices(
        self,
        met: AllReducePlan,
        places: Sequence[Sequence[int]],
        own: Sequence[int],
        rows: dict[tuple[int, int], Tensor],
    ) -> None:
        """2 and 3 of the module's text. Slices of a host follow one another; a message has a slice of all its nodes."""
        team, layout, hosts = self._team, self._layout, len(places)
        count = _num_slices(layout.slice_bytes(hosts))
        each = layout.slice_bytes(hosts * count)
        self._make_room(each * hosts * count)
        slices = self._room.view(hosts * count, each)
        buckets = [_of_any(layout.owned(number, hosts * count), met) for number in range(hosts * count)]
        others = [(host, its[0]) for host, its in enumerate(places) if host != places.index(own)]
        mine = range(places.index(own) * count, (places.index(own) + 1) * count)
        flags = {host: _merged(_flags(met, places[host]), met.shards, _either) for host, _ in others}
        for place in range(count):
            for host, leader in others:
                number = host * count + place
                added = self._added(met, own, buckets[number], rows)
                num_rows = sum(node.value is not None for node in added)
                packed = self._memory(f"to {host}", num_rows * each).view(num_rows, each)
                _pack(added, buckets[number], packed, number * each)
                team.send(leader, f"slice {number}", packed)
        for number in mine:
            operands = self._added(met, own, buckets[number], rows)
            for host, leader in others:
                packed = team.receive(leader, f"slice {number}")
                operands += _unpacked(flags[host], packed, buckets[number], number * each)
            operands.sort(key=lambda node: node.start)
            sums = total_into([bucket.of(self._room) for bucket in buckets[number]], operands, met.shards, changes=True)
            if met.count is not None:
                divide(sums, met.count)
            for _, leader in others:
                team.send(leader, f"sum {number}", slices[number])
        for host, leader in others:
            for number in range(host * count, (host + 1) * count):
                slices[number].copy_(team.receive(leader, f"sum {number}"))

    def _added(
        self, met: AllReducePlan, own: Sequence[int], buckets: Sequence[Bucket], rows: dict[tuple[int, int], Tensor]
    ) -> list[Node[list[Tensor | None]]]:
        """The nodes of our host, those that are siblings added."""

        def operand(each: Found) -> list[Tensor | None] | None:
            if not each.node.reached:
                return None
            if each.place == self._team.place:
                flats = [self._own.get((each.number, bucket.param)) for bucket in buckets]
                return [
                    None if flat is None else bucket.of_flat(flat) for bucket, flat in zip(buckets, flats, strict=True)
                ]
            row = rows[each[:2]]
            return [bucket.of(row) if each.node.reached[bucket.param] else None for bucket in buckets]

        found = [each for each in met.found if each.place in own]
        nodes = [Node(each.node.start, each.node.stop, operand(each)) for each in found]
        return _merged(nodes, met.shards, _plus)


def _num_slices(size_bytes: int) -> int:
    """Of a host's part of so many bytes.

    >>> _num_slices(100), _num_slices(5 << 20)
    (1, 10)
    """
    return max(1, size_bytes // _SLICE_BYTES)


def places_by_host(hosts: Sequence[str]) -> list[list[int]]:
    """The processes of each host, by place; the first of each leads it."""
    found: dict[str, list[int]] = {}
    for place, host in enumerate(hosts):
        found.setdefault(host, []).append(place)
    return list(found.values())


def _merged(nodes: Sequence[Node[T]], shards: int, add: Callable[[T, T], T]) -> list[Node[T]]:
    """Those that are siblings in the tree added, as far as that goes."""
    trees: list[TreeSum[T]] = []
    for node in nodes:
        if not trees or trees[-1].nodes[-1].stop != node.start:
            trees.append(TreeSum(shards, add))  # what lies between is another host's
        trees[-1].put(node)
    return [node for tree in trees for node in tree.nodes]


def _plus(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
    add_grads(left, right)
    return left


def _flags(met: AllReducePlan, places: Sequence[int]) -> list[Node[bytes]]:
    """Which parameters the nodes of these processes have reached."""
    found = [each.node for each in met.found if each.place in places]
    return [Node(node.start, node.stop, node.reached or None) for node in found]


def _either(left: bytes, right: bytes) -> bytes:
    return bytes(one or other for one, other in zip(left, right, strict=True))


def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, of)


def _of_any(buckets: Sequence[Bucket], met: AllReducePlan) -> list[Bucket]:
    """Those that some node has a gradient of."""
    return [bucket for bucket in buckets if met.reached[bucket.param]]


def _pack(nodes: Sequence[Node[list[Tensor | None]]], buckets: Sequence[Bucket], rows: Tensor, begin: int) -> None:
    """A slice of these nodes, into rows."""
    values = [node.value for node in nodes if node.value is not None]
    for row, value in zip(rows, values, strict=True):
        both = [(bucket, each) for bucket, each in zip(buckets, value, strict=True) if each is not None]
        _copy([bucket.of(row, begin) for bucket, _ in both], [each for _, each in both])


def _unpacked(
    flags: Sequence[Node[bytes]], rows: Tensor, buckets: Sequence[Bucket], begin: int
) -> list[Node[list[Tensor | None]]]:
    """What another host has packed."""
    left: Iterator[Tensor] = iter(rows)

    def value(reached: bytes | None) -> list[Tensor | None] | None:
        if reached is None:
            return None
        row = next(left)
        return [bucket.of(row, begin) if reached[bucket.param] else None for bucket in buckets]

    return [Node(node.start, node.stop, value(node.value)) for node in flags]
